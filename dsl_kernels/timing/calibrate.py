"""What the memory of this GPU allows: rows fetched by every way the GPU has, of which the fastest is the ceiling.

The kernels (`ceilings.cu`) do nothing but fetch rows. They are compiled by NVRTC when they are first measured, so that
every run compares its kernels with the ceiling of the same card on the same day. `calibrate` records the curve of a
card: row bytes x footprint x bytes in flight x order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from ..arguments import checked
from ..errors import InvalidArgumentError
from .ceilings import METHODS, Ceilings, Point
from .cuda import Module

SOURCE = Path(__file__).with_name("ceilings.cu")
STAGES = 5
# Shape of the asynchronous copies and of the plain loads that one warp has in flight, in 16-byte chunks a lane.
DEPTH, UNROLL, LOADS = 4, 4, 8
DEFINES = {"STAGES": STAGES, "DEPTH": DEPTH, "UNROLL": UNROLL, "LOADS": LOADS}
ASYNC_WARP, LOADS_WARP = DEPTH * UNROLL * 512, LOADS * 512
BULK_BLOCKS = 2
PIECE = 512
READ_ROW = 8192
# Ids of a list that a warp takes at a time.
LIST_GROUP = 4


@dataclass(frozen=True)
class Setting:
    """One way to fetch rows: a method of `METHODS`, the bytes that an SM shall have in flight, and how rows are dealt out.

    By `lists` (not by bulk copies) a block walks whole rows of two-dimensional ids, else neighbouring ids go to other SMs.
    """

    method: str
    in_flight: int
    lists: bool = False

    def launch(self, row_bytes: int, rows: int, sms: int) -> tuple[str, int, int, int, int]:
        """Kernel, rows a warp takes at a time, blocks an SM, threads a block, dynamic shared memory a block."""
        if self.method in ("bulk_rows", "bulk_pieces"):
            stage = self.in_flight // (BULK_BLOCKS * STAGES)
            group = max(1, min(32, stage // row_bytes, -(-rows // (BULK_BLOCKS * sms))))
            return "gather_bulk", group, BULK_BLOCKS, 32, STAGES * group * row_bytes
        asynchronous = self.method == "cp_async"
        warps = max(1, self.in_flight // (ASYNC_WARP if asynchronous else LOADS_WARP))
        blocks = -(-warps // 16)
        warps //= blocks
        # Of a list few at a time, so that a block's warps stay together.
        group = max(1, min(LIST_GROUP if self.lists else 32, -(-rows // (blocks * warps * sms))))
        name = "gather_async" if asynchronous else "gather_loads"
        return name, group, blocks, 32 * warps, warps * ASYNC_WARP if asynchronous else 0

    def stretch(self, group: int, threads: int, length: int) -> int:
        """How many ids a block walks side by side, of lists of that length; 0 where neighbouring ids go to other SMs.

        Lists that are no whole rounds of a block's warps are dealt out like others.
        """
        return length if self.lists and length % (group * threads // 32) == 0 else 0


# Every method at the depths among which its best was found.
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
        InvalidArgumentError: no cache or more than two, another rank or type, or not all on one GPU.
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
    """Read a contiguous buffer from its start to its last whole row of 8 KB.

    Raises:
        InvalidArgumentError: not contiguous, or not on a GPU.
    """
    _require_cuda("buffer", buffer, buffer.is_contiguous(), "a contiguous buffer")
    rows = buffer.numel() * buffer.element_size() // READ_ROW
    _launch(setting, buffer, None, None, rows, [READ_ROW], [READ_ROW])


def fastest(
    make: Callable[[Setting], Sequence[Callable[[], Any]]], replays: int = 30
) -> tuple[float, Setting]:
    """Microseconds of the fastest setting of a ceiling under a CUDA graph, and that setting.

    Args:
        make: the turns of a rotation for a setting.
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
# Bytes that one measured launch fetches, at most so many rows.
FETCHED, MOST_ROWS = 256 << 20, 4 << 20
LAUNCHES = 6


def calibrate(
    row_bytes: Sequence[int] = ROW_BYTES,
    footprints: Sequence[int] = FOOTPRINTS,
    on_point: Callable[[Point], None] = lambda point: None,
) -> Ceilings:
    """Measure the ceilings of the current GPU.

    Args:
        on_point: called after each point, for progress.

    Raises:
        LaunchError, ToolchainError: a kernel does not compile or launch.
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
    held = footprint // width
    rows = buffer[: held * width].view(held, width)
    count = max(1024, min(MOST_ROWS, FETCHED // width))
    generator = torch.Generator(buffer.device).manual_seed(width)
    drawn = torch.randint(held, (count,), generator=generator, device=buffer.device, dtype=torch.int32)
    for order in ORDERS:
        ids = drawn if order == "random" else drawn.sort().values
        found = [(_rate(partial(gather, {"rows": rows}, ids, s), count * width), s) for s in SETTINGS]
        rate, setting = max(found, key=lambda item: item[0])
        best = {name: round(max(r for r, s in found if s.method == name), 1) for name in METHODS}
        yield Point(width, footprint, order, round(rate, 1), setting.method, setting.in_flight, best)


def _rate(call: Callable[[], None], moved: float) -> float:
    """GB/s of a call, the best of a few launches in a row behind one that is not counted."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    best = 0.0
    for _ in range(2):
        # While it runs, the host gets ahead: else the first event would wait for the first launch to be made.
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
    arguments = [first, second, ids, wide(rows), group, widths[0], second_width, wide(strides[0]), wide(second_stride)]  # fmt: skip
    if name == "gather_bulk":
        arguments.append(PIECE if setting.method == "bulk_pieces" else max(widths))
    else:
        arguments += [stretch, *([sink] if name == "gather_loads" else [])]
    grid = max(1, min(blocks * module.sms, -(-rows // (stretch or group))))
    # In a graph as the kernels that they are compared with; one by one it would cost the host more than a small fetch takes.
    dependent = torch.cuda.is_current_stream_capturing()
    module.launch(name, grid, threads, arguments, shared, dependent=dependent)


@lru_cache(maxsize=8)
def _module(device: int) -> tuple[Module, torch.Tensor]:
    """The kernels on a GPU, and memory that they never write."""
    return Module(SOURCE, DEFINES, device), torch.zeros(1, dtype=torch.int32, device=f"cuda:{device}")
