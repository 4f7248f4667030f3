"""The facts about a role and about a tensor-core operation that templates and macros see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import SimpleNamespace

from dsl_kernels.dtypes import DTYPES
from dsl_kernels.tile.lang import Mma, Role, Schedule, Space
from dsl_kernels.tile.text import Call, Statement, View

# ptxas must fit the accumulators of one wgmma, its A operand and its addresses into the registers that a
# thread has at launch, whatever setmaxnreg grants later.
LAUNCH_REGISTERS, BESIDE_ACCUMULATORS = 65536, 32


def _issued_n(schedule: Schedule, n: int) -> int:
    """N of one wgmma for a product of `n` columns, halved until its accumulators fit at launch."""
    while n // 2 + BESIDE_ACCUMULATORS > LAUNCH_REGISTERS // schedule.threads and n % 16 == 0:
        n //= 2
    return n


def sums_of(schedule: Schedule, mma: Mma) -> str:
    """The dtype in which a product accumulates."""
    return next((b.dtype for b in schedule.buffers if b.name == mma.acc), "float32")


def held_by_threads(
    schedule: Schedule, statements: Iterable[Statement], spelled: Callable[[str], object]
) -> bool:
    """Whether a leaf printed from its text takes a register tile that is an operand or accumulator of a
    product.

    Such a leaf names each thread's registers, so a DSL that distributes tiles itself must leave that tile to
    the threads.
    """
    tiles = {name for mma in schedule.mmas for name in (mma.acc, mma.a)}
    tiles &= {buffer.name for buffer in schedule.buffers if buffer.space is Space.REGISTER}
    return any(
        isinstance(s, Call) and s.leaf.text is not None and spelled(s.leaf.name) is None
        and any(isinstance(a, View) and a.buffer in tiles for a in s.arguments)
        for s in statements
    )  # fmt: skip


def mma_facts(schedule: Schedule, mma: Mma) -> SimpleNamespace:
    """Facts of a tensor-core operation as a whole, and of the part that one warpgroup computes."""
    role = schedule.role(mma.role)
    groups = role.warps // 4 if mma.unit == "wgmma" else 1
    m, n = mma.m // groups, mma.n
    own_m, own_n = m // mma.cta_group, n // mma.cta_group
    first = int(schedule.first_thread(role.name)) // 32
    which = f"(warp - {first}) // 4" if first else "warp // 4"
    if role.replicas > 1:
        which += f" % {groups}"
    # Columns of a row of K, of which one may hold two numbers.
    depth = mma.k // DTYPES[mma.dtype].packed
    space = [mma.a_space.value] if mma.a_space is not Space.SHARED else []
    parts = ["pair"] * (mma.cta_group == 2) + space + ["ws"] * mma.ws + ["scaled"] * (mma.scales is not None)
    return SimpleNamespace(
        **{**vars(mma), "m": m, "n": n},
        issued_n=_issued_n(schedule, n) if mma.unit == "wgmma" else n,
        whole=mma,
        groups=groups,
        which=which if groups > 1 else None,
        rows_a=own_m if mma.a_major == "k" else mma.k,
        rows_b=own_n if mma.b_major == "k" else mma.k,
        columns_a=depth if mma.a_major == "k" else own_m,
        columns_b=depth if mma.b_major == "k" else own_n,
        a_shared=mma.a_space is Space.SHARED,
        sums=sums_of(schedule, mma),
        packed=DTYPES[mma.dtype].packed,
        home="_".join((mma.unit, *parts)),
    )


def role_facts(schedule: Schedule, role: Role) -> SimpleNamespace:
    """Facts of a role: its threads and warps, and how many of the warps are active."""
    # Thread numbers are printed as figures: a sum over all earlier roles would say less.
    first, threads = int(schedule.first_thread(role.name)), int(role.threads)
    active = role.active or role.warps
    budget = role.registers or 0
    return SimpleNamespace(
        name=role.name,
        doc=role.doc,
        warps=int(role.warps),
        threads=threads // role.replicas,
        replicas=role.replicas,
        first=first,
        end=first + threads,
        first_warp=first // 32,
        end_warp=(first + threads) // 32,
        registers=role.registers,
        raises=budget * schedule.threads * schedule.ctas_per_sm > 65536,
        active=active,
        idle=active < role.warps,
    )


# Comments and strings of Python; names, but neither attributes nor keywords of a call.
_SILENT = re.compile(r"#.*|\"{3}.*?\"{3}|\"[^\"\n]*\"")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*\b(?!=(?!=))")


# Cached because many modules contain the same function.
@lru_cache(maxsize=4096)
def names_in_python(source: str) -> frozenset[str]:
    """The names that generated Python text reads or assigns."""
    return frozenset(_NAME.findall(_SILENT.sub("", source)))
