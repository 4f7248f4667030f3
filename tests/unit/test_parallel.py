"""Steps over a context that processes share: every rank against one GPU and the references over the whole
context.

The processes of a world size are started once; each runs all of its cases and then the failures.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sharded_context as shared
import torch
import torch.distributed as dist

from dsl_kernels import dsa, ops
from dsl_kernels.dsa import parallel
from dsl_kernels.errors import (
    ArgumentTypeError,
    DslKernelError,
    ExchangeError,
    ExecutorUnavailableError,
    InvalidArgumentError,
    UnknownNameError,
)
from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles import merge_entries
from dsl_kernels_lab.steps import StepInputs

ROOT = Path(__file__).resolve().parents[2]
NAMES = [case.name for case in shared.CASES]
# Every case runs on two ranks; worlds of three and four ranks share the cases between them.
SPLIT = [case.name for case in shared.CASES if case.split]
WHOLE = [name for name in NAMES if name not in SPLIT]
# Attention has kernels for 8, 16 and 32 heads, not for 24.
WORLDS = {1: ["windows"], 2: NAMES, 3: WHOLE[::2], 4: [*WHOLE[1::2], *SPLIT]}
SECONDS = 12.0


def cases(names):
    return [case for case in shared.CASES if case.name in names]


def steps_of_all(names):
    """A rank's results for each case, also with given outputs."""
    results = {}
    for case in cases(names):
        sharding = parallel.Sharding(interleave=case.interleave)
        first = shared.on_rank(case, sharding)
        given = dsa.StepOutput(*(torch.full_like(tensor, 77) for tensor in parts(first)))
        again = shared.on_rank(case, sharding, output=given) if case.name in ("pages", "windows") else first
        assert again is given or again is first
        results[case.name] = [parts(first), parts(again)]
    return results


def steps_through_memory(folder, names):
    """A rank's results when it reads its peers' buffers, twice, and when it uses the group."""
    results = {}
    for case in cases(names):
        plain = parallel.Sharding(interleave=case.interleave)
        again = []
        for transport in ("symmetric_copy", "symmetric_direct"):
            memory = shared.Symmetric(folder, case.interleave, transport)
            again += [parts(shared.on_rank(case, memory)) for _ in range(2)]
        results[case.name] = [parts(shared.on_rank(case, plain)), *again]
    results["variants"] = {selection.variant.id for selection in ops.selections()}
    return results


def test_buffers_that_peers_read_take_turns(tmp_path):
    """One barrier per exchange suffices, also for a prompt of several chunks."""
    names = ["ties", "contiguous_prompt"]
    every = shared.in_processes(2, steps_through_memory, tmp_path, str(tmp_path), names)
    assert not [outcome for outcome in every if isinstance(outcome, str)], every
    for name in names:
        first = every[0][name][0]
        for again in (*every[0][name], *every[1][name]):
            assert all(map(torch.equal, bits(first), bits(again))), name
    merged = {name for name in every[0]["variants"] if name.startswith("merge_")}
    assert len(merged) == 4, merged
    assert {name.split("__")[0] for name in merged if "peers" in name} == {"merge_entries", "merge_outputs"}


def parts(output):
    return output.out, output.lse, output.indices


def bits(tensors):
    return [tensor.contiguous().view(torch.uint8) for tensor in tensors]


@pytest.mark.usefixtures("few_sms")
@pytest.mark.parametrize("ranks", WORLDS)
def test_every_rank_has_what_one_gpu_has_over_the_whole_context(ranks, tmp_path):
    every = shared.in_processes(ranks, steps_of_all, tmp_path, WORLDS[ranks])
    failed = [outcome for outcome in every if isinstance(outcome, str)]
    assert not failed, failed[0]
    for case in cases(WORLDS[ranks]):
        compare(case, ranks, together(case, [outcome[case.name] for outcome in every]))


def together(case, every):
    """All heads' output, which unsplit ranks have anyway; every rank's calls agree, and all ranks' ids do."""
    firsts = [calls[0] for calls in every]
    for first, calls in zip(firsts, every, strict=True):
        for again in calls:
            assert all(map(torch.equal, bits(first), bits(again))), case.name
        common = slice(2, 3) if case.split else slice(0, 3)
        assert all(map(torch.equal, bits(first[common]), bits(firsts[0][common]))), case.name
    if not case.split:
        return dsa.StepOutput(*firsts[0])
    return dsa.StepOutput(*(torch.cat([first[i] for first in firsts], dim=1) for i in (0, 1)), firsts[0][2])


def compare(case, ranks, got, device="cpu"):
    """Ids equal one GPU's; attention over the whole context is within its tolerance of the reference."""
    one = shared.on_one(case, ranks, device)
    assert torch.equal(got.indices, one.indices), case.name
    whole = shared.context(case, ranks).whole
    inputs = StepInputs(case.kind, whole, shared.TOPK)
    base = case.options.get("lse_base", "2")
    sink = whole.get("attn_sink", torch.full(whole["q_nope"].shape[1:2], -math.inf))
    given = {
        "q_nope": whole["q_nope"], "q_pe": whole["q_pe"], **inputs.cache_rows(), "indices": one.indices,
        "attn_sink": sink, "sm_scale": 0.1, "lse_scale": 1.0 if base == "2" else math.log(2),
    }  # fmt: skip
    wanted = oracles.get("sparse_mla").reference(inputs.form, given)
    whole_rows = ~wanted["lse"].isnan().any(dim=1)
    assert torch.equal(got.out.isnan(), wanted["out"].isnan()), case.name
    rows = {name: tensor[whole_rows] for name, tensor in wanted.items()}
    mine = {"out": got.out[whole_rows], "lse": got.lse[whole_rows]}
    comparison = oracles.get("sparse_mla").compare(inputs.form, given, mine, rows)
    assert comparison.ok, (case.name, comparison.failures)


def fails(error, call):
    """The parts of an error that tests compare; None if the call succeeded."""
    try:
        call()
    except error as raised:
        return type(raised).__name__, raised.subject, str(raised)
    return None


def failures():
    """Calls that go wrong on one rank, as each rank sees them."""
    case = shared.CASES[0]
    rank = dist.get_rank()
    results = {}

    def wrong(name, checked, **more):
        os.environ["DSL_KERNELS_CHECK_VALUES"] = "1" if checked else "0"
        sharding = parallel.Sharding(interleave=case.interleave)
        example = shared.context(case, 2).whole["q_nope"]
        output = dsa.StepOutput(
            torch.full_like(example, 7), torch.full(example.shape[:2], 7.0),
            torch.full((8, 64), 7, dtype=torch.int32)
        )  # fmt: skip
        start = time.monotonic()
        seen = fails(DslKernelError, lambda: shared.on_rank(case, sharding, output=output, **more))
        untouched = all(bool((tensor == 7).all()) for tensor in parts(output))
        results[name] = seen, untouched, time.monotonic() - start

    wrong("another scale", True, sm_scale=0.1 + rank)
    wrong("another length", True, seq_lens=torch.tensor(case.lens, dtype=torch.int32) - rank)
    wrong("no rank 1, with checks", True, **({"topk": 0} if rank else {}))
    wrong("right", True)
    # Last, as the group is unusable after a rank did not arrive.
    wrong("no rank 1", False, **({"topk": 0} if rank else {}))
    return results


def test_a_call_that_fails_ends_on_every_rank_with_a_typed_error_and_untouched_outputs(tmp_path):
    every = shared.in_processes(2, failures, tmp_path, seconds=SECONDS)
    assert not [outcome for outcome in every if isinstance(outcome, str)], every
    for name, (seen, untouched, seconds) in itertools.chain(*(outcome.items() for outcome in every)):
        assert untouched == (name != "right"), name
        assert (seen is None) == (name == "right"), seen
        assert seconds < 20 * SECONDS
    for outcome in every:
        for name, subject in (("another scale", "sm_scale"), ("another length", "seq_lens")):
            assert outcome[name][0][:2] == ("InvalidArgumentError", subject)
            assert "rank 1" in outcome[name][0][2]
    for name in ("no rank 1", "no rank 1, with checks"):
        assert every[1][name][0][:2] == ("InvalidArgumentError", "topk")
        kind, subject, text = every[0][name][0]
        assert kind == "ExchangeError"
        assert subject.startswith("dsa.parallel.decode on rank 0, exchange of ")
        assert "rank 1 raised InvalidArgumentError: error[INVALID_ARGUMENT] topk" in text


def test_the_benchmark_runs_without_a_gpu(tmp_path):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "benchmarks/parallel_decode.py", "--cpu",
        "--only", "2 x", "--out", str(tmp_path / "found.json"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert row["check"]["collectives"]["ranks_equal"]
    assert row["check"]["collectives"]["rows_with_other_ids"] == 0
    # With random scores, no rank has exactly its share of the best.
    assert row["per_shard_wrong"]["rows"] == 2
    assert row["bytes"]["entries"] == 2 * 64 * 12


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_sharding_without_a_group_is_refused():
    with pytest.raises(ExecutorUnavailableError, match="process group"):
        parallel.Sharding()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"interleave": 0}, InvalidArgumentError),
        ({"interleave": 1.5}, ArgumentTypeError),
        ({"transport": "pigeon"}, UnknownNameError),
    ],
)
def test_options_of_a_sharding_are_checked(alone, options, error):
    with pytest.raises(error, match=next(iter(options))):
        parallel.Sharding(**options)


@pytest.mark.parametrize("interleave", [1, 16, 64, 100, 4096])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_each_position_lies_on_one_rank_and_keeps_its_order(alone, interleave, ranks):
    positions = torch.arange(1000, dtype=torch.int32)
    ends = torch.tensor([0, 1, 63, 64, 65, 500, 1000], dtype=torch.int32)
    owners = torch.zeros(1000, dtype=torch.int32)
    sharding = parallel.Sharding(interleave=interleave)
    for rank in range(ranks):
        sharding.rank, sharding.ranks = rank, ranks
        tokens = sharding.tokens(positions)
        own = positions[tokens >= 0]
        owners += tokens >= 0
        assert torch.equal(tokens[tokens >= 0], torch.arange(len(own), dtype=torch.int32))
        numbers = torch.arange(len(own), dtype=torch.int32)
        assert torch.equal(merge_entries.positions(numbers, interleave, rank, ranks), own)
        counts = torch.tensor([int((own < end).sum()) for end in ends], dtype=torch.int32)
        assert torch.equal(sharding.tokens_before(ends)[:, rank], counts)
    assert bool((owners == 1).all())
    assert sharding.tokens(torch.tensor([-1], dtype=torch.int32)).tolist() == [-1]


def wrong_arguments():
    whole = shared.context(shared.CASES[0], 1).parts[0]
    rows, heads = whole["q_nope"].shape[:2]
    out, lse, ids = torch.empty_like(whole["q_nope"]), torch.empty(rows, heads), torch.empty(rows, 64).int()
    right = dsa.StepOutput(out, lse, ids)
    return {
        "attn_sink": ({"attn_sink": torch.zeros(heads + 1)}, InvalidArgumentError),
        "attn_sink (type)": ({"attn_sink": torch.zeros(heads).double()}, ArgumentTypeError),
        "lse_base": ({"lse_base": "10"}, InvalidArgumentError),
        "topk": ({"topk": 0}, InvalidArgumentError),
        "sm_scale": ({"sm_scale": math.inf}, InvalidArgumentError),
        "kv": ({"kv": whole["kv"][:-1]}, InvalidArgumentError),
        "block_table": ({"block_table": whole["block_table"][:, :0].contiguous()}, InvalidArgumentError),
        "output.out": ({"output": replace(right, out=out[:-1])}, InvalidArgumentError),
        "output.lse": ({"output": replace(right, lse=lse.half())}, ArgumentTypeError),
        "output.indices": ({"output": replace(right, indices=ids[:, :32].contiguous())},
                           InvalidArgumentError),
        "lengths": ({"lengths": 3}, ArgumentTypeError),
        "lengths (rows)": ({"lengths": parallel.Lengths(*[torch.zeros(3).int()] * 3)}, InvalidArgumentError),
        "sharding": ({"sharding": "all"}, ArgumentTypeError),
    }  # fmt: skip


@pytest.mark.parametrize("name", wrong_arguments())
def test_a_wrong_argument_is_named_before_anything_runs(alone, name):
    given, error = wrong_arguments()[name]
    arguments = shared.arguments(shared.CASES[0], parallel.Sharding())
    with pytest.raises(error, match=name.partition(" ")[0]):
        parallel.decode(**{**arguments, **given})


def test_symmetric_memory_without_a_gpu_is_refused(alone):
    sharding = parallel.Sharding(transport="symmetric")
    sharding.ranks = 2
    with pytest.raises(ExecutorUnavailableError, match="transport"):
        sharding.buffer(0, 64, torch.device("cpu"), dsa.Workspace())


def test_a_step_of_no_rows_gives_none(alone):
    whole = shared.arguments(shared.CASES[0], parallel.Sharding())
    rows = ("q_index", "weights", "seq_lens", "block_table", "q_nope", "q_pe")
    output = parallel.decode(**{**whole, **{name: whole[name][:0].contiguous() for name in rows}})
    assert [tuple(tensor.shape) for tensor in parts(output)] == [(0, 8, 512), (0, 8), (0, 64)]


def test_lengths_of_another_type_are_refused(alone):
    sharding = parallel.Sharding()
    ends = torch.ones(4, dtype=torch.int32)
    assert sharding.lengths(ends, 64).entries.tolist() == [1] * 4
    for name, given in (
        ("ends", (ends.long(), 64)),
        ("starts", (ends, 64, ends[:2])),
        ("topk", (ends, "64")),
    ):
        with pytest.raises(DslKernelError, match=name):
            sharding.lengths(*given)


def test_partial_outputs_merge_to_attention_over_all_tokens_with_the_sink_counted_once():
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(3, 2, 4, 50, generator=generator, dtype=torch.float64)
    values = torch.randn(3, 2, 50, 512, generator=generator, dtype=torch.float64)
    logits[1, 1] = -math.inf
    logits[:, 0, 2] = -math.inf
    sink = torch.tensor([0.5, -math.inf, 1.0, math.inf])
    lses = logits.logsumexp(-1)
    outs = ((logits - lses[..., None]).exp().nan_to_num(0.0) @ values).bfloat16()
    out, lse = ops.merge_outputs(
        outs, lses.float() / math.log(2), sink, lse_scale=math.log(2), executor="interpreter"
    )
    every = logits.permute(1, 2, 0, 3).flatten(2)
    total = every.logsumexp(-1)
    weights = (every - torch.logaddexp(total, sink.double())[..., None]).exp().nan_to_num(0.0)
    wanted = weights @ values.permute(1, 0, 2, 3).flatten(1, 2)
    # Parts and the result are rounded to bf16.
    assert torch.allclose(out.double(), wanted, atol=2**-6, rtol=2**-7)
    assert torch.allclose(lse.double(), total, atol=1e-5)
    assert torch.equal(out[0, 2], torch.zeros(512, dtype=torch.bfloat16))


def missing_gpus() -> str:
    if torch.cuda.device_count() < 2:
        return f"needs two GPUs, found {torch.cuda.device_count()}"
    return "" if dist.is_nccl_available() else "needs a torch with NCCL"


def steps_on_gpus(transport, names=NAMES):
    """Every case, one process per rank; decode steps also from a graph captured with other lengths."""
    results = {}
    for case in cases(names):
        sharding = parallel.Sharding(interleave=case.interleave, transport=transport)
        outputs = [shared.on_rank(case, sharding)]
        if case.lens:
            outputs.append(shared.replayed(case, sharding))
        results[case.name] = [[tensor.cpu() for tensor in parts(output)] for output in outputs]
    return results


@pytest.mark.sm90
@pytest.mark.skipif(bool(missing_gpus()), reason=missing_gpus() or "two GPUs are there")
@pytest.mark.parametrize("transport", ["collectives", "symmetric_copy", "symmetric_direct", "fastest"])
def test_two_gpus_have_what_one_has(transport, tmp_path):
    every = shared.in_processes(2, steps_on_gpus, tmp_path, transport, backend="nccl")
    assert not [outcome for outcome in every if isinstance(outcome, str)], every
    for case in shared.CASES:
        compare(case, 2, together(case, [outcome[case.name] for outcome in every]), "cuda")


@pytest.mark.sm90
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, found none")
@pytest.mark.parametrize(
    ("ranks", "transport"), [(2, "symmetric_direct"), (4, "symmetric_direct"), (2, "symmetric_copy")]
)
def test_ranks_of_one_gpu_have_what_one_has(ranks, transport, tmp_path):
    """Every rank a process of its own on the same GPU, whose kernels read the others' symmetric memory."""
    names = WORLDS[ranks]
    every = shared.in_processes(ranks, steps_on_gpus, tmp_path, transport, names, backend=shared.ONE_GPU)
    assert not [outcome for outcome in every if isinstance(outcome, str)], every
    for case in cases(names):
        compare(case, ranks, together(case, [outcome[case.name] for outcome in every]), "cuda")


def test_what_a_rank_misses_says_how_to_go_on():
    error = ExchangeError("dsa.parallel.decode on rank 0", expected="2 ranks", got="1", fix="look at rank 1")
    assert isinstance(error, RuntimeError)
    assert error.code == "EXCHANGE"
