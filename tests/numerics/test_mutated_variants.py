"""Bugs seeded into the PTX of our variants: the emulator's checks or the comparison must catch each.

seeded_bugs has the bugs, `seeded_*.py` of an operation's folder the variants and workloads.
"""

from __future__ import annotations

import kernel_folders
import pytest
from seeded_bugs import Mutation

from dsl_kernels import variants
from dsl_kernels.executors import Emulator
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial
from ptx_emulator import EmulatorError, interleavings

pytestmark = [pytest.mark.emulator, pytest.mark.compile]

INTERLEAVINGS = 20


SEEDED = kernel_folders.of_each("seeded")
CASES = [case for module in SEEDED.values() for case in module.CASES]


def params():
    return [
        pytest.param(variant, workload, splits, mutation, id=f"{variant.split('__', 1)[1]}-{mutation.name}")
        for variant, workload, splits, mutations in CASES
        for mutation in mutations
    ]


def launch_of(variant: variants.Variant, workload: str, splits: int) -> dict[str, int]:
    launches = getattr(SEEDED[variant.op], "LAUNCHES", {})
    return launches.get(workload, {"splits": splits} if splits else {})


def small(variant: variants.Variant, name: str) -> Workload:
    """The workload of that name: its folder's, or the problem's as fitted to the variant."""
    own = getattr(SEEDED[variant.op], "LONG", {}).get(name)
    return own or next(w for w in trial.workloads(variant, "tiny", "edge") if w.name.startswith(name))


def original(variant: variants.Variant) -> str:
    from dsl_kernels.runtime import cache

    return (cache.artifact_for(variant) / "kernel.ptx").read_text()


def caught(variant: variants.Variant, workload, launch: dict[str, int], ptx: str) -> str | None:
    """How a broken kernel was caught, or None."""
    example = trial.cached_example(variant.op, workload)
    for interleaving in interleavings(INTERLEAVINGS):
        try:
            result = trial.run(
                variant,
                workload,
                Emulator(interleaving, edit=lambda _: ptx, strict=True),
                example=example,
                launch=launch,
            )
        except EmulatorError as error:
            return str(error)
        if not result.comparison.ok:
            return "; ".join(result.comparison.failures)
    return None


@pytest.mark.sample(40)
@pytest.mark.parametrize("name,workload,splits,mutation", params())
def test_a_seeded_bug_is_caught(name: str, workload: str, splits: int, mutation: Mutation) -> None:
    variant = variants.get(name)
    chosen = small(variant, workload)
    edits = list(mutation.edits(original(variant)))
    assert edits, f"the PTX has no site of: {mutation.name}"
    launch = launch_of(variant, workload, splits)
    missed = [number for number, ptx in enumerate(edits) if caught(variant, chosen, launch, ptx) is None]
    assert not missed, f"{mutation.name}: {len(missed)} of {len(edits)} sites went unnoticed: {missed}"


@pytest.mark.sample(8)
@pytest.mark.parametrize("name,workload,splits,mutations", CASES, ids=[case[0] for case in CASES])
def test_the_unbroken_kernel_raises_nothing(name: str, workload: str, splits: int, mutations) -> None:
    variant = variants.get(name)
    chosen = small(variant, workload)
    launch = launch_of(variant, workload, splits)
    assert caught(variant, chosen, launch, original(variant)) is None
