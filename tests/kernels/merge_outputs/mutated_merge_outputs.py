"""What breaks the texts that merge outputs: parts, structures, and why some mutants are no bug."""

from __future__ import annotations

from body_mutants import Only, Structure, workload

from dsl_kernels_lab.oracles import Workload

GATHERED, ON_RANKS = "outputs merged from one tensor", "outputs merged from their ranks"


# No two sizes of a call are equal; the last CTA has fewer heads than warps.
def _runs(form: str) -> tuple[tuple[Workload, dict[str, int]], ...]:
    return ((workload(f"distinct_{form}", form, ranks=5, rows=3, heads=7, lse_scale=0.7), {}),)


STRUCTURES = (
    Structure(GATHERED, "merge_outputs__cutedsl_sm90a__w4", _runs("default")),
    Structure(ON_RANKS, "merge_outputs__cutedsl_sm90a__w4_peers", _runs("peers")),
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
