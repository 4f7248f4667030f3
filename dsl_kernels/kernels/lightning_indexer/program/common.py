"""The common part of decode and prefill scoring: sizes, input buffers, tensor maps and products."""

from __future__ import annotations

from types import SimpleNamespace

from ....abi import TensorMap
from ....problems import layouts
from ....tile.channel import Channel
from ....tile.frontend import Int32, Names, recorded
from ....tile.lang import Buffer, Engine, Mma, Pipeline, Reader, Size, Space
from ....tile.text import Global, Recorder, Value, View
from .. import functions as leaf
from .. import problem
from ..leaves import blackwell as sm100

# A page of the cache holds 64 rows of 128 e4m3 and then 64 fp32 scales: 66 rows of 128 bytes, or PAGE_WORDS
# words.
INDEX_DIM, PAGE = Size(layouts.INDEX_DIM, "INDEX_DIM"), Size(problem.PAGE, "PAGE")
PAGE_ROWS = Size(PAGE + 2, "PAGE_ROWS")
PAGE_WORDS = Size(PAGE_ROWS * INDEX_DIM // 4, "PAGE_WORDS")
SCALE_WORD = Size(PAGE * INDEX_DIM // 4, "SCALE_WORD")
# A copy holds GRAIN keys where pages are of any size, and a block of keys where the table names blocks.
GRAIN = Size(problem.GRAIN, "GRAIN")
BLOCK = Size(problem.BLOCK, "BLOCK")

SHARED, TENSOR, REGISTER = Space.SHARED, Space.TENSOR, Space.REGISTER
FP8 = "float8_e4m3"
# The greatest N of a product. Hopper: 128, which is 2 query rows of 64 heads or 4 rows of 32 or fewer, with
# four consumer warpgroups. Blackwell prefill: 256, half of it per scoring group. Blackwell decode of several
# queries: 128. A product of 128 keys reads (128 + N) * 128 bytes of shared memory at 128 bytes per cycle and
# multiplies for 2 N cycles. Below N = 128 the reads take longer. Four accumulators of 128 columns fill the
# tensor memory.
HOPPER_N = 128
HOPPER_WARPGROUPS = 4
# A product holds at most four queries: each of the four lanes of a quad takes one.
MOST_ROWS = 4
# Floats in 128 bytes.
LEAST_PITCH = 32
BLACKWELL_N = 256
BLACKWELL_DECODE_N = 128

# Weights of heads that a thread of a Blackwell scoring group holds at once. With four groups, one scheduler
# has a fifth warp, so a thread has 96 registers. These hold the scores of a row of 64 heads and half of its
# weights.
WEIGHTS = 32

# START_TILES: the time that a prefill CTA takes to begin, in key tiles. SPLITS: launch rules weigh so many
# more splits of a block than fill the SMs once.
START_TILES, SPLITS = 2, 8


class Kernel(Names):
    """Pipelines, operands, sizes, scalars and buffers of scoring.

    The schedule decides which buffers exist.
    """

    keys: Channel
    key_factors: Channel
    queries: Channel
    query_factors: Channel
    scores: Channel
    block_table: Global
    k_cache: Global
    k_end: Global
    k_start: Global
    logits: Global
    maxima: Global
    q_scales: Global
    seq_lens: Global
    weights: Global
    b: Int32
    block_size: Int32
    compressed: Int32
    ctas: Int32
    has_maxima: Int32
    index_dim: Int32
    k_cache_stride: Int32
    max_pages: Int32
    mx: Int32
    next_n: Int32
    page_size: Int32
    s: Int32
    sharing: Int32
    skip_below: Int32
    skv: Int32
    splits: Int32
    acc: View
    begin: View
    by_key: View
    by_query: View
    length: View
    logit: View
    scale: View
    size: View
    weight: View


def rows_of_product(k: SimpleNamespace, most_columns: int) -> Size:
    """Queries of a product of at most `most_columns` columns."""
    return Size(min(k.queries, MOST_ROWS, most_columns // k.heads), "ROWS_PER_PRODUCT")


def of_four_bits(k: SimpleNamespace) -> bool:
    """Whether keys and queries have 4 bits."""
    return k.kind in problem.FOUR_BITS


def of_any(k: SimpleNamespace) -> bool:
    """Whether a kernel takes pages of any size, and fewer dims and heads than it is built for.

    Zeros fill the dims and heads that are left.
    """
    return k.kind != "plain" and not of_four_bits(k)


def of_blocks(k: SimpleNamespace) -> bool:
    """Whether entries of the table may name blocks of tokens. Such rows have one query."""
    return bool(k.kind == "blocks")


def grain(k: SimpleNamespace) -> Size:
    """Keys per copy, where a kernel takes pages of any size."""
    return BLOCK if of_blocks(k) else GRAIN


def few(k: SimpleNamespace) -> bool:
    """Whether a thread has enough registers for scores and weights without those of another warp."""
    return bool(k.heads < LEAST_PITCH)


def scales_apart(k: SimpleNamespace) -> int | None:
    """The distance between the scales of two copies of keys, in floats; None where scales are dense.

    The scales of a copy begin on a multiple of 128 bytes.
    """
    return LEAST_PITCH if of_any(k) and k.mode == "decode" else None


def _scales(k: SimpleNamespace) -> Size:
    """Floats for the scales of a tile of keys, gaps included."""
    apart = scales_apart(k)
    return k.tile if apart is None else Size(k.tile // grain(k) * apart, "TILE_SCALES")


def weight_pitch(k: SimpleNamespace) -> Size:
    """The distance between the weights of two queries, in floats.

    A copy by a tensor map begins on a multiple of 128 bytes.
    """
    return Size(LEAST_PITCH, "WEIGHT_PITCH") if few(k) else k.heads


def columns(k: SimpleNamespace, rows: int) -> Size:
    """Columns of a product: the heads of `rows` query rows."""
    return Size(rows * k.heads, "COLUMNS")


def weights_of(k: SimpleNamespace, rows: int) -> Size:
    """The distance between the weights of two products of `rows` query rows each, in floats."""
    return Size(rows * LEAST_PITCH, "WEIGHT_COLUMNS") if few(k) else columns(k, rows)


def input_buffers(k: SimpleNamespace, query_stages: int) -> tuple[Buffer, ...]:
    return (
        Buffer("keys", SHARED, (k.tile, INDEX_DIM), FP8, k.stages, swizzle=128),
        Buffer("key_scales", SHARED, (_scales(k),), "float32", k.stages),
        Buffer("queries", SHARED, (k.queries * k.heads, INDEX_DIM), FP8, query_stages, swizzle=128),
        Buffer("head_weights", SHARED, (k.queries * weight_pitch(k),), "float32", query_stages),
    )


def inputs(
    k: SimpleNamespace, readers: tuple[Reader, ...], query_stages: int = 1, rounds: str = "loop"
) -> tuple[Pipeline, ...]:
    """Rings of key tiles and of queries.

    A decode uses a query slot per sequence, a prefill uses one slot once.
    """
    return (
        Pipeline("keys", ("keys", "key_scales"), "load", Engine.BULK, readers, k.stages),
        Pipeline("queries", ("queries", "head_weights"), "load", Engine.BULK, readers, query_stages, rounds),
    )


def rows_map(
    name: str,
    operand: str,
    extents: tuple[str, ...],
    strides: tuple[str, ...],
    box: tuple[int, ...],
    dim: str = "128",
) -> TensorMap:
    """Boxes of rows of 128 bytes, along axes of `extents` rows and `strides` bytes, innermost first.

    Zeros fill a row of fewer than 128 bytes, where `dim` says so.
    """
    return TensorMap(
        name, operand, "UINT8", (dim, *extents), strides, (INDEX_DIM, *box), (1, *(1 for _ in box)),
        swizzle="128B", l2_promotion="L2_128B",
    )  # fmt: skip


def vector_map(name: str, operand: str, count: str, box: int) -> TensorMap:
    """Boxes of `box` floats; zeros past the end."""
    return TensorMap(name, operand, "FLOAT32", (count,), (), (box,), (1,))


def weights_map(rows: str, k: SimpleNamespace) -> TensorMap:
    """Boxes of the weights of a query; zeros for heads or queries past the last."""
    return TensorMap(
        "weight_map", "weights", "FLOAT32", ("index_heads", rows), ("weights_stride * 4",), (k.heads, 1),
        (1, 1)
    )  # fmt: skip


def score_product(unit: str, role: str, m: int, n: int, acc: str) -> Mma:
    """The product S = K Q^T of a tile."""
    return Mma(
        "score", unit, role, m, n, INDEX_DIM, FP8, a="keys", b="queries", acc=acc,
        doc="S[keys, heads] = K Q^T",
    )  # fmt: skip


def hopper_registers(k: SimpleNamespace, keys: int, each: int, *more: str) -> tuple[Buffer, ...]:
    """Registers of the threads of a scoring role, with `more` int32.

    Each of the four lanes of a quad ends with one logit, or two.
    """
    logits = max(1, each // 2)
    registers = (
        ("weight", each * k.heads // 4, "float32"),
        ("scale", logits, "float32"),
        ("logit", logits, "float32"),
        *((text, 1, "int32") for text in more),
    )
    return (
        Buffer("acc", REGISTER, (keys, columns(k, each)), "float32", role="score"),
        *(Buffer.own(text, "score", count, dtype, 2 * keys) for text, count, dtype in registers),
    )  # fmt: skip


def hopper_groups(k: SimpleNamespace) -> tuple[int, int]:
    """The number of scoring groups of a prefill, and the keys per product.

    Each group has query rows of its own. All groups read the same key tile.
    """
    groups = min(HOPPER_WARPGROUPS, max(1, k.queries // rows_of_product(k, HOPPER_N)))
    return groups, Size(HOPPER_WARPGROUPS // groups * 64, "BLOCK")


def blackwell_groups(k: SimpleNamespace) -> tuple[int, int, int]:
    """Of a decode: accumulator rings, scoring groups that share a ring, queries per product.

    Products go to the rings in turn. One ring is enough where one product holds all queries. Two groups share
    a product of several queries, and each group takes half of them.
    """
    each = rows_of_product(k, BLACKWELL_DECODE_N)
    return 1 if each == k.queries else 2, min(each, 2), each


def blackwell_registers(role: str, columns: int, weights: int, **more: int) -> tuple[Buffer, ...]:
    """Registers of a scoring thread: a key, `columns` scores, `weights` weights of a query, `more` int32."""
    g = role.removeprefix("score_")
    floats = {"dots": columns, "weight": weights, "scale": 1, "logit": 1}
    return tuple(
        Buffer.own(f"{text}_{g}", role, each, dtype)
        for dtype, counts in (("float32", floats), ("int32", more))
        for text, each in counts.items()
    )


@recorded
def weigh_row(m: Recorder, logit: View, dots: View, weight: View, head_weights: View, first: Value) -> None:
    """Blackwell: the logit of each thread's key and a row.

    The row's weights begin at `first` in shared memory.
    """
    weights = min(WEIGHTS, m.k.heads)
    for part in range(m.k.heads // weights):
        sm100.load_weights(m, weight, head_weights, first + part * weights)
        leaf.weigh_one(m, logit, dots, part, weight, fresh=part == 0)
