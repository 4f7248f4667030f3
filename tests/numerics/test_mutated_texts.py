"""Broken bodies: each change of a kernel's text must change what the DSLs print for it, and must be caught.

A mutant is caught by the plan (it does not render: a declared operation is missing), by the interpreter (it
refuses the body, deadlocks, or gives a wrong result), or by the emulator, which sees what the interpreter
cannot: threads of one role that do not wait for one another. A mutant that survives all three is listed with
the reason why it is no bug.
"""

from __future__ import annotations

import importlib
import itertools
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import count_mutants
import kernel_folders
import pytest
import sampling
from body_mutants import Mutant, Only, Structure, mutants, printed, written

from dsl_kernels import programs, variants
from dsl_kernels.arch import get_arch
from dsl_kernels.errors import CompileError, DslKernelError
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.tile.program import TileProgram
from dsl_kernels.variants import Variant
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial
from ptx_emulator import EmulatorError, interleavings

pytestmark = [pytest.mark.emulator, pytest.mark.compile]
DSLS = ("cutedsl", "tilelang")
INTERLEAVINGS = 20
# CPU seconds after which a mutant counts as an endless loop, unless the original text takes half as long.
SECONDS = 6.0

# Mutants of a structure that a run tries; TEST_ALL=1 tries all.
SAMPLE = 3
UNEXPLAINED = "unexplained"

MODULES = kernel_folders.modules("mutated")
STRUCTURES = tuple(s for modules in MODULES.values() for module in modules for s in module.STRUCTURES)


class TakesTooLong(Exception):
    """A mutant that never ends."""


def _stop(signum: int, frame: Any) -> None:
    raise TakesTooLong


def interpreted(
    program: TileProgram, variant: Variant, structure: Structure, seconds: float = SECONDS
) -> str | None:
    """How the interpreter caught a mutant within `seconds` of CPU time, or None."""
    original = programs.get
    signal.signal(signal.SIGPROF, _stop)
    # Repeatedly, as an exception raised inside a finaliser is lost.
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    try:
        programs.get = lambda op: program if op == variant.op else original(op)  # type: ignore[assignment]
        for workload, launch in structure.runs:
            example = trial.cached_example(variant.op, workload)
            result = trial.run(variant, workload, Interpreter(seed=3), example=example, launch=launch)
            if not result.comparison.ok:
                return result.comparison.failures[0]
    except (
        DslKernelError,
        RuntimeError,
        IndexError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ArithmeticError,
        TakesTooLong,
    ) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        programs.get = original  # type: ignore[assignment]
    return None


def emulated(text: str, variant: Variant, structure: Structure, folder: Path) -> str | None:
    """How the compiler or the emulator caught a mutant, as the variant's DSL prints it, or None.

    A DSL that is not installed says nothing of a mutant: its `ToolchainError` is raised.
    """
    module = importlib.import_module(f"dsl_kernels.backends.{variant.backend}")
    path = folder / f"{variant.id}.py"
    path.write_text(text)
    try:
        module.compile_module(path, variant.arch, folder)
    except CompileError as error:
        return f"does not compile: {error}"
    ptx = (folder / "kernel.ptx").read_text()
    for interleaving, (workload, launch) in itertools.product(interleavings(INTERLEAVINGS), structure.runs):
        example = trial.cached_example(variant.op, workload)
        executor = Emulator(interleaving, edit=lambda _: ptx, strict=True)
        try:
            result = trial.run(variant, workload, executor, example=example, launch=launch)
        except EmulatorError as error:
            return str(error)
        if not result.comparison.ok:
            return result.comparison.failures[0]
    return None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a mutant: who caught it and how; nobody if it survives."""

    mutant: str
    by: str
    how: str


@dataclass(frozen=True)
class Original:
    """A structure's text as it is, what the DSLs print for it, and its mutants."""

    structure: Structure
    variant: Variant
    program: TileProgram
    before: Mapping[str, str | None]
    seconds: float
    tried: tuple[Mutant, ...]


def original(structure: Structure) -> Original:
    """The unbroken text, which the interpreter must find right. A mutant may take twice its time."""
    variant = variants.get(structure.variant)
    program, arch = programs.get(variant.op), get_arch(variant.arch)
    # Through `written`, like mutants, as that turns the declaration's constants into numbers.
    unbroken = written(program, program.text(variant.knobs, arch))
    before = {dsl: printed(unbroken, variant, dsl) for dsl in DSLS}
    began = time.process_time()
    assert interpreted(program, variant, structure, seconds=20 * SECONDS) is None
    seconds = max(SECONDS, 2 * (time.process_time() - began))
    tried = tuple(mutants(program.text(variant.knobs, arch), program.schedule(variant.knobs, arch)))
    return Original(structure, variant, program, before, seconds, tried)


def outcome(of: Original, number: int, folder: Path) -> Outcome:
    """What catches a mutant.

    Raises:
        AssertionError: the mutant prints like the original in a DSL that spells what it changes.
    """
    mutant, before, structure, variant = of.tried[number], of.before, of.structure, of.variant
    broken = written(of.program, mutant.text)
    try:
        after = {dsl: printed(broken, variant, dsl) for dsl in DSLS}
    except DslKernelError as error:
        return Outcome(mutant.name, "plan", str(error))
    in_dsls = [dsl for dsl in DSLS if before[dsl] is not None]
    same = [dsl for dsl in in_dsls if after[dsl] == before[dsl]]
    assert all(unspelled(mutant.name, dsl, before[dsl] or "") for dsl in same), (mutant.name, same)
    how = interpreted(broken, variant, structure, of.seconds)
    if how is not None:
        return Outcome(mutant.name, "interpreter", how)
    if same == in_dsls:
        return Outcome(mutant.name, "nobody", "the printed function takes neither of the arguments")
    nth = sum(other.name == mutant.name for other in of.tried[: number + 1])
    if (reason := explained(structure, mutant.name, nth)) is not None:
        return Outcome(mutant.name, "nobody", reason)
    how = emulated(after[variant.backend] or "", variant, structure, folder)
    return Outcome(mutant.name, "nobody" if how is None else "emulator", how or UNEXPLAINED)


def outcomes(structure: Structure, folder: Path, most: int) -> list[Outcome]:
    """The mutants of a structure, a sample of at most `most` of them."""
    of = original(structure)
    numbers = sampling.sample(range(len(of.tried)), most, structure.name)
    return [outcome(of, number, folder) for number in numbers]


def unspelled(mutant: str, dsl: str, text: str) -> bool:
    """Whether a DSL's text has no place that a mutant could change."""
    what = mutant.partition(": ")[2]
    if what.startswith("drop commit ") and (
        dsl == "cutedsl" or "arrives + expects the bytes of both" in text
    ):
        return True  # of a bulk fill, which arrives where it expects the bytes; TileLang's of a pair of CTAs
    if dsl == "tilelang" and what in ("drop barriersstand", "twice barriersstand"):
        return True  # of a program without pipelines, which has no barriers
    if swap := re.fullmatch(r"(\w+) and (\w+) of (\w+)", what):
        # A printed function has only the parameters that its DSL uses: TileLang, for example, knows tensors'
        # extents.
        defined = re.findall(rf"def {swap[3]}(?:_\w+)?\(([^)]*)\)", text)
        return any(not {swap[1], swap[2]} & set(re.findall(r"\w+", parameters)) for parameters in defined)
    return False


def explained(structure: Structure, mutant: str, nth: int) -> str | None:
    """Why the `nth` mutant of its name in a structure need not be caught, or None."""
    (module,) = (m for m in MODULES[variants.get(structure.variant).op] if structure in m.STRUCTURES)
    reasons = module.EXPLAINED
    reason = reasons.get(mutant, reasons.get(mutant.partition(": ")[2]))
    if isinstance(reason, Only):
        return reason.reason if nth in reason.places.get(structure.name, ()) else None
    return reason


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda s: s.name.replace(", ", "-").replace(" ", "_"))
def test_every_broken_body_is_caught(structure: Structure, tmp_path: Path) -> None:
    results = outcomes(structure, tmp_path, SAMPLE)
    assert not [o for o in results if o.how == UNEXPLAINED]
    record = count_mutants.load()[structure.name]
    if sampling.ALL and not count_mutants.changed(record):
        caught = Counter(o.by for o in results)
        assert {by: caught[by] for by in count_mutants.CATCHERS} == {
            by: record[by] for by in count_mutants.CATCHERS
        }


def test_every_structure_is_counted() -> None:
    assert not {s.name for s in STRUCTURES} - count_mutants.load().keys(), "run scripts/count_mutants.py"


def test_a_name_stands_for_one_workload() -> None:
    """Examples are drawn and kept by an operation and a name."""
    first: dict[tuple[str, str], Workload] = {}
    for structure in STRUCTURES:
        for workload, _ in structure.runs:
            name = variants.get(structure.variant).op, workload.name
            assert first.setdefault(name, workload) == workload, name


def test_a_text_that_prints_as_the_original_does_is_no_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    structure = next(s for s in STRUCTURES if s.name == "resampling by a warp")
    monkeypatch.setitem(globals(), "mutants", lambda text, schedule: [Mutant("sample: nothing", text)])
    with pytest.raises(AssertionError, match="sample: nothing"):
        outcomes(structure, tmp_path, 1)


def mutants_of(structure: Structure) -> Iterator[Mutant]:
    variant = variants.get(structure.variant)
    program, arch = programs.get(variant.op), get_arch(variant.arch)
    return mutants(program.text(variant.knobs, arch), program.schedule(variant.knobs, arch))


# The least number of mutants of short texts.
FEW = {"resampling": 17, "compressed": 12, "ids of a window": 8, "merged from": 8}


def test_the_structures_have_mutants_enough() -> None:
    """Some operations have few statements and no pipeline."""
    for structure in STRUCTURES:
        least = next((n for name, n in FEW.items() if name in structure.name), 40)
        assert sum(1 for _ in mutants_of(structure)) >= least
