"""Are the four warps of a warpgroup ordered when one of them overwrites what their wgmma read? For a Hopper
GPU.

    python benchmarks/probe_wgmma_order.py --build probe.cubin             # needs nvcc, but no GPU
    python benchmarks/probe_wgmma_order.py --cubin probe.cubin --json out.json

The second command needs this file, the cubin and NVIDIA's driver: no compiler, no network, no package.

Four warps multiply: D[64, 256] = A[64, 64] B[256, 64]^T, four wgmma of K = 16 in one group. As soon as its
own `wgmma.wait_group 0` has returned, warp 0 overwrites an operand in shared memory by generic stores.
Nothing orders those stores after the products of warp 3, which sleeps for a while at one place of its own.
Every CTA is one run, alone on its SM. All elements of an operand are equal, so each value of D shows whether
the old or the new operand made it:

old    all rows of the warp come from the old operand
new    all products after the sleep read what warp 0 wrote
mixed  neither

`apart` counts the runs in which warp 0 had overwritten the operand before warp 3's sleep ended: if it is 0,
warp 0's wait does not return before warp 3 arrives. `after` is the median clocks from the end of that sleep
to the end of warp 0's wait.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PLACES = {
    "none": "nowhere",
    "loop": "before its wgmma.fence, in a loop over %clock,",
    "fence": "before its wgmma.fence",
    "mma": "between its first wgmma.mma_async and its second",
    "wait": "between its last wgmma.mma_async and its wait_group",
}
"""Where warp 3 sleeps, by `nanosleep`: a branch there would make ptxas put another fence before the product.

ptxas moves a sleep that directly follows the fence to before it, and merges commit_group into the last
product, so no variant sleeps at these two places."""

TARGETS = {"a": "the rows of A of warp 3", "b": "all of B", "none": "nothing"}
"""What warp 0 overwrites."""

N, K, STEPS = 256, 64, 4
OLD = float(K)
VALUES = 16 * N
"""Values of D that each warp holds."""

WORDS = 8
"""Words that each warp writes: its values made by the old operand, by the new one, by neither; then the
clocks, counted from one moment of the CTA, at which its sleep, its wait and its store were over."""

ONE, TWO = 0x3F803F80, 0x40004000
"""Two bf16 ones, and two bf16 twos."""

ALONE = 100 << 10
"""Bytes of dynamic shared memory that keep other CTAs off the SM."""

MICROSECONDS = (1, 10, 100)


@dataclass(frozen=True)
class Variant:
    """One kernel.

    Args:
        place: where warp 3 sleeps.
        target: the operand that warp 0 overwrites.
        registers: A comes from registers.
        barrier: the four warps meet at a named barrier before warp 0 stores: a control.
    """

    place: str
    target: str
    registers: bool = False
    barrier: bool = False

    @property
    def name(self) -> str:
        a = "registers" if self.registers else "shared"
        return f"{self.place}_{self.target}_{a}" + ("_barrier" if self.barrier else "")

    @property
    def new(self) -> float:
        """The value of D if all products that warp 3 issues after its sleep read the new operand."""
        return OLD + (K - (16 if self.place == "mma" else 0))

    def __str__(self) -> str:
        a = "registers" if self.registers else "shared memory"
        met = ", after a barrier" if self.barrier else ""
        return (
            f"warp 3 sleeps {PLACES[self.place]}; A from {a}; warp 0 overwrites {TARGETS[self.target]}{met}"
        )


def variants() -> Iterator[Variant]:
    """All kernels; the controls have a barrier, no sleep, or no store."""
    for place in PLACES:
        for target, registers in (("a", False), ("b", False), ("b", True)):
            for barrier in (False, True):
                yield Variant(place, target, registers, barrier)
    yield Variant("fence", "none")


def _sleep(place: str, variant: Variant) -> str:
    """Warp 3's sleep, if the variant sleeps at this place; every warp records when it continues."""
    if place != variant.place:
        return ""
    if place == "none":
        return "mov.u32 %go, %clock;\n"
    if place == "loop":
        return """@%others bra GO;
shl.b32 %delay, %delay, 1;
mov.u32 %begin, %clock;
LOOP:
mov.u32 %now, %clock;
sub.u32 %now, %now, %begin;
setp.lt.u32 %again, %now, %delay;
@%again bra LOOP;
GO:
mov.u32 %go, %clock;
"""
    return "nanosleep.u32 %delay;\nmov.u32 %go, %clock;\n"


def _products(variant: Variant) -> Iterator[str]:
    """Four wgmma; each step advances by 32 bytes of a row's 128."""
    d = ", ".join(f"%d{i}" for i in range(N // 2))
    for step in range(STEPS):
        if step == 1:
            yield _sleep("mma", variant)
        if variant.registers:
            a, majors = "{" + ", ".join(f"%a{4 * step + i}" for i in range(4)) + "}", "0"
        else:
            a, majors = f"%adesc{step}", "0, 0"
        yield (
            f"wgmma.mma_async.sync.aligned.m64n{N}k16.f32.bf16.bf16 {{{d}}}, {a}, %bdesc{step}, "
            f"{'%accumulate' if step else '%fresh'}, 1, 1, {majors};\n"
        )


def kernel(variant: Variant) -> str:
    """The PTX entry of a variant."""
    where, size = {"a": (6144, 2048), "b": (8192, 32768), "none": (0, 0)}[variant.target]
    store = f"""mov.u32 %word, {TWO};
shl.b32 %at, %lane, 4;
add.u32 %at, %at, %base;
add.u32 %at, %at, {where};
add.u32 %end, %base, {where};
add.u32 %end, %end, {size};
STORE:
st.shared.v4.b32 [%at], {{%word, %word, %word, %word}};
add.u32 %at, %at, 512;
setp.lt.u32 %again, %at, %end;
@%again bra STORE;
fence.proxy.async.shared::cta;
"""
    count = "".join(
        f"setp.eq.f32 %again, %d{i}, 0f{bits(OLD)}; @%again add.u32 %old, %old, 1;\n"
        f"setp.eq.f32 %again, %d{i}, 0f{bits(variant.new)}; @%again add.u32 %new, %new, 1;\n"
        for i in range(N // 2)
    )
    fragments = "".join(f"mov.b32 %a{i}, {ONE};\n" for i in range(16)) if variant.registers else ""
    return f"""
.visible .entry {variant.name}(.param .u64 out, .param .u32 nanoseconds)
.reqntid 128, 1, 1
{{
.shared .align 1024 .b8 operands[40960];
.shared .align 4 .b8 zero[4];
.reg .pred %others, %again, %fresh, %accumulate, %first, %led;
.reg .b32 %a<16>, %r<8>;
.reg .b32 %thread, %lane, %warp, %base, %delay, %begin, %now, %go, %done, %stored, %start;
.reg .b32 %word, %at, %end, %old, %new;
.reg .f32 %d<{N // 2}>;
.reg .b64 %adesc<4>, %bdesc<4>, %out, %x, %y;
ld.param.u64 %out, [out];
cvta.to.global.u64 %out, %out;
ld.param.u32 %delay, [nanoseconds];
mov.u32 %thread, %tid.x;
and.b32 %lane, %thread, 31;
shr.u32 %warp, %thread, 5;
setp.ne.u32 %others, %warp, 3;
@%others mov.u32 %delay, 0;
setp.ne.u32 %led, %lane, 0;
setp.eq.u32 %first, %thread, 0;
mov.u32 %base, operands;
// A is the first 8 KiB and B the rest, with rows of 128 bytes.
mov.u32 %word, {ONE};
shl.b32 %at, %thread, 4;
add.u32 %at, %at, %base;
add.u32 %end, %base, 40960;
FILL:
st.shared.v4.b32 [%at], {{%word, %word, %word, %word}};
add.u32 %at, %at, 2048;
setp.lt.u32 %again, %at, %end;
@%again bra FILL;
fence.proxy.async.shared::cta;
// Descriptors: rows of 128 bytes with the swizzle of 128, groups of eight rows 1024 bytes apart.
shr.u32 %r0, %base, 4;
cvt.u64.u32 %x, %r0;
or.b64 %x, %x, {1 << 62 | 64 << 32 | 1 << 16};
{"".join(f"add.u64 %adesc{i}, %x, {2 * i};" for i in range(4))}
{"".join(f"add.u64 %bdesc{i}, %x, {512 + 2 * i};" for i in range(4))}
{fragments}mov.u32 %old, 0;
mov.u32 %new, 0;
setp.ne.u32 %fresh, 0, 0;
setp.eq.u32 %accumulate, 0, 0;
mov.u32 %start, %clock;
@%first st.shared.b32 [zero], %start;
bar.sync 0;
ld.shared.b32 %start, [zero];
{_sleep("none", variant)}{_sleep("loop", variant)}{_sleep("fence", variant)}wgmma.fence.sync.aligned;
{"".join(_products(variant))}wgmma.commit_group.sync.aligned;
{_sleep("wait", variant)}wgmma.wait_group.sync.aligned 0;
mov.u32 %done, %clock;
{"bar.sync 1, 128;" if variant.barrier else ""}
setp.ne.u32 %again, %warp, 0;
@%again bra STORED;
{store if size else ""}STORED:
mov.u32 %stored, %clock;
{count}redux.sync.add.s32 %old, %old, -1;
redux.sync.add.s32 %new, %new, -1;
sub.u32 %go, %go, %start;
sub.u32 %done, %done, %start;
sub.u32 %stored, %stored, %start;
mov.u32 %r0, {VALUES};
sub.u32 %r0, %r0, %old;
sub.u32 %r0, %r0, %new;
mov.u32 %r1, %ctaid.x;
shl.b32 %r1, %r1, 2;
add.u32 %r1, %r1, %warp;
mul.wide.u32 %y, %r1, {4 * WORDS};
add.u64 %out, %out, %y;
@%led bra END;
st.global.v4.b32 [%out], {{%old, %new, %r0, %go}};
st.global.v2.b32 [%out+16], {{%done, %stored}};
END:
ret;
}}
"""


def bits(value: float) -> str:
    """A float32 in hexadecimal."""
    return f"{ctypes.c_uint32.from_buffer(ctypes.c_float(value)).value:08x}"


def ptx() -> str:
    """The PTX module: one entry per variant."""
    return ".version 8.3\n.target sm_90a\n.address_size 64\n" + "".join(kernel(each) for each in variants())


def build(cubin: Path) -> None:
    """Assemble all variants.

    Raises:
        ToolchainError: nvcc is missing or too old.
        CompileError: ptxas refuses the text.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from dsl_kernels.runtime import toolkit

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.ptx"
        source.write_text(ptx())
        toolkit.ptx_to_cubin(source, cubin.resolve(), "sm_90a", [])


def summary(variant: Variant, microseconds: int, words: Sequence[int]) -> dict[str, Any]:
    """Summarise the runs of one variant; `words` are those of all warps of all CTAs."""
    runs = len(words) // (4 * WORDS)
    warps = [{"old": 0, "new": 0, "mixed": 0} for _ in range(4)]
    apart, after = 0, []
    for run in range(runs):
        rows = [words[(4 * run + warp) * WORDS :][:WORDS] for warp in range(4)]
        for warp, (old, new, *_) in enumerate(rows):
            warps[warp]["old" if old == VALUES else "new" if new == VALUES else "mixed"] += 1
        apart += rows[0][5] < rows[3][3]
        after.append(rows[0][4] - rows[3][3])
    return {
        "name": variant.name,
        **asdict(variant),
        "microseconds": microseconds,
        "runs": runs,
        "warps": warps,
        "apart": apart,
        "after": statistics.median(after),
        "after_least": min(after),
        "after_most": max(after),
    }


def line(row: dict[str, Any]) -> str:
    """One row of the table: counts of old, new and mixed of each warp."""
    counts = "  ".join(f"{w['old']:>4}/{w['new']:>4}/{w['mixed']:>4}" for w in row["warps"])
    return f"{row['name']:<28} {row['microseconds']:>4}  {counts}  {row['apart']:>5}  {row['after']:>8g}"


class Gpu:
    """The cubin loaded on the first GPU, through NVIDIA's driver alone."""

    def __init__(self, cubin: Path) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise SystemExit(
                f"the probe runs on a Hopper GPU with NVIDIA's driver, and there is none: {error}"
            ) from None
        self.call("cuInit", 0)
        device, context, version = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        name = ctypes.create_string_buffer(96)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDeviceGetName", name, 96, device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.name, self.driver = name.value.decode(), version.value
        self.module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self.module), cubin.read_bytes())

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver; an error ends the program."""
        if error := getattr(self.library, name)(*arguments):
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(error, ctypes.byref(text))
            raise SystemExit(f"{name}: error {error}, {(text.value or b'unknown').decode()}")

    def run(self, variant: Variant, microseconds: int, runs: int) -> list[int]:
        """The words of all warps of `runs` CTAs."""
        function, out = ctypes.c_void_p(), ctypes.c_uint64()
        size = 16 * WORDS * runs
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, variant.name.encode())
        self.call("cuFuncSetAttribute", function, 8, ALONE)  # the most dynamic shared memory
        self.call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(size))
        self.call("cuMemsetD8_v2", out, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        delay = ctypes.c_uint32(1000 * microseconds)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(delay))
        self.call("cuLaunchKernel", function, runs, 1, 1, 128, 1, 1, ALONE, None, values, None)
        self.call("cuCtxSynchronize")
        words = (ctypes.c_int32 * (size // 4))()
        self.call("cuMemcpyDtoH_v2", words, out, ctypes.c_size_t(size))
        self.call("cuMemFree_v2", out)
        return list(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--build", type=Path, metavar="CUBIN", help="assemble the kernels to this file and exit"
    )
    parser.add_argument("--cubin", type=Path, help="the file that --build wrote")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--runs", type=int, default=1000, help="CTAs of each variant (1000)")
    parser.add_argument(
        "--microseconds", type=int, nargs="+", default=MICROSECONDS, help="how long warp 3 sleeps"
    )
    options = parser.parse_args()
    if options.build:
        build(options.build)
        return
    if not options.cubin:
        parser.error("pass --cubin FILE, or --build FILE to make it")
    gpu = Gpu(options.cubin)
    print(f"{gpu.name}, driver {gpu.driver}, {options.runs} runs each; old/new/mixed by warp\n")
    print(
        f"{'variant':<28} {'µs':>4}  "
        + "  ".join(f"{f'warp {w}':>14}" for w in range(4))
        + "  apart     after"
    )
    rows = []
    for variant in variants():
        for duration in (0,) if variant.place == "none" else options.microseconds:
            rows.append(summary(variant, duration, gpu.run(variant, duration, options.runs)))
            print(line(rows[-1]), flush=True)
    if options.json:
        date = time.strftime("%Y-%m-%d", time.gmtime())
        content = {"gpu": gpu.name, "driver": gpu.driver, "date": date, "found": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
