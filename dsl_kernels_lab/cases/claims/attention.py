"""Claims of document 001: cycles inside an attention kernel."""

from __future__ import annotations

from collections.abc import Mapping

from .judging import Figures, Holds, Records, claim, counter, share, untested

CASE = "gqa_regions"
# Cycles of an iteration of the document's kernel.
CYCLES = 2070
# Rows of a warpgroup, keys and head elements of its tile, dense fp16 FLOP of an SM per clock.
PRODUCT = {"rows": 64, "keys": 128, "dim": 128, "flop_per_clock": 4096}


def _product_cycles(rows: int, keys: int, dim: int, flop_per_clock: int) -> float:
    """Tensor-core cycles of one product of a warpgroup."""
    return 2.0 * rows * keys * dim / flop_per_clock


@claim(
    "001",
    "regions-add-up",
    "The four regions of an iteration add up to 2070 cycles: 31.7, 2.9, 65.1 and 0.3 %.",
    {"regions": (657, 59, 1347, 7), "said_cycles": CYCLES, "said": (31.7, 2.9, 65.1, 0.3)},
)
def _regions(regions: tuple[int, ...], said_cycles: int, said: tuple[float, ...]) -> tuple[Holds, str]:
    shares = [round(100 * r / said_cycles, 1) for r in regions]
    return sum(regions) == said_cycles and shares == list(said), f"{sum(regions)} cycles, {shares} %"


@claim(
    "001",
    "product-cycles",
    "A 128-key product takes 450 (PV) and 222 (QK) cycles of the tensor core.",
    {"said": (450, 222), **PRODUCT},
)
def _products(
    said: tuple[int, ...], rows: int, keys: int, dim: int, flop_per_clock: int
) -> tuple[Holds, str]:
    floor = _product_cycles(rows, keys, dim, flop_per_clock)
    words = (
        f"{rows}x{keys}x{dim} at {flop_per_clock} fp16 FLOP a clock and SM takes {floor:.0f} cycles at least"
    )
    return min(said) >= floor, words


@claim(
    "001",
    "tensor-utilisation",
    "The tensor core is 65 % busy in iterations of 2070 cycles.",
    {"said": 0.65, "cycles": CYCLES, "products": 4, **PRODUCT},
)
def _utilisation(
    said: float, cycles: int, products: int, rows: int, keys: int, dim: int, flop_per_clock: int
) -> tuple[Holds, str]:
    each = _product_cycles(rows, keys, dim, flop_per_clock)
    busy = products * each / cycles
    words = (
        f"two warp groups' two products of {each:.0f} cycles fill {products * each:.0f} of {cycles} cycles, "
        f"{share(busy)}"
    )
    return abs(busy - said) < 0.02, words


@claim(
    "001",
    "idle-cycles",
    "The tensor core idles about 726 cycles an iteration.",
    {"said": 726, "cycles": CYCLES, "products": 4, **PRODUCT},
)
def _idle(
    said: int, cycles: int, products: int, rows: int, keys: int, dim: int, flop_per_clock: int
) -> tuple[Holds, str]:
    busy = products * _product_cycles(rows, keys, dim, flop_per_clock)
    words = f"the products alone need {busy:.0f} of the {cycles} cycles: {cycles - busy:.0f} are left"
    return abs(cycles - busy - said) <= 0.1 * said, words


def _parts(records: Records) -> Figures:
    from .. import gqa_regions

    counted = gqa_regions.spent_of(records[CASE])
    alone = gqa_regions.parts(counted, "128x128")
    whole = counted["128x128"]["attend"]["all"]
    return {"softmax": alone["the softmax"], "products": alone["the products"], "whole": whole}


@claim("001", "softmax-paces", "Softmax paces the loop: 65 % of an iteration.", _parts, CASE)
def _softmax_paces(softmax: float, products: float, whole: float) -> tuple[Holds, str]:
    words = (
        f"this project's kernel of the same tile takes {whole:.0f} cycles, "
        f"{products:.0f} for the products alone, {softmax:.0f} for the softmax alone; "
        f"{whole - max(products, softmax):.0f} are not hidden"
    )
    return softmax > products, words


def _waits(records: Records) -> Figures:
    from .. import gqa_regions

    counted = gqa_regions.spent_of(records[CASE])
    return {
        "waits": counted["128x128"]["attend"]["release v"],
        "whole": counted["128x128"]["attend"]["all"],
        "without": counted["128x128 no overlap"]["attend"]["all"],
    }


@claim(
    "001",
    "overlap-hides",
    "Softmax hides the second product: behind it the product is waited for in 0.3 % of an iteration.",
    _waits,
    CASE,
)
def _overlap_hides(waits: float, whole: float, without: float) -> tuple[Holds, str]:
    words = (
        f"{waits:.0f} of {whole:.0f} cycles in this project's kernel, {share(waits / whole)}; "
        f"with no overlap at all {without:.0f} cycles"
    )
    return waits / whole < 0.01, words


def _clusters(records: Records) -> Figures:
    stall = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
    launches: Mapping[str, str] = {"alone": "square", "shared": "square_cluster"}
    return {name: counter(records, CASE, launch, stall) for name, launch in launches.items()}


@claim(
    "001",
    "multicast",
    "Multicast of K and V brings long-scoreboard stalls from 3.09 to 0.19.",
    _clusters,
    CASE,
)
def _multicast(alone: float, shared: float) -> tuple[Holds, str]:
    words = (
        f"{alone:.2f} cycles an issue without a cluster, "
        f"{shared:.2f} where two CTAs share tiles of the same size"
    )
    return shared < alone / 4, words


untested(
    "001",
    "fa3-gap",
    "6 to 16 % are left to FlashAttention 3.",
    "the document's kernel was not run; of FlashAttention 3 there are times and counters "
    "(docs/beside_fa3.md)",
)
