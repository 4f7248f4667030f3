"""The limits of this GPU's memory: rows are fetched in every way that it has, and the fastest is the ceiling.

The kernels (`ceilings.cu`) only fetch rows. NVRTC compiles them at their first measurement, so every run
compares its kernels with the ceiling of the same card on the same day. `calibrate` records the curve of a
card over row bytes, footprint, bytes in flight and order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from dsl_kernels.arguments import checked
from dsl_kernels.errors import InvalidArgumentError

from .ceilings import METHODS, Ceilings, Point
from .cuda import Module

SOURCE = Path(__file__).with_name("ceilings.cu")
STAGES = 5
# What one warp has in flight, in 16-byte chunks per lane: DEPTH groups of UNROLL asynchronous copies, or
# LOADS loads.
DEPTH, UNROLL, LOADS = 4, 4, 8
DEFINES = {"STAGES": STAGES, "DEPTH": DEPTH, "UNROLL": UNROLL, "LOADS": LOADS}
ASYNC_WARP, LOADS_WARP = DEPTH * UNROLL * 512, LOADS * 512
BULK_BLOCKS = 2
PIECE = 512
READ_ROW = 8192
# How many ids of a list a warp takes at a time.
LIST_GROUP = 4


@dataclass(frozen=True)
class Setting:
    """One way to fetch rows: a method of `METHODS`, bytes in flight per SM, and how rows are spread over SMs.

    With `lists` (not for bulk copies) a block walks whole rows of two-dimensional ids; otherwise adjacent ids
    go to different SMs.
    """

    method: str
    in_flight: int
    lists: bool = False

    def launch(self, row_bytes: int, rows: int, sms: int) -> tuple[str, int, int, int, int]:
        """Kernel, rows per warp and round, blocks per SM, threads per block, shared memory per block."""
        if self.method in ("bulk_rows", "bulk_pieces"):
            stage = self.in_flight // (BULK_BLOCKS * STAGES)
            group = max(1, min(32, stage // row_bytes, -(-rows // (BULK_BLOCKS * sms))))
            return "gather_bulk", group, BULK_BLOCKS, 32, STAGES * group * row_bytes
        asynchronous = self.method == "cp_async"
        warps = max(1, self.in_flight // (ASYNC_WARP if asynchronous else LOADS_WARP))
        blocks = -(-warps // 16)
        warps //= blocks
        # Take few rows of a list at a time, so that a block's warps stay close together.
        group = max(1, min(LIST_GROUP if self.lists else 32, -(-rows // (blocks * warps * sms))))
        name = "gather_async" if asynchronous else "gather_loads"
        return name, group, blocks, 32 * warps, warps * ASYNC_WARP if asynchronous else 0

    def stretch(self, group: int, threads: int, length: int) -> int:
        """The length of the lists that a block walks whole; 0 where adjacent ids go to different SMs.

        Lists whose length is not a multiple of what a block's warps take in a round are not walked whole.
        """
        return length if self.lists and length % (group * threads // 32) == 0 else 0


# Every method, at the depths that turned out best for it.
SETTINGS = (
    *(Setting("bulk_rows", size << 10) for size in (48, 96, 192)),
    *(Setting("bulk_pieces", size << 10) for size in (96, 192)),
    *(Setting("cp_async", size << 10) for size in (32, 64, 128, 192)),
    *(Setting("loads", size << 10) for size in (32, 64, 128)),
    *(Setting(method, 128 << 10, lists=True) for method in ("cp_async", "loads")),
)


@checked
def gather(cache: dict[str, torch.Tensor], ids: torch.Tensor, setting: Setting) -> None:
    """Fetch the rows `ids` (int32, -1 skipped) of one or two caches, each [n, width] with its own stride.

    Widths and strides are whole 16-byte chunks.

    Raises:
        InvalidArgumentError: there is no cache or more than two, or a tensor has another rank or type or is
            not on the GPU.
    """
    if not 1 <= len(cache) <= 2:
        raise InvalidArgumentError(
            "cache", expected="one or two tensors", got=str(len(cache)), fix="pass those"
        )
    for name, part in cache.items():
        _require_cuda(name, part, part.dim() == 2, "rows [n, width]")
    _require_cuda("ids", ids, ids.dtype == torch.int32 and ids.is_contiguous(), "contiguous int32 ids")
    parts = list(cache.values())
    widths = [part.shape[1] * part.element_size() for part in parts]
    strides = [part.stride(0) * part.element_size() for part in parts]
    _launch(setting, parts[0], parts[1] if len(parts) > 1 else None, ids, ids.numel(), widths, strides)


@checked
def read(buffer: torch.Tensor, setting: Setting) -> None:
    """Read the whole 8 KiB rows of a contiguous buffer.

    Raises:
        InvalidArgumentError: the buffer is not contiguous, or not on a GPU.
    """
    _require_cuda("buffer", buffer, buffer.is_contiguous(), "a contiguous buffer")
    rows = buffer.numel() * buffer.element_size() // READ_ROW
    _launch(setting, buffer, None, None, rows, [READ_ROW], [READ_ROW])


def fastest(
    make: Callable[[Setting], Sequence[Callable[[], Any]]], replays: int = 30
) -> tuple[float, Setting]:
    """The fastest setting of a ceiling under a CUDA graph: its microseconds, and the setting.

    Args:
        make: Gives the turns of a rotation for a setting.
        replays: Replays of the two best settings; the others get four.
    """
    from . import bench

    rough = sorted(
        ((bench.graph_time(make(setting), replays=4).us, setting) for setting in SETTINGS),
        key=lambda item: item[0],
    )
    return min(
        ((bench.graph_time(make(setting), replays=replays).us, setting) for _, setting in rough[:2]),
        key=lambda item: item[0],
    )


ROW_BYTES = (16, 32, 64, 128, 256, 512, 656, 1152, 2048, 4096, 8192)
FOOTPRINTS = (16 << 20, 128 << 20, 512 << 20, 4 << 30)
ORDERS = ("random", "sorted")
# Bytes that one measured launch fetches, and the most rows.
FETCHED, MOST_ROWS = 256 << 20, 4 << 20
LAUNCHES = 6


def calibrate(
    row_bytes: Sequence[int] = ROW_BYTES,
    footprints: Sequence[int] = FOOTPRINTS,
    on_point: Callable[[Point], None] = lambda point: None,
) -> Ceilings:
    """Measure the ceilings of the current GPU.

    Args:
        row_bytes: Widths of rows to measure.
        footprints: Bytes of the buffers to fetch from; those beyond half of the free memory are skipped.
        on_point: Called after each point, to show progress.

    Raises:
        LaunchError: a kernel does not launch.
        ToolchainError: a kernel does not compile.
    """
    from . import bench

    gpu = torch.cuda.get_device_name()
    device = torch.device("cuda", torch.cuda.current_device())
    free = torch.cuda.mem_get_info(device)[0]
    sizes = [size for size in footprints if size <= free // 2]
    buffer = torch.empty(max(sizes), dtype=torch.uint8, device=device)
    buffer.random_(0, 256)
    points: list[Point] = []
    for width in row_bytes:
        for footprint in sizes:
            points += _points(buffer, width, footprint)
            for point in points[-len(ORDERS) :]:
                on_point(point)
    near, far = min(sizes), max(sizes)
    reads = [_rate(partial(read, buffer, setting), buffer.numel()) for setting in SETTINGS]
    dram = max(*reads, *(p.gbps for p in points if p.footprint == far and p.order == "sorted"))
    l2 = max(p.gbps for p in points if p.footprint == near)
    return Ceilings(gpu, round(dram, 1), l2, tuple(points), bench.environment())


def _points(buffer: torch.Tensor, width: int, footprint: int) -> Iterator[Point]:
    count_of_rows = footprint // width
    rows = buffer[: count_of_rows * width].view(count_of_rows, width)
    count = max(1024, min(MOST_ROWS, FETCHED // width))
    generator = torch.Generator(buffer.device).manual_seed(width)
    drawn = torch.randint(
        count_of_rows, (count,), generator=generator, device=buffer.device, dtype=torch.int32
    )
    for order in ORDERS:
        ids = drawn if order == "random" else drawn.sort().values
        rates = [(_rate(partial(gather, {"rows": rows}, ids, s), count * width), s) for s in SETTINGS]
        rate, setting = max(rates, key=lambda item: item[0])
        best = {name: round(max(r for r, s in rates if s.method == name), 1) for name in METHODS}
        yield Point(width, footprint, order, round(rate, 1), setting.method, setting.in_flight, best)


def _rate(call: Callable[[], None], moved: float) -> float:
    """GB/s of a call: the better of two series of back-to-back launches, each after a warm-up launch."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    best = 0.0
    for _ in range(2):
        # The host gets ahead while this launch runs; otherwise the first event would include the launch
        # latency.
        call()
        begin.record()
        for _ in range(LAUNCHES // 2):
            call()
        end.record()
        end.synchronize()
        best = max(best, moved * (LAUNCHES // 2) / begin.elapsed_time(end) / 1e6)
    return best


def _require_cuda(name: str, tensor: torch.Tensor, fits: bool, expected: str) -> None:
    if not (tensor.is_cuda and fits):
        got = f"{tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
        raise InvalidArgumentError(name, expected=f"{expected} on a GPU", got=got, fix="move or convert it")


def _launch(
    setting: Setting,
    first: torch.Tensor,
    second: torch.Tensor | None,
    ids: torch.Tensor | None,
    rows: int,
    widths: list[int],
    strides: list[int],
) -> None:
    module, sink = _module(first.device.index)
    name, group, blocks, threads, shared = setting.launch(sum(widths), rows, module.sms)
    wide = ctypes.c_longlong
    stretch = setting.stretch(group, threads, ids.shape[1] if ids is not None and ids.dim() == 2 else 0)
    second_width, second_stride = (widths[1], strides[1]) if len(widths) > 1 else (0, 0)
    arguments = [
        first, second, ids, wide(rows), group, widths[0], second_width, wide(strides[0]), wide(second_stride),
    ]  # fmt: skip
    if name == "gather_bulk":
        arguments.append(PIECE if setting.method == "bulk_pieces" else max(widths))
    else:
        arguments += [stretch, *([sink] if name == "gather_loads" else [])]
    grid = max(1, min(blocks * module.sms, -(-rows // (stretch or group))))
    # In a graph, launch like the kernels that are compared with the ceiling. Outside of one, a dependent
    # launch costs the host more time than a small fetch takes.
    dependent = torch.cuda.is_current_stream_capturing()
    module.launch(name, grid, threads, arguments, shared, dependent=dependent)


@lru_cache(maxsize=8)
def _module(device: int) -> tuple[Module, torch.Tensor]:
    """The kernels on a GPU, and the sink that they never write."""
    return Module(SOURCE, DEFINES, device), torch.zeros(1, dtype=torch.int32, device=f"cuda:{device}")
