"""Run a kernel: decode it, lay out its memory, call the compiled core, translate the core's findings."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from operator import index
from typing import Any

import numpy as np

from .arguments import ADDRESS_BASE, Arguments
from .build import load
from .checks import checked, shown
from .coverage import Location, covered, place
from .errors import EmulatorError, InternalError, LaunchError, UnsupportedInstruction
from .interleaving import KINDS, POLICIES, Interleaving
from .isa import Program, decode
from .parser import parse
from .ptx import Entry, Module
from .raw import RawArguments, RawPacked
from .report import Event, Finding, Report, WarpCounters

MAX_SMEM = 233472  # 228 KiB: the largest shared memory of a CTA, including the system's first KiB
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_LOCAL = 512 << 10  # bytes of local memory per thread
MAX_MODULE_MEMORY = 256 << 20  # bytes of .global and .const variables; a limit of the emulator
MEMORY = 8 << 30  # limit, in bytes, of the state of all clusters that run at once
INSTRUCTIONS_PER_CTA = 1 << 24  # the default limit: about a hundred times what the project's kernels execute
_MODULE_BASE = ADDRESS_BASE // 2  # .global and .const variables of the module


@functools.lru_cache(maxsize=64)
def _parse(ptx: str) -> Module:
    return parse(ptx)


@functools.lru_cache(maxsize=64)
def _decode(ptx: str, entry: str | None) -> Program:
    return decode(_parse(ptx), entry, _MODULE_BASE)


_decoding = threading.Lock()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collections: all objects of a decoded kernel stay, and there are many to walk over."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _program(ptx: str, entry: str | None) -> Program:
    """The decoded kernel; where several threads ask for it at once, only the first decodes it."""
    with _decoding, _no_collection():
        return _decode(ptx, entry)


def _after_fork() -> None:
    """Replace the lock: a thread of the parent may have held it, and the child does not have that thread."""
    global _decoding
    _decoding = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _three(name: str, v: Sequence[int] | int, most: tuple[int, int, int] = MAX_GRID) -> tuple[int, int, int]:
    try:
        t = tuple(index(x) for x in (v if isinstance(v, Sequence) else (v,)))
    except TypeError:
        raise LaunchError(f"{name} {shown(v)} must be one to three integers") from None
    if not 1 <= len(t) <= 3 or any(x < 1 for x in t):
        raise LaunchError(f"{name} {shown(v)} must be one to three positive sizes")
    if any(x > limit for x, limit in zip(t, most, strict=False)):
        raise LaunchError(f"{name} {shown(v)} exceeds the GPU's limit of {most}")
    return (*t, *(1,) * (3 - len(t)))  # type: ignore[return-value]


def _count(name: str, v: int, most: int) -> int:
    try:
        n = index(v)
    except TypeError:
        raise LaunchError(f"{name} {shown(v)} is not an integer") from None
    if not 0 <= n <= most:
        raise LaunchError(f"{name} {shown(n)} is outside 0 to {most}")
    return n


def _geometry(
    e: Entry,
    grid: Sequence[int] | int,
    block: Sequence[int] | int | None,
    cluster: Sequence[int] | int | None,
) -> tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]:
    """Grid, block and cluster of a launch, checked against the kernel's directives and the GPU's limits."""
    grid3 = _three("grid", grid)
    if block is None:
        if e.reqntid is None:
            raise LaunchError(f"kernel {e.name} has no .reqntid: give block=")
        block = e.reqntid
    block3 = _three("block", block, MAX_BLOCK)
    cluster3 = _three("cluster", cluster if cluster is not None else (e.reqcluster or 1))
    threads = math.prod(block3)
    if threads > 1024:
        raise LaunchError(f"block {block3} has {threads} threads, at most 1024 are possible")
    if e.reqntid and block3 != _three("reqntid", e.reqntid):
        raise LaunchError(f"block {block3} differs from the kernel's .reqntid {e.reqntid}")
    if e.maxntid and threads > math.prod(e.maxntid):
        raise LaunchError(f"block {block3} exceeds the kernel's .maxntid {e.maxntid}")
    if e.reqcluster and cluster3 != _three("reqnctapercluster", e.reqcluster):
        raise LaunchError(f"cluster {cluster3} differs from the kernel's .reqnctapercluster {e.reqcluster}")
    if any(g % c for g, c in zip(grid3, cluster3, strict=True)):
        raise LaunchError(f"grid {grid3} is not a multiple of the cluster {cluster3}")
    if math.prod(cluster3) > 16:
        raise LaunchError(f"cluster {cluster3} has more than 16 CTAs")
    return grid3, block3, cluster3


@checked
def launch(
    ptx: str,
    grid: Sequence[int] | int,
    block: Sequence[int] | int | None = None,
    args: Sequence[Any] | RawArguments = (),
    *,
    cluster: Sequence[int] | int | None = None,
    dynamic_smem: int = 0,
    interleaving: Interleaving | None = None,
    entry: str | None = None,
    check: str = "raise",
    roles: Mapping[str, Sequence[int]] | None = None,
    names: Sequence[str] | None = None,
    registers_per_thread: int = 0,
    allow_uninit_mma: bool = False,
    strict_fences: bool = False,
    strict_lapping: bool = False,
    strict_exits: bool = False,
    strict_races: bool = False,
    instruction_limit: int | None = None,
    max_findings: int = 50,
    trace: int = 0,
    memory: Sequence[Any] = (),
) -> Report:
    """Execute one kernel of a PTX module on the CPU, with checks; tensors are written in place.

    Args:
        ptx: The text of the module.
        grid: CTAs, one to three sizes.
        block: Threads of a CTA; by default the kernel's ``.reqntid``.
        args: In the order of the PTX parameters: numpy arrays, torch CPU tensors, integers, floats,
            :class:`TensorMap` or :class:`Struct`. Or :class:`RawArguments`: bytes, with the memory they point
            into.
        cluster: CTAs of a cluster; by default the kernel's ``.reqnctapercluster``, or one CTA.
        dynamic_smem: Bytes of dynamic shared memory.
        interleaving: The order in which warps and asynchronous operations run; by default lock-step.
        entry: The kernel, where the module has several.
        check: "raise" stops at the first error; "report" collects all findings in the report.
        roles: Names of warps for the report: role -> warps.
        names: Names of the arguments for messages; by default those of the PTX parameters.
        registers_per_thread: As ptxas reports it: the pool of setmaxnreg. An increase waits until enough
            registers were given back; one that can never be met is a deadlock.
        allow_uninit_mma: Lets a matrix operand have rows that nothing wrote, as padded tiles do. Results that
            depend on such rows count as uninitialised.
        strict_fences: Missing tcgen05 fences are errors instead of warnings.
        strict_lapping: The same for a warp that waits so late that its barrier can pass a full phase
            meanwhile.
        strict_exits: The same for a CTA that ends while a bulk store may still read its shared memory.
        strict_races: The same for races of two stores of one value, and of lanes of one warp.
        instruction_limit: The most warp instructions of the launch; 0 is no limit. By default a launch ends
            when the CTAs that run have executed ``INSTRUCTIONS_PER_CTA`` each and none has ended.
        max_findings: The most warnings that the report keeps; it keeps every error.
        trace: How many of the last events the report keeps, in the order in which they happened.
        memory: Further arrays and tensors, which the kernel reaches from those of ``args`` by their
            distance. All of them are then as far apart as on this machine.

    Raises:
        PtxSyntaxError: the text is not PTX.
        UnsupportedInstruction: the emulator does not execute an instruction of the kernel.
        LaunchError: arguments, sizes or memory do not fit the kernel or the GPU.
        EmulatorError: a check failed (with ``check="raise"``).
        BuildError: the compiled core cannot be built.
        CacheError: others may write to the folder of the compiled core.
    """
    prepared = _prepare(
        ptx, grid, block, args, cluster=cluster, dynamic_smem=dynamic_smem, entry=entry, check=check,
        roles=roles, names=names, registers_per_thread=registers_per_thread,
        allow_uninit_mma=allow_uninit_mma, strict_fences=strict_fences, strict_lapping=strict_lapping,
        strict_exits=strict_exits, strict_races=strict_races, instruction_limit=instruction_limit,
        max_findings=max_findings, trace=trace, memory=memory,
    )  # fmt: skip
    return prepared.settle(prepared.run(interleaving or Interleaving()))


@checked
def launch_each(
    ptx: str,
    grid: Sequence[int] | int,
    block: Sequence[int] | int | None = None,
    args: Sequence[Any] | RawArguments = (),
    *,
    interleavings: Iterable[Interleaving],
    jobs: int | None = None,
    **options: Any,
) -> Iterator[Report]:
    """:func:`launch` under each of several interleavings, ``jobs`` of them at once (default: one per core).

    Every interleaving starts from the memory as it is now and runs on its own copy. The reports come in the
    order of the interleavings, whichever run ends first. When a report comes, the memory of ``args`` holds
    what that interleaving wrote. ``options`` are those of :func:`launch`.

    Raises:
        EmulatorError: as :func:`launch` does, for the first interleaving, in order, that fails a check.
        LaunchError: ``jobs`` is not a positive integer.
    """
    if jobs is not None and _count("jobs", jobs, 1 << 16) < 1:
        raise LaunchError("jobs 0 must be at least 1")
    return _each(_prepare(ptx, grid, block, args, **options), interleavings, jobs or os.cpu_count() or 1)


def _each(prepared: _Prepared, interleavings: Iterable[Interleaving], jobs: int) -> Iterator[Report]:
    first = [
        np.frombuffer(ctypes.string_at(host, size), np.uint8) if writable else None
        for _, size, host, writable in prepared.regions
    ]

    def attempt(interleaving: Interleaving) -> tuple[Report, list[np.ndarray | None]]:
        own = [None if data is None else data.copy() for data in first]
        hosts = [
            row[2] if data is None else data.ctypes.data
            for row, data in zip(prepared.regions, own, strict=True)
        ]
        return prepared.run(interleaving, hosts), own

    left = iter(interleavings)
    each = prepared.footprint + sum(data.size for data in first if data is not None)
    jobs = max(1, min(jobs, MEMORY // max(each, 1)))
    with ThreadPoolExecutor(jobs) as pool:
        running = deque(pool.submit(attempt, item) for item in islice(left, jobs))
        try:
            while running:
                report, own = running.popleft().result()
                running.extend(pool.submit(attempt, item) for item in islice(left, 1))
                for row, data in zip(prepared.regions, own, strict=True):
                    if data is not None:
                        ctypes.memmove(row[2], data.ctypes.data, row[1])
                yield prepared.settle(report)
        finally:
            for future in running:
                future.cancel()


@dataclass(frozen=True)
class _Prepared:
    """A launch that is ready to run, any number of times."""

    program: Program
    packed: Arguments | RawPacked
    regions: list[list[int]]  # emulated base, bytes, host address, whether it may be written
    region_names: list[str]
    keep: list[np.ndarray]  # the module's variables, which `regions` point into
    before: list[int]  # fields of the core's configuration that come before the interleaving's
    after: list[int]  # those that come after them
    footprint: int  # bytes of the state of a cluster
    check: str
    roles: Mapping[str, Sequence[int]]

    def run(self, interleaving: Interleaving, hosts: Sequence[int] | None = None) -> Report:
        """Execute the launch; ``hosts`` replaces the host addresses of the regions."""
        most = max(interleaving.resident, min(interleaving.max_resident, MEMORY // max(self.footprint, 1)))
        if self.footprint * interleaving.resident > MEMORY:
            raise LaunchError(
                f"{interleaving.resident} clusters that run at once need "
                f"{self.footprint * interleaving.resident >> 20} MiB for {self.program.entry.registers} "
                f"registers a thread, {self.program.local_bytes} bytes of local memory and shared memory, "
                f"more than {MEMORY >> 20}"
            )
        kind, policy = KINDS.index(interleaving.kind), POLICIES.index(interleaving.async_policy)
        slow = -1 if interleaving.slow_warp is None else interleaving.slow_warp
        order = [kind, interleaving.seed, policy, slow, interleaving.resident, most]
        config = np.array([*self.before, *order, *self.after], np.int64)
        regions = self.regions
        if hosts is not None:
            regions = [[row[0], row[1], host, row[3]] for row, host in zip(regions, hosts, strict=True)]
        raw, seconds = _call(self.program, config, self.packed, regions, interleaving)
        return _report(self.program, raw, interleaving, seconds, self.roles, self.region_names)

    def settle(self, report: Report) -> Report:
        """The report; raises its first error instead where ``check`` is "raise"."""
        if report.status == "internal":
            raise InternalError(report.findings[-1].message, report.findings[-1], report)
        if self.check == "raise" and not report.ok:
            first = report.errors[0]
            message = f"{first}\n  under {report.interleaving}"
            if first.code == "unsupported":
                raise UnsupportedInstruction(message, first, report)
            raise EmulatorError(message, first, report)
        return report


@checked
def _prepare(
    ptx: str,
    grid: Sequence[int] | int,
    block: Sequence[int] | int | None = None,
    args: Sequence[Any] | RawArguments = (),
    *,
    cluster: Sequence[int] | int | None = None,
    dynamic_smem: int = 0,
    entry: str | None = None,
    check: str = "raise",
    roles: Mapping[str, Sequence[int]] | None = None,
    names: Sequence[str] | None = None,
    registers_per_thread: int = 0,
    allow_uninit_mma: bool = False,
    strict_fences: bool = False,
    strict_lapping: bool = False,
    strict_exits: bool = False,
    strict_races: bool = False,
    instruction_limit: int | None = None,
    max_findings: int = 50,
    trace: int = 0,
    memory: Sequence[Any] = (),
) -> _Prepared:
    if check not in ("raise", "report"):
        raise LaunchError(f"check {shown(check)} is neither 'raise' nor 'report'")
    if not isinstance(ptx, str):
        raise LaunchError(f"ptx is a {type(ptx).__name__}, and not the text of a module")
    program = _program(ptx, entry)
    e = program.entry
    grid3, block3, cluster3 = _geometry(e, grid, block, cluster)
    threads = math.prod(block3)
    dynamic_smem = _count("dynamic shared memory", dynamic_smem, MAX_SMEM)
    registers_per_thread = _count("registers_per_thread", registers_per_thread, 256)
    max_findings = _count("max_findings", max_findings, 1 << 20)
    trace = _count("trace", trace, 1 << 24)
    limit, cta_limit = 0, INSTRUCTIONS_PER_CTA
    if instruction_limit is not None:
        limit, cta_limit = _count("instruction_limit", instruction_limit, 1 << 62), 0
    end = program.static_smem
    if dynamic_smem:
        end = (
            end + program.dynamic_align - 1
        ) // program.dynamic_align * program.dynamic_align + dynamic_smem
    if end > MAX_SMEM:
        raise LaunchError(f"{end} bytes of shared memory, static and dynamic, exceed the {MAX_SMEM} of a CTA")

    warps = -(-threads // 32)
    if program.local_bytes > MAX_LOCAL:
        raise LaunchError(f"{program.local_bytes} bytes of local memory exceed the {MAX_LOCAL} of a thread")
    # Registers with their flags, local memory of all lanes, and shared memory with its shadow and its lane
    # marks.
    footprint = math.prod(cluster3) * (
        warps * (e.registers * (32 * 8 + 9) + 32 * program.local_bytes) + 21 * end
    )
    if memory and isinstance(args, RawArguments):
        raise LaunchError("memory is for arguments that are arrays; raw arguments bring their own")
    packed = RawPacked(e, args) if isinstance(args, RawArguments) else Arguments(e, args, names, memory)
    regions, region_names, keep = list(packed.regions), list(packed.region_names), []
    variables = [
        v
        for v in {**program.module.variables, **e.variables}.values()
        if v.space in ("global", "const") and v.size > 0
    ]
    if (size := sum(v.size for v in variables)) > MAX_MODULE_MEMORY:
        raise LaunchError(f"{size} bytes of module variables exceed the emulator's {MAX_MODULE_MEMORY}")
    for v in variables:
        data = np.frombuffer(bytearray(v.init or bytes(v.size)), np.uint8)
        keep.append(data)
        regions.append([program.globals[v.name], v.size, data.ctypes.data, int(v.space == "global")])
        region_names.append(v.name)

    sm100 = int(program.module.target.startswith(("sm_10", "sm_11", "sm_12")))
    before = [e.registers, *block3, *grid3, *cluster3, end, dynamic_smem, program.local_bytes]
    stricts = (int(bool(strict)) for strict in (strict_fences, strict_lapping, strict_exits, strict_races))
    after = [int(check == "raise"), limit, 200_000, int(bool(allow_uninit_mma)), max_findings, sm100,
             registers_per_thread, *stricts, cta_limit, trace]  # fmt: skip
    return _Prepared(
        program, packed, regions, region_names, keep, before, after, footprint, check, roles or {}
    )


def _call(
    program: Program,
    config: np.ndarray,
    packed: Arguments | RawPacked,
    regions: list[list[int]],
    interleaving: Interleaving,
) -> tuple[dict[str, Any], float]:
    lib = load()
    row = lib.emu_row_sizes(1)
    region_rows = np.array(regions or [[0, 0, 0, 0]], np.int64)
    map_rows = np.array(packed.map_rows or [[0] * row], np.int64)
    if map_rows.shape[1] != row or len(config) != lib.emu_row_sizes(0):
        raise InternalError("the compiled core and the Python side disagree about a layout")
    params = np.frombuffer(bytes(packed.params) or b"\0", np.uint8)
    choices = np.array(interleaving.choices or [0], np.int64)

    def p(a: np.ndarray) -> int:
        return a.ctypes.data

    start = time.perf_counter()
    ptr = lib.emu_launch(
        p(config), len(config), p(program.instructions), len(program.instructions),
        p(program.operands), len(program.operands), p(program.targets), len(program.targets),
        p(params), len(packed.params), p(region_rows), len(regions),
        p(map_rows), len(packed.map_rows), p(choices), len(interleaving.choices),
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if not ptr:
        raise InternalError("the compiled core refused the launch, or memory ran out")
    try:
        text = ctypes.string_at(ptr).decode()
    finally:
        lib.emu_free(ptr)
    return json.loads(text), seconds


def _report(
    program: Program,
    raw: dict[str, Any],
    interleaving: Interleaving,
    seconds: float,
    roles: Mapping[str, Sequence[int]],
    region_names: list[str],
) -> Report:
    role_of = {w: name for name, warps in roles.items() for w in warps}

    def location(pc: int) -> Location | None:
        return place(program, pc) if 0 <= pc < len(program.entry.body) else None

    def text(s: str) -> str:
        def named(m: re.Match[str]) -> str:
            where = location(int(m.group(1)))
            return (
                f"at PTX line {where.ptx_line}{f' ({where.source})' if where.source else ''}"
                if where
                else "at an unknown place"
            )

        s = re.sub(r"@region(\d+)@", lambda m: region_names[int(m.group(1))], s)
        return re.sub(r"@pc(-?\d+)@", named, s)

    findings = [
        Finding(
            f["code"], text(f["message"]), f["error"], f["cta"], f["warp"], role_of.get(f["warp"]),
            location(f["pc"]), f["other_warp"], location(f["other_pc"]), f["times"], f["other_cta"],
        )
        for f in raw["findings"]
    ]  # fmt: skip
    warps = [WarpCounters(w["instructions"], w["barrier_waits"], w["spins"], w["ops"]) for w in raw["warps"]]
    log = raw["choices"]
    events = [Event(cta, warp, location(pc), bool(part)) for cta, warp, pc, part in raw["trace"]]
    return Report(
        raw["status"], interleaving, raw["instructions"], findings, warps, raw["pipes"], raw["stats"],
        seconds, raw["errors"], raw["warnings"], list(zip(log[::2], log[1::2], strict=True)), events,
        covered(program, raw["visits"], raw["ways"], raw["barriers"]),
    )  # fmt: skip


@checked
def explore(run: Callable[[Interleaving], Report], limit: int = 2000) -> Iterator[Report]:
    """Run a tiny program under every interleaving, depth first.

    ``run`` launches the program under the interleaving that it is given, and restores its inputs by itself.
    The exploration stops after ``limit`` interleavings: fewer reports mean that it was complete.
    """
    prefix: list[int] = []
    for _ in range(limit):
        report = run(Interleaving("replay", choices=tuple(prefix)))
        if not isinstance(report, Report):
            raise LaunchError(
                f"run: expected a function that returns the launch's Report, it returned {shown(report)}"
            )
        yield report
        log = report.choices
        while log and log[-1][0] + 1 >= log[-1][1]:
            log = log[:-1]
        if not log:
            return
        prefix = [c for c, _ in log[:-1]] + [log[-1][0] + 1]
