"""Checks of a schedule before a body is recorded: every name is declared, and the records fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from ..dtypes import DTYPES
from ..errors import DeclarationError
from .lang import Buffer, Mma, Pipeline, Schedule, Space
from .transfers import Fault, transfer_of

# What a product with scales multiplies; what packs two numbers in a byte, in rows of 64 bytes.
SCALED = ("float8_e4m3", "float4_e2m1x2")
PACKED = ("float4_e2m1x2",)
PAIRS_SWIZZLE = 64


def validate(op: str, schedule: Schedule) -> None:
    """Check the records of a schedule against each other.

    Raises:
        DeclarationError: the first fault, with the program and the record.
    """
    for subject, expected, got in _faults(schedule):
        raise DeclarationError(
            f"program {op}, {subject}",
            expected=expected,
            got=got,
            fix="correct the schedule that the program declares",
        )


def _faults(schedule: Schedule) -> Iterator[Fault]:
    yield from _names(schedule)
    for buffer in schedule.buffers:
        yield from _of_buffer(buffer, schedule)
    for pipe in schedule.pipelines:
        yield from _of_pipeline(pipe, schedule)
        yield from transfer_of(pipe).faults(schedule)
    for mma in schedule.mmas:
        yield from _of_mma(mma, schedule)
    yield from _of_maps(schedule)
    yield from _of_barriers(schedule)


def _roles(schedule: Schedule) -> set[str]:
    return {role.name for role in schedule.roles}


def _names(schedule: Schedule) -> Iterator[Fault]:
    for kind, records in (
        ("role", schedule.roles),
        ("buffer", schedule.buffers),
        ("pipeline", schedule.pipelines),
        ("mma", schedule.mmas),
        ("turn", schedule.turns),
    ):
        names = [record.name for record in records]
        if len(set(names)) != len(names):
            yield f"{kind}s", "distinct names", ", ".join(names)


def _of_buffer(buffer: Buffer, schedule: Schedule) -> Iterator[Fault]:
    who = f"buffer {buffer.name}"
    if buffer.dtype not in DTYPES:
        yield who, "one of " + ", ".join(DTYPES), buffer.dtype
    if buffer.alias is not None:
        owner = next((b for b in schedule.buffers if b.name == buffer.alias), None)
        if owner is None or owner.alias is not None or owner is buffer:
            yield who, "an alias of a declared buffer that has storage", buffer.alias
        elif owner.space is not buffer.space or buffer.space is Space.REGISTER or buffer.bytes > owner.bytes:
            yield (
                who,
                f"{owner.space.value} memory of at most as many bytes as {owner.name} has ({owner.bytes})",
                f"{buffer.bytes} bytes, {buffer.space.value} in {owner.space.value}",
            )
        elif buffer.space is Space.TENSOR and not (buffer.stages == owner.stages == 1):
            yield who, f"one stage, as {owner.name}", f"{buffer.stages} in {owner.stages}"
    if buffer.unpacked and (buffer.space is not Space.TENSOR or DTYPES[buffer.dtype].bytes != 2):
        yield (
            who,
            "16-bit elements in tensor memory where it is unpacked",
            f"{buffer.dtype} in {buffer.space.value} memory",
        )
    if buffer.space is Space.REGISTER and buffer.role not in _roles(schedule):
        yield who, "the role that holds it", str(buffer.role)
    if buffer.stages < 1 or any(extent < 1 for extent in buffer.shape):
        yield who, "positive extents and stages", f"{buffer.shape} x {buffer.stages}"


def _of_pipeline(pipe: Pipeline, schedule: Schedule) -> Iterator[Fault]:
    """Faults of a pipeline's sides and slots."""
    who, roles = f"pipeline {pipe.name}", _roles(schedule)
    buffers = {buffer.name: buffer for buffer in schedule.buffers}
    if pipe.producer not in roles:
        yield who, "a declared producer role", pipe.producer
    if not pipe.readers:
        yield who, "at least one reader", "none"
    for reader in pipe.readers:
        if reader.role not in roles:
            yield who, "a declared reader role", reader.role
    for name in pipe.buffers:
        if name not in buffers:
            yield who, "declared buffers", name
        elif buffers[name].stages != pipe.stages:
            yield who, f"buffer {name} with {pipe.stages} stages", f"{buffers[name].stages} stages"
    if pipe.returned_by is not None:
        back = next((p for p in schedule.pipelines if p.name == pipe.returned_by), None)
        readers = {r.role for r in pipe.readers}
        if (
            back is None
            or back.producer not in readers
            or pipe.producer not in {r.role for r in back.readers}
        ):
            yield who, "returned_by a pipeline from its reader to its producer", str(pipe.returned_by)
    if pipe.rounds not in ("loop", "once"):
        yield who, "rounds 'loop' or 'once'", pipe.rounds
    if pipe.rounds == "once" and pipe.stages != 1:
        yield who, "one stage for a single hand-over", f"{pipe.stages} stages"


def _of_mma(mma: Mma, schedule: Schedule) -> Iterator[Fault]:
    who = f"mma {mma.name}"
    if mma.role not in _roles(schedule):
        yield who, "a declared role", mma.role
    source = next((b.space for b in schedule.buffers if b.name == mma.a), mma.a_space)
    if source is not mma.a_space:
        yield who, f"A in {mma.a_space.value} memory", f"{mma.a} in {source.value} memory"
    if mma.cta_group not in (1, 2) or (mma.cta_group == 2) != schedule.pairs:
        yield (
            who,
            "cta_group 1 or 2, the same for all, as the PTX ISA has one for all tcgen05 of a kernel",
            str(mma.cta_group),
        )
    if mma.cta_group == 2:
        if mma.unit != "tcgen05" or schedule.cluster_ctas != 2 or not schedule.group:
            yield who, "tcgen05 in clusters of two, the group", f"{mma.unit}, {schedule.cluster}"
        yield from _of_pair(mma, schedule)
        for pipe in schedule.pipelines:
            if {mma.a, mma.b, mma.acc} & set(pipe.buffers) and not pipe.pair:
                yield f"pipeline {pipe.name}", f"pair=True, as {mma.name} is of two CTAs", "pair=False"
    acc = next((b for b in schedule.buffers if b.name == mma.acc and b.space is Space.TENSOR), None)
    if acc is not None and (acc.dtype != "float32" or acc.unpacked):
        if acc.dtype != "float16" or not acc.unpacked:
            yield (
                who,
                "sums of float32, or of float16 in an unpacked buffer",
                f"{acc.dtype} in {acc.name}, unpacked={acc.unpacked}",
            )
        elif mma.dtype == "bfloat16":
            yield who, "operands of float16 or float8 where sums are float16", mma.dtype
    if mma.ws:
        yield from _of_ws(mma, acc)
    if mma.scales is not None:
        yield from _of_scales(mma, acc, schedule)
    elif mma.dtype in PACKED:
        yield who, f"scales, which a product of {mma.dtype} has", "scales=None"
    if mma.a_space is not Space.SHARED and mma.a_major != "k":
        yield who, "a K-major A outside of shared memory", f"a_major={mma.a_major!r}"


def _of_pair(mma: Mma, schedule: Schedule) -> Iterator[Fault]:
    """A product of two CTAs: 64 rows in each take all 128 lanes, half of the columns below the other half."""
    lanes = {b.name: b.shape for b in schedule.buffers if b.space is Space.TENSOR}
    columns = mma.n // 2 if mma.m == 128 else mma.n
    if mma.m not in (128, 256):
        yield f"mma {mma.name}", "m of 128 or 256 where cta_group=2", f"m={mma.m}"
    elif mma.acc in lanes and (lanes[mma.acc][0] != 128 or lanes[mma.acc][1] % columns):
        yield (
            f"mma {mma.name}",
            f"an acc of 128 lanes by {columns} columns, or by several times as many",
            f"{mma.acc} of {lanes[mma.acc]}",
        )
    if mma.a in lanes and lanes[mma.a][0] != 128:
        yield f"mma {mma.name}", "A on all 128 lanes", f"{mma.a} of {lanes[mma.a]}"


def _of_ws(mma: Mma, acc: Buffer | None) -> Iterator[Fault]:
    """A product by `.ws`: one CTA, operands in swizzled panels of shared memory, the result's columns folded.

    With 64 rows A may be in tensor memory, its rows twice. B may be MN-major if its elements have 16 bits.
    """
    who, columns = f"mma {mma.name}", mma.n * mma.m // 128
    wide = DTYPES[mma.dtype].bytes == 2
    in_tensor = mma.a_space is Space.TENSOR and mma.m == 64 and wide
    majors = ("k",) if not wide else ("k", "mn")
    if (
        mma.unit != "tcgen05"
        or mma.cta_group != 1
        or not (in_tensor or mma.a_space is Space.SHARED)
        or mma.a_major != "k"
        or mma.b_major not in majors
    ):
        yield (
            who,
            "ws of tcgen05 in one CTA, of a K-major A in shared memory "
            "(64 rows of 16 bits: or in tensor memory) and a B in it (of 16 bits: or MN-major)",
            f"{mma.unit}, cta_group {mma.cta_group}, A in {mma.a_space.value} memory, "
            f"{mma.a_major}, {mma.b_major}",
        )
    if mma.m not in (32, 64, 128) or mma.n not in (64, 128, 256):
        yield who, "m of 32, 64 or 128 and n of 64, 128 or 256 where ws=True", f"m={mma.m}, n={mma.n}"
    elif acc is not None and (acc.shape[0] != 128 or acc.shape[1] % columns or acc.dtype != "float32"):
        yield (
            who,
            f"an acc of 128 lanes by {columns} columns, or by several times as many, "
            "of float32 where ws=True",
            f"{acc.name} of {acc.shape} {acc.dtype}",
        )


def _of_scales(mma: Mma, acc: Buffer | None, schedule: Schedule) -> Iterator[Fault]:
    """A product with a factor in tensor memory for each block of 32 elements along K."""
    who, named = f"mma {mma.name}", {buffer.name: buffer for buffer in schedule.buffers}
    plain = mma.unit == "tcgen05" and mma.cta_group == 1 and mma.a_space is Space.SHARED and not mma.ws
    if not plain or mma.dtype not in SCALED or (mma.a_major, mma.b_major) != ("k", "k"):
        yield (
            who,
            f"K-major {' or '.join(SCALED)} in shared memory, by tcgen05 in one CTA, where it has scales",
            f"{mma.dtype}, {mma.unit}",
        )
    for name in (mma.a, mma.b) if mma.dtype in PACKED else ():
        pairs = named.get(name)
        wanted = (mma.k // DTYPES[mma.dtype].packed, mma.dtype, PAIRS_SWIZZLE)
        if pairs is None or (pairs.shape[-1], pairs.dtype, pairs.swizzle) != wanted:
            yield (
                who,
                f"A and B with {wanted[0]} columns of {mma.dtype} and a {PAIRS_SWIZZLE}-byte swizzle",
                name if pairs is None else f"{name} of {pairs.shape} {pairs.dtype}, swizzle {pairs.swizzle}",
            )
        if any(pipe.multicast and name in pipe.buffers for pipe in schedule.pipelines):
            yield who, f"a pipeline of its own CTA for {mma.dtype}", f"{name} in a multicast one"
    if (mma.m, mma.k) != (128, 128) or mma.n > 128 or mma.n % 16:
        yield (
            who,
            "m=128, k=128 and n a multiple of 16 up to 128 where it has scales",
            f"m={mma.m}, n={mma.n}, k={mma.k}",
        )
    if acc is not None and acc.dtype != "float32":
        yield who, "sums of float32 where it has scales", acc.dtype
    for name in mma.scales or ():
        factors = named.get(name)
        exponents = (Space.TENSOR, (128, 16), "uint8", 1)
        if factors is None or (factors.space, factors.shape, factors.dtype, factors.stages) != exponents:
            yield who, "scales in unstaged tensor-memory buffers of (128, 16) uint8", name


def _of_maps(schedule: Schedule) -> Iterator[Fault]:
    for tensor_map in schedule.maps:
        longer = [extent > 1 for extent in tensor_map.box]
        if len(longer) > 2 and longer != sorted(longer, reverse=True):
            yield (
                f"map {tensor_map.name}",
                "a box whose axes of one element are the outer ones",
                str(tensor_map.box),
            )


def _of_barriers(schedule: Schedule) -> Iterator[Fault]:
    """Faults of turns and named barriers."""
    roles = _roles(schedule)
    for turn in schedule.turns:
        if not set(turn.roles) <= roles:
            yield f"turn {turn.name}", "declared roles", ", ".join(turn.roles)
        members = [schedule.role(role) for role in turn.roles]
        sizes = [member.warps for member in members for _ in range(member.replicas)]
        if len(sizes) < 2 or len(set(sizes)) > 1:
            yield f"turn {turn.name}", "two or more members of as many warps", ", ".join(map(str, sizes))
    for barrier, names in schedule.named_barriers.items():
        if not names or not set(names) <= roles:
            yield f"named barrier {barrier}", "declared roles", ", ".join(names) or "none"
    for barrier in schedule.apart:
        if len(schedule.named_barriers.get(barrier, ())) != 1:
            yield f"apart {barrier}", "a named barrier of one role", str(schedule.named_barriers.get(barrier))
