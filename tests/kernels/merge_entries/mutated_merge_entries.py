"""What breaks the texts that merge entries: lists, structures, and why some mutants are no bug."""

from __future__ import annotations

from body_mutants import Only, Structure, workload

from dsl_kernels_lab.oracles import Workload

GATHERED, ON_RANKS = "entries merged from one tensor", "entries merged from their ranks"


# No two sizes of a call are equal, and a row's entries fill more than one CTA.
def _runs(form: str) -> tuple[tuple[Workload, dict[str, int]], ...]:
    sizes = {"ranks": 5, "rows": 4, "k": 173, "interleave": 7}
    return tuple(
        (workload(f"distinct_{form}_{planes}", form, planes=planes, **sizes), {}) for planes in (3, 2)
    )


STRUCTURES = (
    Structure(GATHERED, "merge_entries__cutedsl_sm90a__n256", _runs("default")),
    Structure(ON_RANKS, "merge_entries__cutedsl_sm90a__n512_peers", _runs("peers")),
)

NO_RINGS = Only(
    "no pipeline has barriers, and nothing waits for their standing", {GATHERED: (1,), ON_RANKS: (1,)}
)
# Mutants that may survive, and why their kernel computes the same.
EXPLAINED: dict[str, str | Only] = {
    "start: drop barriersstand": NO_RINGS,
    "start: twice barriersstand": NO_RINGS,
    "drop depend": "without it a launch waits for the whole kernel before it",
}
