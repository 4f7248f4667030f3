"""What breaks the text of a window's ids: windows, the structure, and why some mutants are no bug."""

from __future__ import annotations

from body_mutants import Only, Structure, workload

NAME = "ids of a window"
# No two sizes of a call are equal; a window is longer than a CTA's ids, or shorter than a page.
RUNS = (
    (workload("distinct_long", "default", b=3, next_n=2, max_pages=11, page_size=29, window=150), {}),
    (workload("distinct_short", "default", b=4, next_n=1, max_pages=2, page_size=23, window=19), {}),
)
STRUCTURES = (Structure(NAME, "window_ids__cutedsl_sm90a__n128", RUNS),)

NO_RINGS = Only("no pipeline has barriers, and nothing waits for their standing", {NAME: (1,)})
# Mutants that may survive, and why their kernel computes the same.
EXPLAINED: dict[str, str | Only] = {
    "start: drop barriersstand": NO_RINGS,
    "start: twice barriersstand": NO_RINGS,
    "drop depend": "without it a launch waits for the whole kernel before it",
}
