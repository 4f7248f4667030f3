"""Barriers, mbarriers, fences, clusters."""

from __future__ import annotations

from ..ptx import Addr, Imm, Pair, Sink
from .base import Ctx, decoder

SHARED = ("shared", "shared::cta", "shared::cluster")
FENCE_SEM = {"acq_rel": 4, "sc": 4, "acquire": 2, "release": 3}


@decoder("bar", "barrier")
def _bar(c: Ctx) -> None:
    """m0 mode (0 sync, 1 arrive, 2 red), m1 reduction (0 popc, 1 and, 2 or)."""
    if c.take("cluster"):
        _cluster(c)
        return
    if c.base == "bar" and c.take("warp", "sync"):
        c.done()
        c.count(1)
        c.emit_all("warpsync")
        return
    c.drop("cta")
    aligned = int(c.take("aligned") or c.base == "bar")
    if c.take("red"):
        op = c.choose({"popc": 0, "and": 1, "or": 2}, what="reduction")
        c.type("u32 pred")
        c.done()
        c.count(3, 4)
        dst, ident, *rest = c.ops
        count = rest[0] if len(rest) == 2 else None
        c.emit("bar", m=[2, op, aligned], ops=[ident, count, dst, rest[-1]], writes=range(2, 3))
        return
    mode = c.choose({"sync": 0, "arrive": 1}, what="mode")
    c.done()
    c.count(1, 2)
    c.emit(
        "bar",
        m=[mode, 0, aligned],
        ops=[c.ops[0], c.ops[1] if len(c.ops) > 1 else None],
        writes=range(0),
    )


def _cluster(c: Ctx) -> None:
    arrive = c.choose({"wait": 0, "arrive": 1}, what="mode")
    relaxed = int(c.take("relaxed"))
    c.drop("acquire", "release")
    aligned = int(c.take("aligned"))
    c.done()
    c.emit("cluster_arrive" if arrive else "cluster_wait", m=[relaxed, aligned])


@decoder("mbarrier")
def _mbarrier(c: Ctx) -> None:
    combined = c.take("arrive", "expect_tx")
    kinds = (
        "init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "test_wait", "try_wait",
        "pending_count",
    )  # fmt: skip
    kind = kinds.index("arrive") if combined else c.choose(kinds, what="mbarrier operation")
    c.drop("b64", *SHARED, "cta", "cluster")
    relaxed = int(c.take("relaxed"))
    c.drop("acquire", "release")
    if kind == 0:
        c.done()
        c.count(2)
        c.emit_all("mbar_init")
    elif kind == 1:
        c.done()
        c.count(1)
        c.emit_all("mbar_inval")
    elif kind in (2, 3):
        no_complete = int(c.take("noComplete"))
        c.done()
        # Forms: [addr]{, n} and state, [addr]{, n}; the state may be the sink.
        c.count(1, 3)
        state = Sink() if isinstance(c.ops[0], Addr) else c.ops.pop(0)
        c.count(1, 2)
        count = c.ops[1] if len(c.ops) > 1 else None
        c.emit(
            "mbar_arrive",
            m=[int(kind == 3), int(combined), relaxed, no_complete],
            ops=[state, c.ops[0], count],
        )
    elif kind in (4, 5):
        c.done()
        c.count(2)
        c.emit_all("mbar_tx", m=[kind - 4])
    elif kind in (6, 7):
        parity = int(c.take("parity"))
        c.done()
        c.count(3, 4)
        p = c.ops[0].first if isinstance(c.ops[0], Pair) else c.ops[0]
        c.emit("mbar_wait", m=[kind - 6, parity, relaxed], ops=[p, c.ops[1], c.ops[2]])
    else:
        raise c.fail("mbarrier.pending_count is not supported")


@decoder("fence", "membar")
def _fence(c: Ctx) -> None:
    """fence: m0 ordering, m1 scope. fence_proxy: m0 kind (0 async both ways, 1 mbarrier init, 2 others)."""
    if c.take("mbarrier_init"):
        c.drop("release", "cluster")
        c.done()
        c.emit("fence_proxy", m=[1])
        return
    if c.take("proxy"):
        if c.take("async"):
            c.drop("global", *SHARED)
            c.done()
            c.emit("fence_proxy", m=[0])
        elif c.take("alias"):
            c.done()
            c.emit("fence_proxy", m=[2])
        elif c.take("tensormap::generic"):
            _tensormap_fence(c)
        elif c.take("async::generic"):
            c.drop(
                "acquire",
                "release",
                "cluster",
                *(t for t in c.tokens if t.startswith(("sync_restrict", *SHARED))),
            )
            c.done()
            c.emit("fence_proxy", m=[0])
        else:
            raise c.fail("unknown proxy fence")
        return
    if c.base == "membar":
        scope = c.choose({"cta": 0, "gl": 2, "sys": 3}, what="scope")
        c.done()
        c.emit("fence", m=[4, scope])
        return
    sem = c.choose(FENCE_SEM, 4, "ordering")
    c.tokens = [t for t in c.tokens if not t.startswith("sync_restrict")]
    scope = c.choose({"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}, what="scope")
    c.done()
    c.emit("fence", m=[sem, scope])


def _tensormap_fence(c: Ctx) -> None:
    """The acquire covers the one map that it names; the release is an ordinary release fence."""
    acquire = c.choose({"acquire": 1, "release": 0}, what="direction")
    scope = c.choose({"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}, what="scope")
    c.done()
    if not acquire:
        c.count(0)
        c.emit("fence", m=[3, scope])
        return
    c.count(2)
    if not isinstance(c.ops[1], Imm) or c.ops[1].value != 128:
        raise c.fail("a tensor map has 128 bytes")
    c.emit("tm_acquire", ops=[c.ops[0]])


@decoder("griddepcontrol")
def _griddep(c: Ctx) -> None:
    mode = c.choose({"launch_dependents": 0, "wait": 1}, what="mode")
    c.done()
    c.emit("griddep", m=[mode])


@decoder("clusterlaunchcontrol")
def _launch_control(c: Ctx) -> None:
    """try_cancel: m0 whether all CTAs of the cluster get the answer.

    query_cancel: m0 the question (0 whether cancelled, 1 x, 2 y, 3 z, 4 all three coordinates).
    """
    c.type("b128")
    if c.take("try_cancel", "async", "mbarrier::complete_tx::bytes"):
        every = int(c.take("multicast::cluster::all"))
        c.drop(*SHARED)
        c.done()
        c.count(2)
        c.emit_all("clc_try", m=[every])
        return
    if not c.take("query_cancel"):
        raise c.fail("unknown form of cluster launch control")
    first = "get_first_ctaid"
    what = c.choose(("is_canceled", f"{first}::x", f"{first}::y", f"{first}::z", first), what="query")
    c.drop("pred", "b32", "v4")
    c.done()
    c.count(2)
    answers = c.flat(c.ops[:1])
    if len(answers) != (4 if what == 4 else 1):
        raise c.fail(f"{len(answers)} destinations, expected {4 if what == 4 else 1}")
    c.emit_all("clc_query", m=[what], writes=range(len(answers)))
