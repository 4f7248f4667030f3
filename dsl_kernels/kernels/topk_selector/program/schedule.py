"""The schedule of selection: knobs, the sizes that follow from knobs, and the buffers of a CTA."""

from __future__ import annotations

from types import SimpleNamespace

from ....arch import ArchSpec
from ....tile.frontend import Int32, Names
from ....tile.lang import Buffer, Knob, Role, Schedule, Size, Space
from ....tile.text import Global, View, dim
from ..leaves.row import BINS, COARSE, WORD
from ..problem import OPTIONS, SCORES

# The positions of a row take the place of its histograms.
MAX_K = 2 * BINS
# With at most RANKED undecided keys, a list is ranked without another round.
RANKED = Size(64, "RANKED")

KNOBS = (
    Knob("group", "g", ((1, 2, 4, 8, 16),), "CTAs per row, one cluster"),
    Knob("threads", "t", ((1024, 512), (), (256,)), "threads per CTA"),
    Knob(
        "keep",
        "r",
        ((4, 8, 16), (32,)),
        "keys that a thread keeps in registers; every pass reads longer rows again",
    ),
    Knob("resident", "c", ((1, 2),), "CTAs that an SM holds at once"),
    Knob(
        "sample",
        "s",
        ((0, 16, 32, 64),),
        "one word of 32 columns in so many is sampled; 0: no sample",
        plain=0,
    ),
    Knob("dtype", "", ((*SCORES,),), "dtype of the scores; default: fp32", plain="default"),
    Knob(
        "options",
        "opt",
        ((0, 1),),
        "1: values, positions, offsets, a map of rows to sequences, ties to the higher position",
        plain=0,
    ),
)


def form_of(knobs: SimpleNamespace) -> str:
    """The problem's form that a variant takes."""
    return OPTIONS[knobs.dtype] if knobs.options else str(knobs.dtype)


class Kernel(Names):
    """Operands, sizes, scalars and buffers of selection. The schedule decides which buffers exist.

    Some operands exist with options only.
    """

    block_table: Global
    indices: Global
    logits: Global
    offsets: Global
    positions: Global
    row_ends: Global
    row_starts: Global
    row_to_sequence: Global
    values: Global
    absolute: Int32
    has_offsets: Int32
    has_positions: Int32
    has_sequences: Int32
    has_values: Int32
    k: Int32
    next_n: Int32
    page_size: Int32
    stride: Int32
    ties_higher: Int32
    above: View
    ahead: View
    coarse: View
    counters: View
    digits: View
    entries: View
    equal: View
    few: View
    few_digits: View
    hist: View
    keys: View
    mine: View
    pages: View
    stash: View
    state: View
    sums: View


def sizes(knobs: SimpleNamespace) -> dict[str, int]:
    """The sizes that follow from the knobs."""
    long = knobs.threads * knobs.keep == 16384 and knobs.resident == 1 and knobs.group <= 4
    listed = Size((11 if knobs.group == 1 else 8) * knobs.threads if knobs.sample else 2048, "LISTED")
    few = Size(knobs.keep if knobs.sample > 16 else knobs.keep // 2, "FEW")
    reach = 81920
    if knobs.sample:
        spare = 0 if knobs.group == 1 else knobs.threads * knobs.keep
        reach = knobs.sample * knobs.threads * few // knobs.group + spare
    return {
        # Batches of keys that stay in shared memory between passes, where one CTA per SM has a long share.
        "stashed": Size(2 if long and not knobs.sample else 0, "STASHED"),
        # Keys that a list holds: the undecided keys of a histogram, or the keys that reach a sample's
        # threshold.
        "listed": listed,
        # Keys of the sample per thread: half as many as of a row, or as many where the sample is thin.
        "few": few,
        # The rounds over the sample end at so many undecided keys, which stand for a quarter of the list.
        "between": Size(listed // (4 * knobs.sample) if knobs.sample else 0, "BETWEEN"),
        "cta_warps": Size(knobs.threads // 32, "WARPS"),
        "batch": Size(WORD * knobs.keep, "BATCH"),
        # Columns that a CTA can mark in its bitmaps. With a sample: the columns that the sample stands for,
        # or in a cluster a share of these and a batch, for the columns of a row past a million. Without a
        # sample: enough for a cluster of 16 to serve a million.
        "reach": Size(reach, "SPAN"),
    }


def min_ctas_per_sm_of(knobs: SimpleNamespace, arch: ArchSpec) -> int:
    """The number of CTAs that share the registers of an SM.

    A thread with 8 keys needs 64 registers, or 40 where one CTA has a row of fp32. With thousands of rows to
    do, a third CTA of 512 threads then runs while the others wait. With 40 registers TileLang spills for
    scores of 16 bits and for options.
    """
    if knobs.keep > 8:
        return int(knobs.resident)
    few = knobs.group == 1 and knobs.dtype == "default" and not knobs.options
    return max(knobs.resident, arch.registers_per_sm // (knobs.threads * (40 if few else 64)))


def declare(knobs: SimpleNamespace, arch: ArchSpec) -> Schedule:
    c = SimpleNamespace(**sizes(knobs))
    stashed, words, few = c.stashed, c.reach // WORD, c.few

    def shared(buffer: str, count: int, doc: str, dtype: str = "int32") -> Buffer:
        return Buffer(buffer, Space.SHARED, (count,), dtype, doc=doc)

    def private(buffer: str, each: int, dtype: str, doc: str) -> Buffer:
        return Buffer.own(buffer, "select", each, dtype, knobs.threads, doc)

    return Schedule(
        roles=(Role("select", knobs.threads // 32, doc="every warp owns a run of words of 32 columns"),),
        buffers=(
            shared("hist", 2 * BINS, "the bins of a round, for even and for odd rounds"),
            shared("entries", c.listed + RANKED, "undecided keys of the row with their positions", "int64"),
            shared("above", words, "a bit per column: above the threshold"),
            shared("equal", words, "a bit per column: equal to the threshold"),
            *(
                (shared("coarse", 2 * knobs.group * COARSE, "coarse sums of all CTAs, by round"),)
                if knobs.group > 1 else ()
            ),
            *(
                (
                    shared(
                        "stash", stashed * knobs.threads * knobs.keep,
                        "keys of a row's first batches, between passes",
                    ),
                )
                if stashed else ()
            ),
            *(
                ()
                if knobs.sample
                else (shared("pages", knobs.threads, "the first entries of this CTA's part of the table"),)
            ),
            shared("sums", 32, "sums of each warp, within a scan"),
            shared("state", 8, "the result of a round, for all threads"),
            shared("counters", 8, "entries listed, entries kept, entries of lower ranks above and equal"),
            private("keys", knobs.keep, "uint32", "a batch: a column per lane, a word of 32 per key"),
            private("digits", knobs.keep // 2, "uint32", "first digits of the batch, two per word"),
            private("mine", BINS // knobs.threads, "int32", "bins of a round"),
            *(
                (
                    private("ahead", knobs.keep, "uint32", "the next batch: four columns per lane"),
                    private("few", few, "uint32", "keys of the sample"),
                    private("few_digits", few // 2, "uint32", "first digits of the sample"),
                )
                if knobs.sample else ()
            ),
        ),
        pipelines=(),
        mmas=(),
        grid=(dim("rows"), knobs.group),
        axes=("row", "rank"),
        cluster=(1, knobs.group, 1),
        group=(1,) if knobs.group > 1 else (),
        constants=vars(c),
        ctas_per_sm=knobs.resident,
        min_ctas_per_sm=min_ctas_per_sm_of(knobs, arch),
    )  # fmt: skip
