"""Each leaf alone: its meaning in torch against its spelling in each DSL, compiled into a small kernel and
emulated.

The cases are in `leaves_*.py` of an operation's folder in tests/kernels. Integers, and values that are only
moved or rounded once, agree bit for bit. For other values a case states a tolerance: for `ex2.approx`,
`lg2.approx`, `rcp.approx` and another order of a sum.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import kernel_folders
import pytest
import sampling
import torch
from leaf_probes import CASES, Case, Probe, straight
from leaves_scalars import of_floats, of_one_thread, of_terms

import dsl_kernels
from codegen.sweep import Filter, leaf_modules, sweep
from dsl_kernels import backends, kernels, programs
from dsl_kernels.device.torch import fragment
from dsl_kernels.errors import DslKernelError
from dsl_kernels.tile.cta import TORCH_DTYPES
from dsl_kernels.tile.lang import Schedule
from dsl_kernels.tile.leaf_text import text_of
from dsl_kernels.tile.text import Call, Leaf, walk

pytestmark = [pytest.mark.emulator, pytest.mark.compile]

kernel_folders.modules("leaves")


@lru_cache(maxsize=32)
def declared(op: str) -> dict[str, Leaf]:
    """The leaves of an operation, by name."""
    modules = (
        importlib.import_module(
            ".".join(path.relative_to(Path(dsl_kernels.__file__).parents[1]).with_suffix("").parts)
        )
        for part in ("functions", "leaves")
        if op in kernels.names(part)
        for path in kernels.files(op, part)
    )
    return {leaf.name: leaf for module in modules for leaf in vars(module).values() if isinstance(leaf, Leaf)}


def called(statements: Any, schedule: Schedule) -> Iterator[str]:
    """Names of the leaves that statements call, including those that the texts of these call."""
    for statement in walk(statements):
        if isinstance(statement, Call):
            yield statement.leaf.name
            text = text_of(statement.leaf, statement.arguments, schedule)
            yield from called(text.statements, schedule)


@lru_cache(maxsize=32)
def spellings(op: str) -> dict[str, dict[tuple[str, str], str]]:
    """The leaves in an operation's committed texts: leaf -> {(DSL, module that spells it): architecture}."""
    by_leaf: dict[str, dict[tuple[str, str], str]] = {}
    for instance in sweep(0, Filter(op=op)).kept:
        modules = leaf_modules(instance.backend, op, instance.arch.tag.removesuffix("a"))
        schedule = instance.program.schedule(instance.knobs, instance.arch)
        parts = instance.program.text(instance.knobs, instance.arch).parts.values()
        for name in {name for part in parts for name in called(part, schedule)}:
            home = next((module for _, module, names in modules if name in names), None)
            if home is None and name in declared(op) and declared(op)[name].text is not None:
                home = "text"
            homes = by_leaf.setdefault(name, {})
            if home is not None:
                homes.setdefault((instance.backend, home), instance.arch.name)
    return by_leaf


def probes() -> Iterator[Any]:
    """A parameter set for one case of each spelling of each leaf, in turn; with TEST_ALL=1 for each case."""
    turn = 0
    for op in programs.names():
        try:
            calls = spellings(op)
        except DslKernelError:
            # An unfinished program fails test_every_leaf_has_a_case.
            continue
        # Of the common leaves, only those that have a case.
        common = {
            leaf.name: leaf for leaf in vars(fragment).values() if isinstance(leaf, Leaf) and leaf in CASES
        }
        for name, leaf in {**common, **declared(op)}.items():
            for (dsl, home), arch in sorted(calls.get(name, {}).items()):
                cases = list(CASES.get(leaf, {}).items())
                turn += 1
                for label, body in cases if sampling.ALL else cases[turn % len(cases) :][:1] if cases else ():
                    title = "-".join(x for x in (op, name, home.removeprefix(op).strip("_"), dsl, label) if x)
                    yield pytest.param(op, leaf, dsl, arch, body, id=title)


@pytest.mark.parametrize("op", programs.names())
def test_every_leaf_has_a_case(op: str) -> None:
    missing = [name for name, leaf in declared(op).items() if leaf not in CASES]
    assert not missing, f"leaves without a case in tests/kernels/{op}/leaves_{op}.py: {', '.join(missing)}"
    unspelled = [name for name in declared(op) if not spellings(op).get(name)]
    assert not unspelled, f"leaves that no committed text calls, or no DSL spells: {', '.join(unspelled)}"


def test_no_two_leaves_share_a_case() -> None:
    """Each leaf is compared with its own meaning, never with another leaf."""
    sharing: dict[Any, set[str]] = {}
    for leaf, cases in CASES.items():
        for body in cases.values():
            sharing.setdefault(body.func, set()).add(leaf.name)
    assert all(len(names) == 1 for names in sharing.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
def test_a_buffer_has_the_dtype_of_what_it_holds(dtype: torch.dtype) -> None:
    probe = Probe("topk_selector", of_floats, "cutedsl", "sm_90a")
    values = torch.ones(32, 2).to(dtype)
    probe.shared("in_shared", (32, 2), values)
    probe.registers("in_registers", (32, 2), [values], places=straight(32, 2))
    probe.shared("empty", (32, 2))
    dtypes = [TORCH_DTYPES[buffer.dtype] for argument in probe.held for buffer in argument.buffers]
    assert dtypes == [dtype, dtype, torch.float32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("leaves")


@pytest.mark.sample(90)
@pytest.mark.parametrize(("op", "leaf", "dsl", "arch", "body"), list(probes()))
def test_a_leaf_is_what_torch_says(
    op: str, leaf: Leaf, dsl: str, arch: str, body: Case, folder: Path
) -> None:
    _hold(Probe(op, leaf, dsl, arch), body, folder)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("dsl", backends.names())
@pytest.mark.parametrize("leaf", [of_one_thread, of_floats, of_terms], ids=lambda leaf: leaf.name)
def test_functions_are_what_torch_says(leaf: Leaf, dsl: str, arch: str, folder: Path) -> None:
    (body,) = CASES[leaf].values()
    _hold(Probe("topk_selector", leaf, dsl, arch), body, folder)


def _hold(probe: Probe, body: Case, folder: Path) -> None:
    body(probe)
    failures = probe.run(folder)
    assert not failures, f"leaf {probe.leaf.name} in {probe.dsl} ({probe.arch}): " + "; ".join(failures)
