"""How products of warpgroups share the tensor cores, and how warps' requests share shared memory with them.

    python benchmarks/clock_port.py          # on a Hopper GPU; prints two tables

One CTA runs on an idle GPU. In the first table up to four warpgroups issue a chain of wgmma each, all but the
first some clocks later: the clocks from a warpgroup's first product to its last. In the second a warpgroup
multiplies while other warps ask for memory without end: the clocks a product, and the clocks a request of a
warp, all warps together. A request is 16 bytes a lane. Those of global memory come from the L2, 512
consecutive bytes or 64 bytes of each of eight rows that are 1,152 bytes apart.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from dsl_kernels_lab.timing.cuda import Module

WARP, GROUP, CHAIN, TURNS = 32, 128, 16, 200
"""Threads of a warp and of a warpgroup; products before a wait, and waits."""
AT_ONCE = 8
"""Requests of a warp before it waits for them."""
TILES = 36 << 10
"""Bytes of shared memory with operands; 4 KB for each of eight warps follow, and a flag."""
SHARED = TILES + (32 << 10) + 16
BUFFER = 1 << 24
"""Bytes of global memory that requests read: all in the L2, and none in the L1."""
WHERE = {
    "row": (512, "shl.b32 %offset, %lane, 4;"),
    "rows": (
        8 * 1152,
        "shr.u32 %offset, %lane, 2; mul.lo.u32 %offset, %offset, 1152; and.b32 %at, %lane, 3;\n"
        "shl.b32 %at, %at, 4; add.u32 %offset, %offset, %at;",
    ),
}
"""Name -> bytes of a request's rows, and how a lane finds its own."""


class Request(NamedTuple):
    """What a warp asks for: the instruction, from where, and what ends a turn."""

    instruction: str
    where: str | None = None
    end: str = ""


_FOUR = "{{%v{0}, %v{1}, %v{2}, %v{3}}}"
REQUESTS = {
    "load of shared memory": Request(f"ld.volatile.shared.v4.u32 {_FOUR}, [%own+{{at}}];"),
    "store to shared memory": Request(
        "st.volatile.shared.v4.u32 [%own+{at}], {{%turn, %turn, %turn, %turn}};"
    ),
    "load of a row": Request(f"ld.global.cg.v4.u32 {_FOUR}, [%place];", "row"),
    "load of eight rows": Request(f"ld.global.cg.v4.u32 {_FOUR}, [%place];", "rows"),
    "cp.async of eight rows": Request(
        "cp.async.cg.shared.global [%own+{at}], [%place], 16;", "rows",
        "cp.async.commit_group; cp.async.wait_group 1;",
    ),
}  # fmt: skip


class Products(NamedTuple):
    """Products m64nNk16 of bf16, with A from shared memory or from registers."""

    n: int
    registers: bool = False

    @property
    def name(self) -> str:
        return f"n{self.n}, A from {'registers' if self.registers else 'shared memory'}"

    @property
    def floats(self) -> int:
        """Accumulators of a thread."""
        return self.n // 2

    def issue(self) -> str:
        held = ", ".join(f"%d{i}" for i in range(self.floats))
        a, scales = ("{%a, %a, %a, %a}", "1, 1, 1, 0") if self.registers else ("%tile", "1, 1, 1, 0, 0")
        shape = f"m64n{self.n}k16.f32.bf16.bf16"
        return f"wgmma.mma_async.sync.aligned.{shape} {{{held}}}, {a}, %keys, {scales};\n"

    def start(self) -> str:
        return "\n".join(f"mov.f32 %d{i}, 0f00000000;" for i in range(self.floats))

    def used(self) -> str:
        """Sum the accumulators, so that the products count."""
        return "\n".join(f"add.f32 %d0, %d0, %d{i};" for i in range(1, self.floats))


def kernel(products: Products | None, body: str, threads: int) -> str:
    """PTX of a kernel: a thread's numbers, its accumulators, `body`, and 16 bytes that each thread tells."""
    made = products or Products(8)
    return f""".version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 tiles[];
.visible .entry k(.param .u64 told, .param .u64 memory, .param .u32 count) .maxntid {threads} {{
.reg .f32 %d<{made.floats}>; .reg .b32 %a;
.reg .u32 %thread, %warp, %lane, %own, %turn, %offset, %at, %used, %count, %took, %flag, %step, %v<32>;
.reg .u64 %told, %memory, %place, %tile, %keys, %begin, %end, %past; .reg .pred %on, %off;
ld.param.u64 %told, [told]; ld.param.u64 %memory, [memory]; ld.param.u32 %count, [count];
mov.u32 %thread, %tid.x; shr.u32 %warp, %thread, 5; and.b32 %lane, %thread, 31;
mov.u32 %own, tiles; shr.u32 %at, %own, 4; cvt.u64.u32 %tile, %at; or.b64 %tile, %tile, 0x4000004000010000;
add.u64 %keys, %tile, 128;
add.u32 %flag, %own, {SHARED - 16}; mov.u32 %a, 0; mov.u32 %used, 0; mov.u32 %turn, 0; mov.u32 %step, 0;
mad.lo.u32 %at, %thread, 16, %own;
zeros: st.shared.v4.u32 [%at], {{%step, %step, %step, %step}}; add.u32 %at, %at, {16 * threads};
setp.lt.u32 %on, %at, %flag; @%on bra zeros; fence.proxy.async;
{made.start()}
{body}
mul.wide.u32 %place, %thread, 16; add.u64 %told, %told, %place;
st.global.u32 [%told], %took; st.global.u32 [%told+4], %turn; st.global.u32 [%told+8], %used; ret; }}"""


def chains(products: Products, groups: int) -> str:
    """Each warpgroup waits `count` times its number in clocks, and issues a chain; the third time tells."""
    return kernel(
        products,
        f"""shr.u32 %at, %warp, 2; mul.lo.u32 %count, %count, %at; cvt.u64.u32 %past, %count;
again: bar.sync 0; mov.u64 %begin, %clock64;
later: mov.u64 %end, %clock64; sub.u64 %end, %end, %begin; setp.lt.u64 %on, %end, %past; @%on bra later;
wgmma.fence.sync.aligned;
{products.issue() * (2048 // products.n)}
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
mov.u64 %end, %clock64; sub.u64 %end, %end, %begin; cvt.u32.u64 %took, %end;
add.u32 %step, %step, 1; setp.lt.u32 %on, %step, 3; @%on bra again;
{products.used()}
cvt.rzi.u32.f32 %used, %d0;""",
        GROUP * groups,
    )


def beside(products: Products | None, request: Request, warps: int) -> str:
    """A warpgroup multiplies `count` turns, or as many clocks pass; `warps` others ask until then."""
    size, own = WHERE[request.where or "row"]
    asked = []
    for i in range(AT_ONCE):
        if request.where:
            asked.append(
                f"mad.lo.u32 %at, %turn, {AT_ONCE * warps}, %warp; add.u32 %at, %at, {i * warps};\n"
                f"mul.lo.u32 %at, %at, {size}; add.u32 %at, %at, %offset; and.b32 %at, %at, {BUFFER - 16};\n"
                "cvt.u64.u32 %place, %at; add.u64 %place, %place, %memory;"
            )
        asked.append(request.instruction.format(*range(i, 32, AT_ONCE), at=i * 512))
    loads = request.instruction.startswith("ld")
    used = "\n".join(f"xor.b32 %used, %used, %v{i};" for i in range(32)) if loads else ""
    multiply = (
        f"""wgmma.fence.sync.aligned;
{products.issue() * CHAIN}
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;
add.u32 %step, %step, 1; setp.lt.u32 %on, %step, %count; @%on bra more;
wgmma.wait_group.sync.aligned 0;"""
        if products
        else f"""mov.u64 %end, %clock64; sub.u64 %end, %end, %begin;
cvt.u64.u32 %past, %count; mul.lo.u64 %past, %past, {CHAIN * 32};
setp.lt.u64 %on, %end, %past; @%on bra more;"""
    )
    return kernel(
        products,
        f"""setp.ne.u32 %on, %thread, 0; @%on bra ready; st.volatile.shared.u32 [%flag], %turn;
ready: bar.sync 0; mov.u64 %begin, %clock64; setp.ge.u32 %on, %warp, {GROUP // WARP}; @%on bra ask;
more: {multiply}
mov.u64 %end, %clock64; sub.u64 %end, %end, %begin; cvt.u32.u64 %took, %end;
mov.u32 %at, 1; st.volatile.shared.u32 [%flag], %at;
{(products or Products(8)).used()}
cvt.rzi.u32.f32 %used, %d0; bra.uni tell;
ask: sub.u32 %warp, %warp, {GROUP // WARP}; mad.lo.u32 %own, %warp, 4096, %own;
mad.lo.u32 %own, %lane, 16, %own; add.u32 %own, %own, {TILES}; mov.u32 %took, 0;
{own}
asking: {chr(10).join(asked)}
{used} {request.end}
add.u32 %turn, %turn, 1; ld.volatile.shared.u32 %at, [%flag]; setp.eq.u32 %on, %at, 0; @%on bra asking;
tell:""",
        GROUP + WARP * warps,
    )


def run(ptx: str, threads: int, count: int) -> torch.Tensor:
    """Launch one CTA three times; what its threads told the last time, [threads, 4]."""
    module = Module(ptx)
    told = torch.zeros(threads, 4, dtype=torch.int32, device="cuda")
    memory = torch.zeros(BUFFER * 2, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        module.launch("k", 1, threads, [told, memory, count], SHARED)
    return told.cpu()


def turns_table() -> list[str]:
    """Rows of the first table."""
    rows = [
        "| products of a warpgroup | warpgroups | each later by | clocks of each |",
        "| --- | --- | --- | --- |",
    ]
    for n in (64, 128, 256):
        for groups, part in ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3)):
            later = part * 256
            told = run(chains(Products(n), groups), GROUP * groups, later)
            clocks = ", ".join(str(int(told[GROUP * i, 0]) - later * i) for i in range(groups))
            rows.append(f"| {2048 // n} of n{n} | {groups} | {later} | {clocks} |")
    return rows


def port_table() -> list[str]:
    """Rows of the second table."""
    rows = [
        "| beside | request | warps | clocks a product | clocks a request |",
        "| --- | --- | --- | --- | --- |",
    ]
    kinds: tuple[Any, ...] = (
        None,
        Products(64, True),
        Products(64),
        Products(128),
        Products(256),
        Products(256, True),
    )
    for products in kinds:
        for name, request in REQUESTS.items():
            for warps in (4, 8):
                if products and products.n == 256 and warps == 8:
                    # Accumulators of 384 threads leave ptxas no room to pipeline the products.
                    continue
                told = run(beside(products, request, warps), GROUP + WARP * warps, TURNS)
                clocks = int(told[0, 0])
                requests = AT_ONCE * int(told[GROUP::WARP, 1].sum())
                each = f"{clocks / (TURNS * CHAIN):.1f}" if products else "-"
                where = products.name if products else "no product"
                rows.append(f"| {where} | {name} | {warps} | {each} | {clocks / requests:.1f} |")
    return rows


if __name__ == "__main__":
    print("\n".join([*turns_table(), "", *port_table()]))
