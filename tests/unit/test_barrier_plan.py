"""The barrier plan: counts, phases, fences, release points, and a model check of the protocol."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import dsl_kernels
from dsl_kernels import programs
from dsl_kernels.arch import ARCHS
from dsl_kernels.errors import DeclarationError
from dsl_kernels.tile.lang import Buffer, Engine, Pipeline, Reader, Role, Schedule, Space
from dsl_kernels.tile.plan import barrier_plan, words_of
from dsl_kernels.tile.transfers import KINDS, Action, Bulk, Multicast, Pair, transfer_of


def schedule(
    fill: Engine, readers: tuple[Reader, ...], *, stages: int = 2, space: Space = Space.SHARED, **pipe
) -> Schedule:
    shape = (128, 64) if space is Space.TENSOR else (64, 64)
    return Schedule(
        roles=(Role("math", 4), Role("copy", 1), Role("mma", 1)),
        buffers=(Buffer("tile", space, shape, "bfloat16" if space is Space.SHARED else "float32", stages),),
        pipelines=(Pipeline("ring", ("tile",), pipe.pop("producer", "copy"), fill, readers, stages, **pipe),),
        mmas=(),
        grid=("1",),
    )


def plan_of(*args, **kwargs):
    return barrier_plan(schedule(*args, **kwargs)).pipelines["ring"]


def test_bulk_copy_to_wgmma_announces_bytes_and_frees_after_the_wgmma_wait():
    plan = plan_of(Engine.BULK, (Reader("math", Engine.WGMMA),))
    assert (plan.full.count, plan.full.tx_bytes) == (1, 64 * 64 * 2)
    assert plan.commit == (Action.EXPECT_TX,)
    assert plan.wait["math"] == (Action.WAIT_FULL,)
    assert plan.release["math"] == (Action.WAIT_WGMMA, Action.ARRIVE_EMPTY)
    assert plan.empty.count == 128


def test_stores_of_peers_announce_bytes_and_need_no_empty_barrier():
    plan = plan_of(Engine.PEERS, (Reader("math", Engine.THREADS),), producer="math")
    assert (plan.full.count, plan.full.tx_bytes) == (1, 64 * 64 * 2)
    assert plan.commit == (Action.EXPECT_TX,) and plan.wait["math"] == (Action.WAIT_FULL,)
    assert plan.empty is None and plan.acquire == () and plan.release["math"] == ()


def test_words_through_the_grid_need_no_barrier_in_memory():
    plan = plan_of(
        Engine.GRID, (Reader("math", Engine.THREADS),), producer="math", rounds="once", through="x"
    )
    assert plan.full is None and plan.empty is None
    assert plan.acquire == plan.commit == () and plan.wait["math"] == (Action.WAIT_WORDS,)


def test_pipelines_through_one_operand_lie_side_by_side():
    declared = schedule(
        Engine.GRID, (Reader("math", Engine.THREADS),), producer="math", rounds="once", through="x"
    )
    (pipe,), words = declared.pipelines, 64 * 64
    both = replace(
        declared, pipelines=(pipe, replace(pipe, name="next"), replace(pipe, name="other", through="y"))
    )
    assert words_of(both, "x") == (2 * words, {"ring": 0, "next": words})
    assert words_of(both, "y") == (words, {"other": 0})


def test_cp_async_to_an_async_reader_is_fenced_by_the_reader():
    plan = plan_of(Engine.CP_ASYNC, (Reader("mma", Engine.TCGEN05),))
    assert plan.full.count == 32 and plan.full.tx_bytes == 0
    assert plan.wait["mma"] == (Action.WAIT_FULL, Action.FENCE_PROXY, Action.FENCE_AFTER)
    assert plan.release["mma"] == (Action.COMMIT_EMPTY,)
    assert plan.empty.count == 1


def test_thread_stores_to_thread_loads_need_no_proxy_fence():
    plan = plan_of(Engine.THREADS, (Reader("math", Engine.THREADS, "warp"),), fill_arrive="warp")
    assert plan.commit == (Action.ELECT, Action.ARRIVE_FULL) and plan.full.count == 1
    assert plan.release["math"] == (Action.ELECT, Action.ARRIVE_EMPTY) and plan.empty.count == 4


def test_thread_stores_to_tcgen05_are_fenced_by_the_writer():
    plan = plan_of(Engine.THREADS, (Reader("mma", Engine.TCGEN05),), producer="math")
    assert plan.commit == (Action.FENCE_PROXY, Action.ARRIVE_FULL)
    assert Action.FENCE_PROXY not in plan.wait["mma"]


def test_accumulators_travel_through_commit_and_tmem_loads():
    plan = plan_of(Engine.TCGEN05, (Reader("math", Engine.TMEM),), producer="mma", space=Space.TENSOR)
    assert plan.commit == (Action.COMMIT_FULL,) and plan.full.count == 1
    assert plan.wait["math"] == (Action.WAIT_FULL, Action.FENCE_AFTER)
    assert plan.release["math"] == (Action.WAIT_TMEM_LOAD, Action.FENCE_BEFORE, Action.ARRIVE_EMPTY)
    assert plan.acquire == (Action.WAIT_EMPTY, Action.FENCE_AFTER)


def test_tmem_operand_is_stored_waited_and_fenced_before_the_mma_reads_it():
    plan = plan_of(Engine.TMEM, (Reader("mma", Engine.TCGEN05),), producer="math", space=Space.TENSOR)
    assert plan.commit == (Action.WAIT_TMEM_STORE, Action.FENCE_BEFORE, Action.ARRIVE_FULL)
    assert Action.FENCE_PROXY not in plan.commit
    assert plan.wait["mma"] == (Action.WAIT_FULL, Action.FENCE_AFTER)


def test_two_readers_add_up_and_a_commit_counts_once():
    plan = plan_of(Engine.BULK, (Reader("math", Engine.THREADS), Reader("mma", Engine.TCGEN05)))
    assert plan.empty.count == 128 + 1


@pytest.mark.parametrize("arrive,count", [("thread", 3 * 128), ("warp", 3 * 4), ("role", 3)])
def test_every_replica_of_a_reader_arrives(arrive: str, count: int) -> None:
    roles = (Role("math", 4, replicas=3), Role("copy", 4, active=1))
    base = schedule(Engine.CP_ASYNC, (Reader("math", Engine.THREADS, arrive),))
    plan = barrier_plan(replace(base, roles=roles)).pipelines["ring"]
    assert plan.empty.count == count
    # Warps that only donate their registers copy nothing and arrive nowhere.
    assert plan.full.count == 32


def test_a_single_hand_over_has_no_empty_barrier():
    plan = plan_of(Engine.BULK, (Reader("math", Engine.THREADS),), stages=1, rounds="once")
    assert plan.empty is None and plan.acquire == () and plan.release["math"] == ()


def test_wgmma_cannot_fill_a_buffer():
    with pytest.raises(DeclarationError, match="accumulates in registers"):
        plan_of(Engine.WGMMA, (Reader("math", Engine.THREADS),))


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_parities_hold_under_any_interleaving(stages: int) -> None:
    """On modelled mbarriers the derived protocol overwrites no unread slot and reads no unfilled one."""
    plan = plan_of(Engine.BULK, (Reader("math", Engine.THREADS, "role"),), stages=stages)
    for seed in range(20):
        rng = random.Random(seed)
        full, empty, content = [0] * stages, [0] * stages, [None] * stages
        produced = consumed = 0
        while consumed < 4 * stages + 3:
            # try_wait.parity(P) passes once the phase of parity P is complete: the current phase then has
            # parity 1 - P.
            can_fill = (empty[produced % stages] & 1) != plan.empty_parity(produced)
            can_read = (full[consumed % stages] & 1) != plan.full_parity(consumed)
            assert can_fill or can_read, "deadlock"
            if can_fill and (not can_read or rng.random() < 0.5):
                slot = produced % stages
                assert content[slot] is None, "overwrites an unread slot"
                content[slot] = produced
                full[slot] += 1
                produced += 1
            else:
                slot = consumed % stages
                assert content[slot] == consumed, "reads another use's data"
                content[slot] = None
                empty[slot] += 1
                consumed += 1


@pytest.mark.parametrize("op,arch", list(product(programs.names(), ARCHS)))
def test_every_declared_program_has_a_plan_without_orphans(op: str, arch: str) -> None:
    from codegen.sweep import combinations

    program = programs.get(op)
    for knobs in combinations(program, ARCHS[arch], 0):
        s = program.schedule(knobs, ARCHS[arch])
        plan = barrier_plan(s)
        assert set(plan.pipelines) == {p.name for p in s.pipelines}
        for barrier in plan.barriers:
            assert barrier.count >= 1 and barrier.stages >= 1
        assert len({b.name for b in plan.barriers}) == len(plan.barriers)


def test_an_accumulator_returned_by_another_pipeline_is_fenced_there():
    s = programs.get("sparse_mla").schedule(
        {"heads": 16, "kv": "bf16", "tile": 64, "cluster": 1, "gather": "cp_async"}, ARCHS["sm_100a"]
    )
    plan = barrier_plan(s).pipelines
    assert plan["o"].empty is None and plan["o"].full.count == 1
    assert plan["p"].commit == (
        Action.FENCE_PROXY, Action.WAIT_TMEM_LOAD, Action.WAIT_TMEM_STORE, Action.FENCE_BEFORE,
        Action.ARRIVE_FULL,
    )  # fmt: skip


def test_weights_in_tensor_memory_may_return_an_accumulator_that_was_read():
    """Loads of the accumulator have completed before the weights are handed over, so those return it too."""
    arch, program = ARCHS["sm_100a"], programs.get("gqa_forward")
    knobs = {"dtype": "fp16", "dim": 64, "tile": 64, "stages": 3, "cluster": 1, "lazy": 2}
    plan = barrier_plan(program.schedule(knobs, arch))
    assert plan.pipelines["o_0"].empty is None
    assert plan.pipelines["p_0"].commit == (
        Action.WAIT_TMEM_LOAD,
        Action.WAIT_TMEM_STORE,
        Action.FENCE_BEFORE,
        Action.ELECT,
        Action.ARRIVE_FULL,
    )


# Names of operations that order threads or engines. Only the plan and the text may use them, spelled by the
# templates.
SYNCHRONISATION = re.compile(
    r"mbarrier[\w.:]*|\w*fence\w*|\w*sync_?threads\w*|\w*sync_?warp\w*"
    r"|bar(?:rier)?\.(?:sync|arrive|cluster)[\w.]*"
    r"|arch\.barrier|\bcluster_(?:arrive|wait)\w*|\w*_elect\b|\belect_\w+|(?:de)?alloc_(?:tmem|barrier)"
    r"|tmem_alloc\w*|griddepcontrol\w*|pdl_\w+|(?:commit|wait)_(?:group|wgmma)"
    r"|cp_async_(?:wait|commit|barrier)\w*"
    r"|cp\.async\.(?:wait|commit|mbarrier)\w*"
    r"|acq_rel|(?:ld|st)\.relaxed|named_barrier|tcgen05_(?:before|after|mma_arrive)\w*"
)
# Exceptions, and why each is no statement of a text.
BY_HAND = {
    ("kernels/sparse_mla/leaves/results.py", "sync_warp"):
        "a warp reads back rows of shared memory that it alone writes",
    ("kernels/sparse_mla/leaves/gather.py", "sync_warp"):
        "keeps a thread's loads where they are written; no data passes",
    ("device/cutedsl/inbox.py", "st.relaxed"):
        "what a leaf sends through the grid with, and wait_words is spelled with",
    ("device/cutedsl/inbox.py", "ld.relaxed"): "what wait_words is spelled with",
    ("device/cutedsl/fragment_sm100.py", "fence_view_async_tmem_load"): "a thread waits for its own loads",
    ("kernels/lightning_indexer/cutedsl_sm100.py", "fence_view_async_tmem_load"):
        "a thread waits for its own loads",
    ("device/cutedsl/bulk.py", "elect_one"): "one lane issues a tile's gathers, which are one copy",
    ("device/cutedsl/bulk.py", "mbarrier::complete_tx::bytes"): "a copy that signals",
    ("device/tilelang/boxes.py", "mbarrier_expect_tx"):
        "one lane announces the bytes of the box that it copies",
    ("device/cutedsl/launch_control.py", "elect_one"): "one lane asks for a CTA",
    ("device/cutedsl/launch_control.py", "mbarrier::complete_tx::bytes.b128"): "an answer that signals",
    ("device/cutedsl/launch_control.py", "fence"): "the next answer comes after this one was read",
    ("device/cutedsl/tcgen05_copy.py", "elect_one"): "one lane issues a copy, as it does products",
    ("device/cutedsl/tcgen05_scaled.py", "elect_one"): "one lane issues a product, as CuTe DSL's own",
    ("device/cutedsl/tcgen05_ws.py", "elect_one"): "one lane issues a product, as CuTe DSL's own",
    ("device/tilelang/launch_control.py", "elect_one_sync"): "one lane asks for a CTA",
    ("device/tilelang/launch_control.py", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"):
        "a fill of TileLang announces its own bytes",
    ("device/tilelang/launch_control.py", "mbarrier::complete_tx::bytes.b128"): "an answer that signals",
    ("device/tilelang/launch_control.py", "fence"): "the next answer comes after this one was read",
    ("device/tilelang/tcgen05.py", "elect_one_sync"):
        "one lane issues a copy or a product, as TileLang's own",
    ("device/cutedsl/warps.py", "sync_warp"): "what a leaf's text is spelled with",
    ("device/cutedsl/warps.py", "mbarrier::complete_tx::bytes.v4.f32"): "st.async: a store that signals",
    ("device/cutedsl/warps.py", "fence_proxy"): "the copy engine reads what a warp sends",
    ("device/tilelang/tcgen05_pairs.py", "elect_one_sync"): "one lane issues a product, as TileLang's own",
    ("device/cutedsl/warps.py", "elect_one"): "one lane copies to another CTA",
    ("device/cutedsl/warps.py", "mbarrier::complete_tx::bytes"): "a copy that signals",
    ("device/tilelang/warps.py", "sync_warp"): "what a leaf's text is spelled with",
    ("device/cutedsl/grid.py", "acq_rel"): "the atomic of a ticket",
    ("device/tilelang/grid.py", "acq_rel"): "the atomic of a ticket",
    ("device/tilelang/grid.py", "cluster_arrive"): "what cluster_arrive is spelled with",
    ("device/tilelang/grid.py", "cluster_arrive_relaxed"): "what cluster_arrive is spelled with",
    ("device/tilelang/grid.py", "cluster_wait"): "what cluster_wait is spelled with",
    ("device/tilelang/grid.py", "barrier.cluster.arrive.release"): "what cluster_arrive is spelled with",
    ("device/tilelang/grid.py", "barrier.cluster.arrive.relaxed"): "what cluster_arrive is spelled with",
    ("device/tilelang/grid.py", "barrier.cluster.wait.acquire"): "what cluster_wait is spelled with",
    ("device/tilelang/sync.py", "bar.sync"): "what take_turn is spelled with",
    ("device/tilelang/sync.py", "bar.arrive"): "what pass_turn is spelled with",
    ("device/tilelang/sync.py", "barrier.cluster.arrive.release"): "what meet_cluster is spelled with",
    ("device/tilelang/sync.py", "barrier.cluster.wait.acquire"): "what meet_cluster is spelled with",
    ("device/cutedsl/boxes.py", "mbarrier_arrive"): "what arrive_empty_cluster is spelled with",
    ("device/tilelang/boxes.py", "shuffle_elect"): "one lane copies a box",
    ("device/tilelang/tcgen05.py", "shuffle_elect"): "one lane commits, as in TileLang's own commit",
    (
        "device/tilelang/tcgen05.py", "mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
    ): "what a release to several CTAs is spelled with",
    ("device/tilelang/bulk.py", "mbarrier::complete_tx::bytes.cta_group::2"): "a copy that signals",
    ("device/tilelang/bulk.py", "mbarrier_expect_tx"): "a copy of TileLang announces its own bytes",
    ("device/tilelang/bulk.py", "shuffle_elect"): "one lane announces the bytes and issues the copies",
    ("templates/tilelang/_frame.py.j2", "alloc_tmem"): "storage; TileLang sets it up",
    ("templates/tilelang/_frame.py.j2", "alloc_barrier"): "storage; TileLang sets it up",
}  # fmt: skip


def test_no_leaf_and_no_frame_synchronises_by_hand() -> None:
    """A few exceptions are part of one copy, or stay within a warp or a thread."""
    root = Path(dsl_kernels.__file__).parent
    paths = [
        path for folder in ("text", "tilelang", "cutedsl") for path in root.glob(f"device/{folder}/*.py")
    ]
    paths += [*root.glob("kernels/*/leaves.py"), *root.glob("kernels/*/leaves/*.py")]
    paths += [path for dsl in ("tilelang", "cutedsl") for path in root.glob(f"kernels/*/{dsl}*.py")]
    paths += [
        p for p in root.parent.glob("templates/*/*.j2") if p.name not in ("_actions.j2", "_spelling.j2")
    ]
    assert len(paths) > 15
    exceptions = set()
    for path in paths:
        # Prose may use the names.
        text = re.sub(
            r'"""(?:[^"]|"(?!""))*"""' if path.suffix == ".py" else r"\{#.*?#\}",
            _code_of,
            path.read_text(),
            flags=re.S,
        )
        text = re.sub(r"(?m)(#|//) .*$", "", text)
        place = path.relative_to(root if path.is_relative_to(root) else root.parent).as_posix()
        exceptions |= {(place, word) for word in SYNCHRONISATION.findall(text)}
    assert exceptions == BY_HAND.keys(), exceptions ^ BY_HAND.keys()


def _code_of(literal: re.Match[str]) -> str:
    """A triple-quoted string if it is source of another language; nothing if it is prose."""
    return literal[0] if ";" in literal[0] and "{" in literal[0] and "asm" in literal[0] else ""


def test_every_engine_is_a_kind_of_transfer() -> None:
    assert set(KINDS) == set(Engine) and all(kind.engine is engine for engine, kind in KINDS.items())


def test_a_pair_whose_slots_are_multicast_goes_by_the_barriers_of_the_pair() -> None:
    """A barrier counts the bytes of both CTAs, an arrival in the first, and the readers of every CTA."""
    reader = (Reader("mma", Engine.TCGEN05),)
    declared = schedule(Engine.BULK, reader, multicast=True, pair=True)
    plan = barrier_plan(replace(declared, cluster=(2, 1, 1))).pipelines["ring"]
    assert (plan.commit, plan.full.tx_bytes) == ((Action.EXPECT_TX_PAIR,), 2 * 64 * 64 * 2)
    assert (plan.release["mma"], plan.empty.count) == ((Action.COMMIT_EMPTY_PAIR,), 2)
    transfer = transfer_of(declared.pipelines[0])
    assert isinstance(transfer, Multicast) and isinstance(transfer, Pair) and isinstance(transfer, Bulk)


@pytest.mark.parametrize("wrapped", ["multicast", "pair"])
@pytest.mark.parametrize("fill", list(Engine))
def test_a_wrapper_takes_the_kinds_that_it_can_wrap(fill: Engine, wrapped: str) -> None:
    kind = KINDS[fill]
    reader = (Reader("math", kind.PAIRED_WITH or Engine.THREADS),)
    declared = replace(
        schedule(fill, reader, fill_arrive=kind.MULTICAST_BY or "thread", **{wrapped: True}),
        cluster=(2, 1, 1),
        group=(0,),
    )
    fits = {
        "multicast": {Engine.BULK, Engine.THREADS},
        "pair": {Engine.BULK, Engine.THREADS, Engine.TMEM, Engine.TCGEN05},
    }[wrapped]
    faults = [expected for _, expected, _ in transfer_of(declared.pipelines[0]).faults(declared)]
    assert any(expected.startswith(wrapped) for expected in faults) == (fill not in fits), faults
