"""A Triton attention beside torch's, whose backend is told by the name of the kernel that it runs.

Batch 1, 32 heads, 2048 tokens, 128 dims, causal, fp16. Each backend of `scaled_dot_product_attention` is
forced in turn, and its kernel's name is read from the activity records.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dsl_kernels._discover import later
from dsl_kernels.problems.base import Comparison

from . import _figures
from .base import Case, CaseRows, Expectation, Launch, Record, rows_of, times

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch = later("torch", globals())
    F = later("torch.nn.functional", globals())

DEVICE = "cuda"
SHAPE = (1, 32, 2048, 128)
# A causal mask leaves half of the products.
FLOPS = 2.0 * SHAPE[0] * SHAPE[1] * SHAPE[2] ** 2 * SHAPE[3]
LIMIT = 5e-3
BACKENDS = ("default", "FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
# Query rows, key rows, warps, stages. The autotuner of the founding document chose 128 query rows.
TILES = (
    (64, 64, 4, 2),
    (64, 64, 4, 3),
    (64, 64, 4, 4),
    (64, 128, 4, 2),
    (128, 64, 4, 2),
    (128, 64, 4, 3),
    (128, 64, 8, 2),
    (128, 64, 8, 3),
    (128, 64, 8, 4),
    (128, 128, 8, 2),
    (128, 128, 8, 3),
)


def draw() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    return tuple(
        torch.randn(SHAPE, generator=generator, device=DEVICE, dtype=torch.float16) for _ in range(3)
    )  # type: ignore[return-value]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: list[int]) -> torch.Tensor:
    """Causal attention of some heads in float64, [batch, heads, n, d]; runs on any device."""
    q, k, v = (x[:, heads].double() for x in (q, k, v))
    n = q.shape[2]
    s = q @ k.transpose(-1, -2) * q.shape[3] ** -0.5
    hidden = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(s.masked_fill(hidden, float("-inf")), dim=-1) @ v


def compare(got: torch.Tensor, expected: torch.Tensor, heads: list[int]) -> Comparison:
    """Relative error of the sampled heads."""
    comparison = Comparison()
    error = (got[:, heads].double() - expected).norm() / expected.norm()
    comparison.require("relative error", float(error), LIMIT)
    return comparison


def _compare_call(call: Callable[[], torch.Tensor], expected: torch.Tensor, heads: list[int]) -> Comparison:
    return compare(call(), expected, heads)


def sdpa(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """torch's attention through one backend, or through torch's choice."""
    if backend == "default":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, backend)):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def kernel_names(call: Callable[[], Any]) -> list[str]:
    """Device functions that a call launches, longest first, from the activity records."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    kernels = [event for event in profiler.key_averages() if event.device_type == DeviceType.CUDA]
    return [event.key for event in sorted(kernels, key=lambda event: -event.device_time_total)]


def measure(to: CaseRows) -> None:
    q, k, v = draw()
    heads = [0, SHAPE[1] - 1]
    expected = reference(q, k, v, heads)
    for backend in BACKENDS:
        call = partial(sdpa, backend, q, k, v)
        row = to.row(
            f"SDPA {backend}",
            partial(times, [call], 0.0, FLOPS),
            partial(_compare_call, call, expected, heads),
            kind="sdpa",
            backend=backend,
        )
        try:
            row["kernels"] = kernel_names(call) if "error" not in row else []
        except Exception as error:
            to.notes.append(f"no kernel names for {backend}: {error!r}")
    from . import _triton_attention as kernels
    from ._triton_mla import resources

    out = torch.empty_like(q)
    for tile in TILES:
        setting = kernels.Setting(*tile)
        kept: dict[str, Any] = {}

        def run(setting: Any = setting, kept: dict[str, Any] = kept) -> None:
            kept["compiled"] = kernels.forward(q, k, v, out, setting)

        def check(run: Callable[[], None] = run) -> Comparison:
            out.zero_()
            run()
            return compare(out, expected, heads)

        row = to.row(
            f"Triton {setting.label}",
            partial(times, [run], 0.0, FLOPS),
            check,
            kind="triton",
            rows=setting.rows,
            keys=setting.keys,
            warps=setting.warps,
            stages=setting.stages,
        )
        if "compiled" in kept:
            row |= resources(kept["compiled"])


def _triton_target(tile: tuple[int, int, int, int]) -> Launch:
    def prepare() -> Callable[[], Any]:
        from . import _triton_attention as kernels

        q, k, v = draw()
        return partial(kernels.forward, q, k, v, torch.empty_like(q), kernels.Setting(*tile))

    return Launch(prepare, "_forward")


def _sdpa_target(backend: str) -> Launch:
    return Launch(lambda: partial(sdpa, backend, *draw()), "flash|cudnn|fmha|sdpa")


def figure(record: Record) -> Any:
    """Time of every backend and tile, and where their warps wait."""
    rows = [*rows_of(record, "sdpa"), *rows_of(record, "triton")]
    rows = [row for row in rows if "us" in row and row.get("backend") not in ("MATH", "EFFICIENT_ATTENTION")]
    drawn, (left, right) = _figures.panels(
        2, "Causal attention, 32 heads, 2048 tokens, 128 dims", record, 6.0
    )
    names = [row["name"].replace("Triton ", "").replace("_ATTENTION", "") for row in rows]
    shown = left.barh(
        range(len(rows)),
        [row["us"] for row in rows],
        color=[_figures.COLOURS[row["kind"] == "triton"] for row in rows],
    )
    left.bar_label(shown, fmt="%.3g", fontsize=7)
    left.set_yticks(range(len(rows)), names, fontsize=7)
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    left.set_xlabel("µs")
    _figures.stalls(right, record)
    return drawn


TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
CASE = Case(
    name="triton_attention",
    question="Which kernel does torch's attention run, and where does a Triton attention lose to it?",
    source="003",
    measure=measure,
    draw=figure,
    launches={
        "triton_128x64_4w": _triton_target((128, 64, 4, 3)),
        "triton_128x64_8w": _triton_target((128, 64, 8, 3)),
        "triton_64x64_4w": _triton_target((64, 64, 4, 3)),
        "sdpa_default": _sdpa_target("default"),
        "sdpa_cudnn": _sdpa_target("CUDNN_ATTENTION"),
    },
    expected=(
        Expectation("sdpa_default", TENSOR, ">=", 40.0, "the tensor cores are the busy unit"),
        Expectation(
            "triton_128x64_8w",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "<",
            30.0,
            "no memory bound",
        ),
    ),
)
