"""Decides whether a variant is legal on its architecture: pure functions from a schedule to violations.

No DSL runs here. A rule yields a code, the figure, the limit and the fix, so a refusal reads the same in the
sweep's table, in an error and in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from dsl_kernels.arch import ArchSpec
from dsl_kernels.dtypes import DTYPES
from dsl_kernels.errors import ConstraintError
from dsl_kernels.tile.lang import Schedule, Space
from dsl_kernels.tile.plan import barrier_plan, named_barriers
from dsl_kernels.tile.program import TileProgram
from dsl_kernels.tile.transfers import transfer_of

TMEM_LANES = 128
WARPGROUP_WARPS = 4
REGISTER_GRANULE = 8
# Warps are dealt out round-robin to the schedulers of an SM; each scheduler owns a quarter of the registers.
SCHEDULERS = 4
# Aligning swizzled buffers to 1024 bytes costs up to this much once. The 1 KiB that the system reserves per
# CTA is already left out of smem_per_cta.
ALIGNMENT_SLACK = 1024


@dataclass(frozen=True)
class Violation:
    """One broken rule: what the variant has, what the architecture allows, what to change."""

    code: str
    figure: str
    limit: str
    fix: str

    def error(self, subject: str) -> ConstraintError:
        return ConstraintError(subject, expected=self.limit, got=self.figure, fix=self.fix, code=self.code)


Rule = Callable[[Schedule, ArchSpec], Iterator[Violation]]


def _threads(s: Schedule, arch: ArchSpec) -> Iterator[Violation]:
    if s.threads > arch.threads_per_cta:
        yield Violation(
            "THREADS",
            f"{s.threads} threads",
            f"at most {arch.threads_per_cta} a CTA",
            "use fewer warps in a role",
        )


def _shared_memory(s: Schedule, arch: ArchSpec) -> Iterator[Violation]:
    swizzled = any(b.swizzle for b in s.buffers)
    used = s.smem_bytes() + barrier_plan(s).smem_bytes + (ALIGNMENT_SLACK if swizzled else 0)
    limit = arch.smem_per_cta if s.ctas_per_sm == 1 else arch.smem_per_sm // s.ctas_per_sm - 1024
    if used > limit:
        largest = max((b for b in s.buffers if b.space is Space.SHARED), key=lambda b: b.bytes)
        yield Violation(
            "SMEM_OVERFLOW",
            f"{used} bytes of shared memory",
            f"at most {limit} ({s.ctas_per_sm} CTAs an SM)",
            f"fewer stages or a smaller tile; {largest.name} takes {largest.bytes} "
            f"({largest.stages} x {largest.stage_bytes})",
        )


def _tensor_memory(s: Schedule, arch: ArchSpec) -> Iterator[Violation]:
    columns = s.tmem_columns()
    if columns == 0:
        return
    if arch.tmem_columns == 0:
        yield Violation(
            "TMEM_MISSING",
            f"{columns} columns",
            f"no tensor memory on {arch.name}",
            "keep accumulators in registers there",
        )
        return
    allocation = max(32, 1 << (columns - 1).bit_length())
    if allocation * s.ctas_per_sm > arch.tmem_columns:
        yield Violation(
            "TMEM_OVERFLOW",
            f"{columns} columns, allocated as {allocation} by {s.ctas_per_sm} CTAs",
            f"at most {arch.tmem_columns} columns an SM",
            "fewer accumulator stages or a smaller N",
        )
    for buffer in s.buffers:
        if buffer.space is Space.TENSOR and buffer.shape[0] not in (64, TMEM_LANES):
            yield Violation(
                "TMEM_LANES",
                f"{buffer.name} on {buffer.shape[0]} lanes",
                "64 or 128 lanes",
                "shape a tensor buffer (lanes, columns)",
            )


def _registers(s: Schedule, arch: ArchSpec) -> Iterator[Violation]:
    budgets = [role.registers for role in s.roles]
    for role in s.roles:
        if role.registers is not None and (
            role.registers % REGISTER_GRANULE or not 24 <= role.registers <= arch.registers_per_thread + 1
        ):
            yield Violation(
                "REGISTER_BUDGET",
                f"{role.registers} registers a thread in {role.name}",
                f"a multiple of {REGISTER_GRANULE} from 24 to 256",
                "round the role's budget",
            )
    if any(budget is not None for budget in budgets):
        # At launch a thread gets as many registers as fit, in steps of eight, on the scheduler with the most
        # warps. setmaxnreg only moves that pool around: a role that asks for more than the others gave back
        # never resumes.
        warps = -(-s.threads // (32 * SCHEDULERS)) * s.ctas_per_sm
        per_thread = arch.registers_per_sm // (32 * SCHEDULERS * warps) // REGISTER_GRANULE * REGISTER_GRANULE
        pool = s.threads * min(per_thread, arch.registers_per_thread + 1)
        total = sum(role.threads * (role.registers or per_thread) for role in s.roles)
        if total > pool:
            yield Violation(
                "REGISTERS",
                f"{total} registers over all roles",
                f"at most {pool}, what {s.threads} threads hold at launch ({per_thread} each)",
                "lower the budget of the copy roles",
            )
    for role in s.roles:
        registers = (
            sum(
                b.per_thread * b.stages * DTYPES[b.dtype].bytes
                if b.per_thread is not None
                else b.bytes // role.threads
                for b in s.buffers
                if b.space is Space.REGISTER and b.role == role.name
            )
            // 4
        )
        limit = min(role.registers or arch.registers_per_thread, arch.registers_per_thread)
        if registers > limit:
            yield Violation(
                "FRAGMENTS",
                f"{registers} registers a thread of declared fragments in {role.name}",
                f"at most {limit}",
                "more warps in the role, or a smaller tile",
            )


def _barriers(s: Schedule, arch: ArchSpec) -> Iterator[Violation]:
    used = named_barriers(s)
    if used > arch.named_barriers:
        yield Violation(
            "NAMED_BARRIERS",
            f"{used} named barriers",
            f"at most {arch.named_barriers}",
            "share one among roles that meet in turn",
        )
    for barrier in barrier_plan(s).barriers:
        if not 1 <= barrier.count < 1 << 20:
            yield Violation(
                "BARRIER_COUNT",
                f"{barrier.name} counts {barrier.count}",
                "1 to 2^20 - 1 arrivals",
                "let one lane a warp arrive",
            )
        if barrier.tx_bytes >= 1 << 20:
            yield Violation(
                "BARRIER_BYTES",
                f"{barrier.name} expects {barrier.tx_bytes} bytes",
                "below 2^20 a phase",
                "split the stage",
            )


def _mma(s: Schedule, arch: ArchSpec) -> Iterator[Violation]:
    for mma in s.mmas:
        subject = f"{mma.name}: {mma.unit} {mma.m}x{mma.n}x{mma.k} {mma.dtype}"
        rule = arch.mma_units.get(mma.unit)
        if rule is None:
            yield Violation(
                "MMA_UNIT",
                subject,
                f"{' or '.join(arch.mma_units)} on {arch.name}",
                "declare another unit for this architecture",
            )
            continue
        if mma.dtype not in rule.dtypes:
            yield Violation(
                "MMA_DTYPE", subject, "one of " + ", ".join(rule.dtypes), "convert the operands first"
            )
            continue
        fitting = [mma.m] if mma.ws else [m for m in rule.m if mma.m % m == 0]
        if not fitting:
            yield Violation(
                "MMA_M",
                subject,
                f"M a multiple of {min(rule.m)}",
                "pad M, or swap the operands so that the short side lies on N",
            )
            continue
        m = max(fitting)
        if mma.n % rule.n_step.get(m, 1) or mma.n > rule.n_max * 4:
            yield Violation("MMA_N", subject, f"N a multiple of {rule.n_step[m]}", "pad N")
        dtype = DTYPES[mma.dtype]
        step = rule.k_bytes * dtype.packed // dtype.bytes
        if mma.k % step:
            yield Violation("MMA_K", subject, f"K a multiple of {step}", "pad K")
        for side, major in (("A", mma.a_major), ("B", mma.b_major)):
            if major == "mn" and mma.dtype not in rule.mn_major:
                yield Violation(
                    "MMA_MAJOR",
                    f"{subject} with {side} MN-major",
                    f"K-major operands for {mma.dtype} {mma.unit}",
                    "transpose the tile in shared memory first",
                )
        first = s.first_thread(mma.role) // 32
        if rule.warps == WARPGROUP_WARPS and (
            s.role(mma.role).warps % WARPGROUP_WARPS or first % WARPGROUP_WARPS
        ):
            yield Violation(
                "WARPGROUP",
                f"role {mma.role} of {s.role(mma.role).warps} warps from warp {first}",
                "whole warpgroups that start at a multiple of 4",
                "declare the role with a multiple of four warps, before the narrow roles",
            )


def _alignment(s: Schedule, arch: ArchSpec) -> Iterator[Violation]:
    copied = {name for pipe in s.pipelines if transfer_of(pipe).COPIES for name in pipe.buffers}
    for buffer in s.buffers:
        if buffer.name in copied and buffer.stage_bytes % 16:
            yield Violation(
                "COPY_ALIGNMENT",
                f"{buffer.name} of {buffer.stage_bytes} bytes a stage",
                "a multiple of 16",
                "pad the innermost extent",
            )
        if buffer.swizzle not in (0, 32, 64, 128):
            yield Violation(
                "SWIZZLE",
                f"{buffer.name} swizzled over {buffer.swizzle} bytes",
                "0, 32, 64 or 128",
                "choose a hardware swizzle",
            )


def _launch(s: Schedule, arch: ArchSpec) -> Iterator[Violation]:
    cluster = s.cluster[0] * s.cluster[1] * s.cluster[2]
    if cluster > arch.max_cluster:
        yield Violation(
            "CLUSTER", f"{cluster} CTAs a cluster", f"at most {arch.max_cluster}", "use a smaller cluster"
        )
    if s.group and cluster == 1:
        yield Violation(
            "CO_RESIDENCY",
            f"CTAs synchronise over grid axes {s.group}",
            "a cluster",
            "declare one: CTAs that wait for each other must all be resident",
        )


def _transfers(s: Schedule, arch: ArchSpec) -> Iterator[Violation]:
    for pipe in s.pipelines:
        yield from (Violation(*row) for row in transfer_of(pipe).exceeds(s))


RULES: tuple[Rule, ...] = (
    _threads,
    _shared_memory,
    _tensor_memory,
    _registers,
    _barriers,
    _mma,
    _alignment,
    _launch,
    _transfers,
)


def check(program: TileProgram, knobs: Mapping[str, Any], arch: ArchSpec) -> list[Violation]:
    """All rules that `program` at `knobs` breaks on `arch`; empty when the schedule is legal."""
    schedule = program.schedule(knobs, arch)
    violations = [violation for rule in RULES for violation in rule(schedule, arch)]
    if program.constraints is not None:
        violations += [
            Violation(*row) for row in program.constraints(SimpleNamespace(**knobs), schedule, arch)
        ]
    return violations
