"""The variants of selection that are committed, and how variants rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...arch import ArchSpec, GpuSpec
from ...dtypes import DTYPES
from ...tile.lang import Counts, Policy, Schedule
from .._rows import resized
from .problem import SCORES
from .program.schedule import min_ctas_per_sm_of, sizes

# The cost of a list in the model, in keys of a pass.
LISTED = 8192
# (group, threads, keep, resident, sample) of the committed set: short rows, a few long rows, many long rows.
COMMITTED = (
    (1, 512, 8, 1, 0),
    (8, 512, 8, 1, 0),
    (16, 512, 16, 1, 0),
    (4, 1024, 16, 1, 0),
    (2, 1024, 16, 1, 0),
    (1, 1024, 16, 1, 16),
    (1, 512, 8, 1, 16),
    (2, 1024, 16, 1, 64),
    (4, 1024, 16, 1, 64),
    (8, 1024, 16, 1, 64),
)
# The part of the committed set for scores of 16 bits, and the sets with options.
COMMITTED_OF_HALVES = (
    (1, 512, 8, 1, 0),
    (16, 512, 16, 1, 0),
    (1, 512, 8, 1, 16),
    (1, 1024, 16, 1, 16),
    (2, 1024, 16, 1, 64),
)
COMMITTED_WITH_OPTIONS = {
    "default": ((1, 512, 8, 1, 0), (8, 512, 8, 1, 0), (16, 512, 16, 1, 0), (1, 1024, 8, 1, 32)),
    "bf16": ((1, 512, 8, 1, 0), (16, 512, 16, 1, 0), (1, 1024, 16, 1, 16)),
    "fp16": ((1, 512, 8, 1, 0), (16, 512, 16, 1, 0)),
}


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """A pass over the CTA's share per digit, a pass that writes, and the group's histograms every round."""
    bounds, each = 2 * 4, DTYPES[SCORES[k.dtype]].bytes
    end, selected = min(dims["stride"], dims["max_len"]), dims["k"]
    if end <= selected:
        return Counts(loaded=bounds, stored=4 * selected)
    # The fp16 image spans up to 31 bits of a key: three digits after the first.
    words, rounds = k.keep, 4
    if dims["stride"] > k.group * k.threads * k.keep:
        words = -(-end // (k.group * k.threads))
    share = min(dims["stride"], words * k.threads)
    if k.sample:
        # Every score is compared; a sample of the row and its list go through the rounds.
        sampled = share / k.sample
        return Counts(
            loaded=bounds + each * (share + sampled),
            stored=4 * min(end, selected),
            elements=1.5 * share + (rounds + 1) * (sampled + LISTED),
        )
    return Counts(
        loaded=bounds + each * share + rounds * k.group * schedule.buffer("hist").bytes,
        stored=4 * min(share, selected),
        group_syncs=rounds + 1,
        elements=(rounds + 1) * share,
    )


def overhead(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """Microseconds of a wave apart from its memory traffic: rounds, instructions on keys, keys read again.

    The fixed parts and the instructions per key of the two passes are fitted to one H200.
    """
    share = -(-dims["max_len"] // k.group)
    if k.sample:
        # The fixed cost of a row, which the other CTAs of the SM hide.
        hidden = min(min_ctas_per_sm_of(k, gpu.arch), max(1.0, dims["rows"] / gpu.sms))
        # A larger cluster waits longer for its last CTA. The figure only orders otherwise equal clusters.
        meetings = 0.1 * k.group if k.group > 1 else 0.0
        return (7.0 if k.threads > 512 else 9.0) / hidden + meetings
    rounds = 2.2 + 0.1 * k.group if k.group > 1 else 1.3
    issue = share * k.resident * 14 / 32 / 4 / 1755
    kept = k.threads * k.keep * (1 + sizes(k)["stashed"])
    again = (
        0.0
        if share <= kept
        else share * k.resident * DTYPES[SCORES[k.dtype]].bytes / (gpu.l2_gbps * 1e3 / gpu.sms)
    )
    return rounds + issue + again + 0.02 * k.keep


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    """A sample of 1/64 is for several CTAs per row, the other samples for one CTA.

    Level 0 keeps the combinations that the tuned tables use. Scores of 16 bits and options have few of these.
    """
    if k.sample and (k.group > 1) != (k.sample == 64):
        return False
    shape = (k.group, k.threads, k.keep, k.resident, k.sample)
    if k.options:
        return shape in COMMITTED_WITH_OPTIONS.get(k.dtype, ())
    if k.dtype != "default":
        return shape in COMMITTED_OF_HALVES
    return level > 0 or shape in COMMITTED


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Rows, the greatest possible length of a row, and k."""
    return {"rows": dims["rows"], "max_len": dims["stride"], "k": dims["k"]}


POLICY = Policy(bucket=bucket, resized=resized, counts=counts, overhead=overhead, useful=useful)
