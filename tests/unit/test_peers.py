"""Operands of which kernels read other ranks' memory: language, executors, ops, and the way of an exchange.

The ranks are tensors of this process, allocated apart from one another; processes are in test_parallel.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import ptx_emulator as emulator
from dsl_kernels import executors, ops, peers, variants
from dsl_kernels.dsa import exchanges
from dsl_kernels.dsa.exchanges import COLLECTIVES, COPY, DIRECT, Exchange
from dsl_kernels.errors import (
    ArgumentTypeError,
    DeclarationError,
    InvalidArgumentError,
    NoVariantError,
    ScheduleError,
)
from dsl_kernels.kernels.merge_entries import problem as merge_entries
from dsl_kernels.problems.base import OperandSpec
from dsl_kernels.problems.peers import MOST_PEERS
from dsl_kernels.tile.leaf_text import Array, LeafRecorder
from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles._peers import dealt
from dsl_kernels_lab.verification import trial
from ptx_emulator import EmulatorError, LaunchError

EXECUTORS = ("interpreter", "emulator")
OPS = ("merge_outputs", "merge_entries")


def apart(ranks, rows=2, heads=3, k=70):
    """Parts and entries that each rank holds in memory of its own."""
    generator = torch.Generator().manual_seed(5)
    pairs = []
    for rank in range(ranks):
        # Something between the ranks' memory, and other addresses at each call.
        torch.empty(4096 * (rank + 1))
        tokens = torch.randperm(4 * k, generator=generator)[:k].sort().values.expand(rows, k)
        planes = torch.randint(0, 999, (3, rows, k), generator=generator).int()
        planes[-1] = tokens
        outs = torch.randn(rows, heads, 512, generator=generator).bfloat16()
        # Both at the same distance from those of other ranks: in one buffer, as an exchange leaves them.
        memory = torch.zeros(rows * heads * 514, dtype=torch.bfloat16)
        memory[: outs.numel()] = outs.flatten()
        memory[outs.numel() :].view(torch.float32).copy_(torch.randn(rows * heads, generator=generator) * 8)
        pairs.append((memory, planes.contiguous()))
    return pairs


def distances(tensors, own):
    return torch.tensor([tensor.data_ptr() - tensors[own].data_ptr() for tensor in tensors])


def parts(memory, rows=2, heads=3):
    size = rows * heads * 512
    return memory[:size].view(rows, heads, 512), memory[size:].view(torch.float32).view(rows, heads)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("ranks", "own"), [(1, 0), (2, 1), (3, 0), (8, 5)])
def test_parts_in_memory_of_their_ranks_merge_to_the_same_bits(executor, ranks, own):
    memories = [memory for memory, _ in apart(ranks)]
    pairs = [parts(memory) for memory in memories]
    sink = torch.tensor([0.5, math.inf, -math.inf])
    wanted = ops.merge_outputs(*map(torch.stack, zip(*pairs, strict=True)), sink, executor=executor)
    merged = ops.merge_peer_outputs(*pairs[own], distances(memories, own), sink, executor=executor)
    for one, other in zip(merged, wanted, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("ranks", "own"), [(1, 0), (2, 1), (3, 0), (8, 5)])
def test_entries_in_memory_of_their_ranks_come_in_the_same_order(executor, ranks, own):
    lists = [planes for _, planes in apart(ranks)]
    named = {"interleave": 7, "rank_stride": 1000, "executor": executor}
    wanted = ops.merge_entries(torch.stack(lists), **named)
    merged = ops.merge_peer_entries(lists[own], distances(lists, own), **named)
    assert all(map(torch.equal, merged, wanted))


def wrong_rank(op):
    """Inputs of which one rank's memory is taken for another one's, and the reference of the right ones."""
    workload = replace(oracles.get(op).workload("tiny"), form="peers")
    right = trial.make_example(op, workload, 3)
    far = right.inputs["peer_distances"].clone()
    far[far != 0] = 0
    return workload, trial.Example({**right.inputs, "peer_distances": far}, right.expected), right


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("op", OPS)
def test_memory_of_a_wrong_rank_is_noticed(op, executor):
    workload, wrong, right = wrong_rank(op)
    noticed = 0
    for variant in variants.variants(op):
        if variant.arch == "sm_90a" and "peers" in variant.id:
            trials = trial.run(variant, workload, executors.get(executor), example=right)
            assert trials.comparison.ok, trials.comparison.failures
            spoilt = trial.run(variant, workload, executors.get(executor), example=wrong)
            # The reference, too, goes by the distances: it is that of the right ones.
            expected = oracles.get(op).compare("peers", right.inputs, spoilt.operands, right.expected)
            assert not expected.ok
            noticed += 1
    assert noticed == 2


@pytest.mark.parametrize("op", OPS)
def test_memory_that_a_launch_is_not_told_of_is_an_error_of_the_emulator(op, monkeypatch):
    workload, _, right = wrong_rank(op)
    inputs = dict(right.inputs)
    variant = next(v for v in variants.variants(op) if v.arch == "sm_90a" and "peers" in v.id)
    # Of this rank's memory alone.
    monkeypatch.setattr(executors, "views", lambda tensor, far: [tensor])
    with pytest.raises(EmulatorError, match="global"):
        trial.run(variant, workload, executors.Emulator(), example=trial.Example(inputs, right.expected))


def test_an_index_of_no_rank_is_an_error_of_the_interpreter():
    from dsl_kernels.tile.threads import Peered, PeerPlace

    own, other = torch.arange(8), torch.arange(8) + 100
    peered = Peered(own, [other, own], [-400, 0])
    place = PeerPlace(peered.memory, torch.tensor([-50, -43, 0, 7]), "entries", peered)
    assert place.memory[place.of(None)].tolist() == [100, 107, 0, 7]
    for index, count in ((-51, 1), (-42, 1), (8, 1), (-43, 2), (7, 2)):
        place = PeerPlace(peered.memory, torch.tensor([index]), "entries", peered)
        with pytest.raises(ScheduleError, match="memory entries"):
            place.of(None, count)
        assert place.of(torch.tensor([False]), count).tolist() == [0]


def wrong_calls():
    """Of each op a right call, what is wrong in its place, and the error."""
    helds = apart(2)
    outs, lses = parts(helds[0][0])
    far = distances([memory for memory, _ in helds], 0)
    lists = helds[0][1]
    listed = distances([planes for _, planes in helds], 0)
    outputs = {"outs": outs, "lses": lses, "peer_distances": far}
    entries = {"rank_entries": lists, "peer_distances": listed, "interleave": 1}
    many = torch.zeros(MOST_PEERS + 1, dtype=torch.int64)
    long = torch.zeros(2, 1, merge_entries.MOST_LISTED, dtype=torch.int32)
    invalid, none = InvalidArgumentError, NoVariantError
    return {
        "int32": (outputs, {"peer_distances": far.int()}, ArgumentTypeError, "peer_distances"),
        "a matrix": (outputs, {"peer_distances": far[None]}, invalid, "peer_distances"),
        "a list": (outputs, {"peer_distances": far.tolist()}, ArgumentTypeError, "peer_distances"),
        "no 16 bytes": (outputs, {"peer_distances": far + 8 * (far != 0)}, invalid, "multiples of 16"),
        "addresses": (outputs, {"peer_distances": far + 4096}, invalid, "multiples of 16"),
        "lses of fewer rows": (outputs, {"lses": lses[:1]}, invalid, "lses"),
        "nine ranks": (outputs, {"peer_distances": many}, none, "ranks = 9 exceeds 8"),
        "entries of all ranks": (entries, {"rank_entries": lists[None]}, invalid, "rank_entries"),
        "one plane": (entries, {"rank_entries": lists[:1]}, invalid, "planes"),
        "no interleave": (entries, {"interleave": 0}, invalid, "interleave"),
        "no 16": (entries, {"peer_distances": listed + 4 * (listed != 0)}, invalid, "multiples of 16"),
        "too many entries": (entries, {"rank_entries": long}, none, "exceeds 16384"),
    }


@pytest.mark.parametrize("name", wrong_calls())
def test_a_wrong_argument_is_named(name):
    right, wrong, error, message = wrong_calls()[name]
    op = ops.merge_peer_outputs if "outs" in right else ops.merge_peer_entries
    op(**right, executor="interpreter")
    with pytest.raises(error, match=message):
        op(**{**right, **wrong}, executor="interpreter")


def test_every_rank_is_a_view_of_memory_where_it_lies():
    own = torch.arange(60, dtype=torch.int32).view(3, 4, 5)[:, ::2]
    other = torch.arange(60, dtype=torch.int32).view(3, 4, 5)[:, ::2] + 100
    other = torch.zeros(3, 4, 5, dtype=torch.int32)[:, ::2].copy_(other)
    views = peers.views(own, distances([own, other], 0))
    assert torch.equal(views[0], own)
    assert torch.equal(views[1], other)
    views[1][0, 0, 0] = 7
    assert other[0, 0, 0] == 7
    # What lies in one allocation moves with it.
    every = torch.randint(0, 255, (3, 40), dtype=torch.uint8)
    memory, far = dealt(every, 1, torch.Generator().manual_seed(1))
    moved = trial._moved(memory, "meta")
    assert moved.untyped_storage().nbytes() == memory.untyped_storage().nbytes()
    assert all(map(torch.equal, peers.views(memory, far), every))
    with pytest.raises(InvalidArgumentError, match="distances"):
        peers.views(moved, torch.tensor([1 << 30]))


def test_only_a_tensor_that_is_read_may_have_peers():
    with pytest.raises(DeclarationError, match="operand outs"):
        OperandSpec("outs", ("rows",), "int32", "out", peers="far")
    with pytest.raises(DeclarationError, match="operand scale"):
        OperandSpec("scale", (), "int32", "scalar", peers="far")


def test_a_peer_of_what_no_other_rank_holds_is_refused():
    m = LeafRecorder()
    distance = m.let("distance", m.thread.to("int64"))
    with pytest.raises(DeclarationError, match="memory of this rank"):
        Array("outs", "int32", "global", 0, m).of_peer("theirs", distance)
    theirs = Array("outs", "int32", "global", 0, m, peers=True).of_peer("theirs", distance)
    with pytest.raises(DeclarationError, match="a part of one"):
        theirs.of_peer("again", distance)


PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry far(.param .u64 to, .param .u64 from, .param .u64 distance)
{
  .reg .b64 %a<5>;
  .reg .b32 %r;
  ld.param.u64 %a1, [to];
  ld.param.u64 %a2, [from];
  ld.param.u64 %a3, [distance];
  add.s64 %a4, %a2, %a3;
  ld.global.b32 %r, [%a4];
  st.global.b32 [%a1], %r;
  ret;
}
"""


def test_the_emulator_keeps_the_distance_of_further_memory():
    to, own, other = (np.full(64, i, np.int32) for i in range(3))
    far = other.ctypes.data - own.ctypes.data
    for distance, wanted in ((far, 2), (0, 1), (far + 252, 2)):
        emulator.launch(PTX, 1, 1, [to, own, distance], memory=[other])
        assert to[0] == wanted
    for distance in (far + 256, 256):
        with pytest.raises(EmulatorError, match="global"):
            emulator.launch(PTX, 1, 1, [to, own, distance], memory=[other])
    with pytest.raises(LaunchError, match="memory 0 is a int"):
        emulator.launch(PTX, 1, 1, [to, own, 0], memory=[7])
    raw = emulator.RawArguments(bytes(24))
    with pytest.raises(LaunchError, match="raw arguments"):
        emulator.launch(PTX, 1, 1, raw, memory=[other])


SMALL, PROMPT = Exchange(24576, 24576), Exchange(64 << 20, 64 << 20)


@pytest.mark.parametrize(
    ("exchange", "ranks", "ways", "wanted"),
    [
        (SMALL, 2, exchanges.WAYS, DIRECT),
        (SMALL, 8, exchanges.WAYS, DIRECT),
        (SMALL, 9, exchanges.WAYS, COPY),
        (SMALL, 9, (DIRECT,), COPY),
        (replace(SMALL, read=None), 2, exchanges.WAYS, COPY),
        (replace(SMALL, read=None), 2, (DIRECT,), COPY),
        (SMALL, 4, (COPY,), COPY),
        (SMALL, 4, (COLLECTIVES,), COLLECTIVES),
        # What two and four H200 showed: collectives carry a prompt faster.
        (PROMPT, 2, exchanges.WAYS, COLLECTIVES),
        (PROMPT, 4, exchanges.WAYS, COLLECTIVES),
        (PROMPT, 4, (COPY, DIRECT), DIRECT),
    ],
)
def test_an_exchange_goes_the_way_that_is_predicted_to_be_fastest(exchange, ranks, ways, wanted):
    assert exchanges.fastest(exchange, ranks, ways) == wanted
    if len(ways) > 1:
        times = {way: exchanges.predicted(way, exchange, ranks) for way in ways}
        assert times[wanted] == min(times.values())


def test_the_model_is_near_what_was_measured():
    """Both exchanges of a step of 64 sequences of 128K tokens, beyond one without them (docs/parallel.md)."""
    given = [Exchange(64 * 24576), Exchange(64 * 16 * 1028)]
    measured = {
        (2, COPY): 224.4 - 206.3, (2, COLLECTIVES): 258.1 - 206.3,
        (4, COPY): 202.1 - 159.6, (4, COLLECTIVES): 242.7 - 159.6,
    }  # fmt: skip
    for (ranks, way), us in measured.items():
        predicted = sum(exchanges.predicted(way, exchange, ranks) for exchange in given)
        assert predicted == pytest.approx(us, rel=0.2)
