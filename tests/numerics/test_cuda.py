"""Variants on a GPU: every workload, repeats, CUDA graphs with padded rows, the whole step."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch

from dsl_kernels import dsa, variants
from dsl_kernels.errors import InvalidArgumentError, LaunchError, ResidencyError
from dsl_kernels.executors import Cuda
from dsl_kernels.ops import Workspace, clear, sparse_mla, topk_selector
from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial

VARIANTS = [
    pytest.param(v, id=v.id, marks=getattr(pytest.mark, v.arch.replace("_", "").rstrip("a")))
    for v in variants.variants()
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_workload_matches_the_reference(variant) -> None:
    executor = Cuda()
    workloads = trial.workloads(variant, "tiny", "edge", "real")
    assert workloads, "no workload fits this variant"
    for workload in workloads:
        drawn = trial.cached_example(variant.op, workload)
        result = trial.run(variant, workload, executor, device="cuda:0", example=drawn)
        assert result.comparison.ok, (workload.name, result.comparison.failures)


@pytest.mark.parametrize("variant", VARIANTS)
def test_twenty_repeats_are_bitwise_equal(variant) -> None:
    launcher = Cuda().prepare(variant)
    problem = oracles.get(variant.op)
    for workload in trial.workloads(variant, "edge", "real"):
        inputs = trial.to_device(trial.cached_example(variant.op, workload).inputs, "cuda:0")
        first = None
        for _ in range(20):
            operands, dims = trial.allocate(variant, workload, inputs)
            launcher(operands, dims, torch.cuda.current_stream().cuda_stream)
            outputs = [
                operands[s.name].view(torch.uint8) for s in problem.operands(workload.form) if s.kind == "out"
            ]
            first = first or outputs
            assert all(torch.equal(a, b) for a, b in zip(first, outputs, strict=True)), workload.name


def split_workload(heads: int, kv: str) -> Workload:
    params = {"t": 3, "heads": heads, "topk": 2048, "n": 4096, "ids": "mixed", "sink": True}
    return Workload("splits", "edge", kv, params)


@cache
def split_example(heads: int, kv: str) -> trial.Example:
    return trial.make_example("sparse_mla", split_workload(heads, kv), seed=1)


@pytest.mark.parametrize("splits", [1, 2, 3, 5, 8, 16, 32])
@pytest.mark.parametrize("variant", [p for p in VARIANTS if p.values[0].op == "sparse_mla"])
def test_any_split_of_attention(variant, splits: int) -> None:
    knobs = variant.knobs
    workload = split_workload(knobs["heads"], knobs["kv"])
    drawn = split_example(knobs["heads"], knobs["kv"])
    if trial.accepts(variant, workload, drawn.inputs, {"splits": splits}) is not None:
        pytest.skip(f"the variant does not take {splits} splits")
    result = trial.run(variant, workload, Cuda(), device="cuda:0", launch={"splits": splits}, example=drawn)
    assert result.comparison.ok, result.comparison.failures


def step(lens: list[int], context: int) -> dict:
    index = oracles.get("lightning_indexer")
    pages = 512
    generator = torch.Generator().manual_seed(7)
    params = {
        "lens": [[length] for length in lens],
        "heads": 64,
        "pages": pages,
        "spare_pages": context // 64,
    }
    inputs = index.make(Workload("w", "real", "decode", params), generator)
    rows = len(lens)
    made = {
        "q_index":
            inputs["q"], "k_index_cache": inputs["k_cache"].view(pages, 64, 1, 132),
            "weights": inputs["weights"],
        "seq_lens": inputs["seq_lens"], "block_table": inputs["block_table"][:, : context // 64].contiguous(),
        "q_nope": torch.randn(rows, 16, 512, generator=generator).bfloat16(),
        "q_pe": torch.randn(rows, 16, 64, generator=generator).bfloat16(),
        "kv": torch.randn(pages, 64, 512, generator=generator).bfloat16(),
        "kpe": torch.randn(pages, 64, 64, generator=generator).bfloat16(),
    }  # fmt: skip
    return {name: tensor.cuda() for name, tensor in made.items()}


def check_attention(inputs: dict, output: dsa.StepOutput) -> None:
    values = {
        "q_nope":
            inputs["q_nope"], "q_pe": inputs["q_pe"], "ckv": inputs["kv"].view(-1, 512),
            "kpe": inputs["kpe"].view(-1, 64),
        "indices":
            output.indices, "attn_sink": torch.full((16,), -math.inf), "sm_scale": 0.1, "lse_scale": 1.0,
    }  # fmt: skip
    values = trial.on_cpu(values)
    outputs = trial.on_cpu({"out": output.out, "lse": output.lse})
    problem = oracles.get("sparse_mla")
    comparison = problem.compare("bf16", values, outputs, problem.reference("bf16", values))
    assert comparison.ok, comparison.failures


def capture(inputs: dict, output: dsa.StepOutput, scratch: Workspace | None = None) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dsa.decode(**inputs, sm_scale=0.1, output=output, workspace=scratch)
    return graph


def check_replay(graph: torch.cuda.CUDAGraph, inputs: dict, output: dsa.StepOutput, lens: list[int]) -> None:
    """Replay with other data and lengths, over poisoned outputs, and compare with a step outside a graph."""
    other = step(lens, inputs["block_table"].shape[1] * 64)
    for name, tensor in inputs.items():
        tensor.copy_(other[name])
    for tensor in (output.out, output.lse):
        tensor.fill_(math.nan)
    output.indices.fill_(-7)
    graph.replay()
    torch.cuda.synchronize()
    counts = (output.indices >= 0).sum(dim=1).tolist()
    assert counts == [min(2048, length) for length in lens]
    eager = dsa.decode(**inputs, sm_scale=0.1, workspace=Workspace())
    assert torch.equal(eager.indices, output.indices) and torch.equal(eager.out, output.out)
    check_attention(inputs, output)


@pytest.mark.sm90
def test_a_captured_step_replays_with_other_lengths_and_padded_rows() -> None:
    inputs = step([8000, 5000, 100, 0], 8192)
    scratch = Workspace()
    output = dsa.decode(**inputs, sm_scale=0.1, workspace=scratch)
    graph = capture(inputs, output, scratch)
    for lens in ([8000, 5000, 100, 0], [0, 0, 0, 8192], [2048, 2049, 1, 63], [4096, 64, 65, 3000], [0] * 4):
        check_replay(graph, inputs, output, lens)


@pytest.mark.sm90
@pytest.mark.parametrize("given", [True, False], ids=["own_workspace", "no_workspace"])
def test_a_captured_step_outlives_steps_of_other_sizes(given: bool) -> None:
    """Larger steps make the workspace grow, smaller ones reuse its front; the graph keeps its memory."""
    inputs = step([8000, 5000, 0], 8192)
    scratch = Workspace() if given else None
    output = dsa.decode(**inputs, sm_scale=0.1, workspace=scratch)
    graph = capture(inputs, output, scratch)
    for number, (lens, context) in enumerate(
        (([9000] * 7, 16384), ([500], 1024), ([16000] * 10, 16384), ([0, 3000], 4096))
    ):
        between = step(lens, context)
        check_attention(between, dsa.decode(**between, sm_scale=0.1, workspace=scratch))
        check_replay(
            graph, inputs, output, [[8000, 5000, 0], [1, 0, 8192], [0, 0, 0], [4096, 2048, 77]][number]
        )


@pytest.mark.sm90
@pytest.mark.parametrize("joined", [False, True], ids=["same_stream", "joined_stream"])
def test_a_captured_step_reads_what_was_written_just_before_it(joined: bool) -> None:
    """Scoring may start before the kernel ahead of it has ended; lengths are written last, by a kernel."""
    inputs, other = step([8000, 5000, 100, 0], 8192), step([64, 0, 8000, 1], 8192)
    scratch = Workspace()
    output = dsa.decode(**inputs, sm_scale=0.1, workspace=scratch)
    expected = (output.indices.clone(), output.out.clone(), output.lse.clone())
    given = {name: tensor.clone() for name, tensor in inputs.items()}
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream()
        if joined:
            side.wait_stream(stream)
        with torch.cuda.stream(side if joined else stream):
            for name, tensor in inputs.items():
                tensor.copy_(given[name])
            torch.cuda._sleep(100_000)
            torch.add(given["seq_lens"], 0, out=inputs["seq_lens"])
        if joined:
            stream.wait_stream(side)
        dsa.decode(**inputs, sm_scale=0.1, output=output, workspace=scratch)
    for _ in range(10):
        for name, tensor in inputs.items():
            tensor.copy_(other[name])
        output.indices.fill_(-7)
        for tensor in (output.out, output.lse):
            tensor.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        outputs = (output.indices, output.out, output.lse)
        assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))


@pytest.mark.sm90
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("own", [False, True], ids=["one_workspace", "no_workspace"])
def test_chunks_of_a_prompt_on_two_streams_do_not_meet(captured: bool, own: bool) -> None:
    """Windows of any kind, over poisoned logits and outputs; the reference runs one chunk at a time."""
    generator = torch.Generator().manual_seed(4)
    index = oracles.get("lightning_indexer")
    sizes = {"s": 200, "skv": 9001, "heads": 64, "windows": "ragged"}
    drawn = index.make(Workload("w", "real", "prefill", sizes), generator)
    given = [drawn[name].cuda() for name in ("q", "k", "k_scales", "weights", "k_start", "k_end")]
    given[5][::9] += 500
    given[5][4::9] = given[4][4::9]
    heads = torch.randn(200, 16, 576, generator=generator).bfloat16().cuda()
    kv = torch.randn(9001, 576, generator=generator).bfloat16().cuda()
    args = (*given, heads[..., :512].contiguous(), heads[..., 512:].contiguous(), kv)

    def run(rows: int, workspace: Workspace | None, output: dsa.StepOutput | None = None) -> dsa.StepOutput:
        return dsa.prefill(*args, sm_scale=0.1, rows_per_chunk=rows, workspace=workspace, output=output)

    scratch = None if own else Workspace()
    wanted, result = run(200, Workspace()), run(16, scratch)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    if captured:
        with torch.cuda.graph(graph):
            run(16, scratch, result)
    for _ in range(10):
        result.indices.fill_(-7)
        result.out.fill_(math.nan)
        if scratch is not None:
            shape = dsa._chunks(200, 9001, 16, concurrent=True)[2]
            scratch.get("logits", shape, torch.float32, kv.device, zeroed=False).fill_(math.inf)
        torch.cuda.synchronize()
        if captured:
            graph.replay()
        else:
            with torch.cuda.stream(side):
                run(16, scratch, result)
        torch.cuda.synchronize()
        assert torch.equal(result.indices, wanted.indices) and torch.equal(result.out, wanted.out)


@pytest.mark.sm90
def test_captured_steps_that_share_a_workspace_wait_for_one_another() -> None:
    """Three kernels per step, one buffer of logits: each kernel starts while its predecessor still runs."""
    scratch, steps = Workspace(), []
    for lens in ([8000, 5000, 100, 0], [3000, 8192, 0, 64], [8192] * 4):
        inputs = step(lens, 8192)
        output = dsa.decode(**inputs, sm_scale=0.1, workspace=scratch)
        torch.cuda.synchronize()
        steps.append((inputs, output, (output.indices.clone(), output.out.clone(), output.lse.clone())))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for inputs, output, _ in steps * 3:
            dsa.decode(**inputs, sm_scale=0.1, output=output, workspace=scratch)
    for _ in range(20):
        for _, output, _ in steps:
            output.indices.fill_(-7)
            for tensor in (output.out, output.lse):
                tensor.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        for _, output, expected in steps:
            outputs = (output.indices, output.out, output.lse)
            assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))


@pytest.mark.sm90
def test_two_captured_steps_without_a_workspace_do_not_share_memory() -> None:
    """Both graphs run at once on two streams: each must have its own logits, partials and counters."""
    steps = []
    for lens in ([8000, 5000, 100, 0], [3000, 8192, 0, 64]):
        inputs = step(lens, 8192)
        output = dsa.decode(**inputs, sm_scale=0.1)
        expected = (output.indices.clone(), output.out.clone())
        # The graph reads its inputs at fixed addresses, so they must stay alive.
        steps.append((capture(inputs, output), torch.cuda.Stream(), output, expected, inputs))
    for _ in range(20):
        for graph, stream, *_ in steps:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for _, _, output, (indices, out), _ in steps:
        assert torch.equal(output.indices, indices) and torch.equal(output.out, out)


@pytest.mark.sm90
@pytest.mark.parametrize("splits", [1, 4])
def test_captured_attention_without_a_workspace_counts_its_splits(splits: int) -> None:
    """One CTA per split; counters find the last arriver, which merges. Each replay needs zeroed counters."""
    name = next(
        v.id
        for v in variants.variants("sparse_mla", arch="sm_90a")
        if "h16_bf16" in v.id and v.knobs["cluster"] == 1
    )
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(5, 16, 576, generator=generator).bfloat16().cuda()
    q_nope, q_pe = q[..., :512].contiguous(), q[..., 512:].contiguous()
    kv = torch.randn(4096, 576, generator=generator).bfloat16().cuda()
    ids = torch.randint(4096, (5, 2048), dtype=torch.int32, generator=generator).cuda()
    arguments = {"sm_scale": 0.1, "variant": name, "splits": splits}
    expected = sparse_mla(q_nope, q_pe, kv, ids, **arguments)
    out, lse = torch.empty_like(expected[0]), torch.empty_like(expected[1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sparse_mla(q_nope, q_pe, kv, ids, out=out, lse=lse, **arguments)
    for _ in range(3):
        out.fill_(math.nan)
        lse.fill_(math.nan)
        graph.replay()
        again = sparse_mla(q_nope, q_pe, kv, ids, **arguments)
        for given, wanted, eager in zip((out, lse), expected, again, strict=True):
            assert torch.equal(given, wanted) and torch.equal(eager, wanted)


PUSHED = "sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl2_sl2"


def pushed(t: int, splits: int | None):
    """A call whose CTAs wait for one another, and its results."""
    generator = torch.Generator().manual_seed(t)
    q = torch.randn(t, 16, 576, generator=generator).bfloat16().cuda()
    kv = torch.randn(8192, 576, generator=generator).bfloat16().cuda()
    ids = torch.randint(8192, (t, 2048), dtype=torch.int32, generator=generator).cuda()
    given = (q[..., :512].contiguous(), q[..., 512:].contiguous(), kv, ids)

    def call(workspace: Workspace | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return sparse_mla(*given, sm_scale=0.1, variant=PUSHED, splits=splits, workspace=workspace)

    return call, call(Workspace())


def in_time(*streams: torch.cuda.Stream, seconds: float = 20.0) -> None:
    events = [stream.record_event() for stream in streams]
    end = time.monotonic() + seconds
    while not all(event.query() for event in events):
        assert time.monotonic() < end, "a launch waits for CTAs that do not come"


@pytest.mark.sm90
@pytest.mark.parametrize("priority", [0, -5], ids=["equal", "one_before_the_other"])
@pytest.mark.parametrize("branches", [False, True], ids=["two_graphs", "two_branches"])
def test_launches_whose_ctas_wait_for_one_another_do_not_block_each_other(
    priority: int, branches: bool
) -> None:
    """Each launch fills the SMs; half of one beside half of another would deadlock."""
    calls = [pushed(16, 16), pushed(4, 64)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream(priority=priority)]
    workspaces, graphs, outputs = [Workspace(), Workspace()], [], []
    for (call, _), stream, workspace in zip(calls, streams, workspaces, strict=True):
        with torch.cuda.stream(stream):
            call(workspace)
    torch.cuda.synchronize()
    if branches:
        graphs = [torch.cuda.CUDAGraph()]
        with torch.cuda.graph(graphs[0], stream=streams[0]):
            streams[1].wait_stream(streams[0])
            for (call, _), stream, workspace in zip(calls, streams, workspaces, strict=True):
                with torch.cuda.stream(stream):
                    outputs.append([call(workspace) for _ in range(10)][-1])
            streams[0].wait_stream(streams[1])
    else:
        for (call, _), stream, workspace in zip(calls, streams, workspaces, strict=True):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], stream=stream):
                outputs.append([call(workspace) for _ in range(10)][-1])
    for _ in range(100):
        for graph, stream in zip(graphs, streams, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
    in_time(*streams)
    for (_, wanted), given in zip(calls, outputs, strict=True):
        assert all(map(torch.equal, given, wanted))


@pytest.mark.sm90
def test_a_launch_whose_ctas_wait_for_one_another_runs_between_other_kernels() -> None:
    (call, wanted), (here, there) = pushed(4, 64), (torch.cuda.Stream(), torch.cuda.Stream(priority=-1))
    a = torch.randn(4096, 4096, device="cuda").bfloat16()
    torch.cuda.synchronize()
    for _ in range(200):
        with torch.cuda.stream(there):
            a @ a
        with torch.cuda.stream(here):
            result = call()
    in_time(here, there)
    assert all(map(torch.equal, result, wanted))


@pytest.mark.sm90
def test_a_stream_with_half_of_the_sms_takes_fewer_splits() -> None:
    from cuda.bindings import driver

    def done(result: tuple):
        assert int(result[0]) == 0, result[0]
        return result[1] if len(result) == 2 else result[1:]

    (call, (out, lse)), (fixed, _) = pushed(4, None), pushed(4, 64)
    device = done(driver.cuDeviceGet(0))
    sms = done(driver.cuDeviceGetDevResource(device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    groups, *_ = done(driver.cuDevSmResourceSplitByCount(1, sms, 0, 64))
    half = done(driver.cuGreenCtxCreate(done(driver.cuDevResourceGenerateDesc([groups[0]], 1)), device, 1))
    stream = torch.cuda.ExternalStream(int(done(driver.cuGreenCtxStreamCreate(half, 1, 0))))
    workspace = Workspace()
    with torch.cuda.stream(stream):
        for _ in range(2):
            given = call(workspace)
            in_time(stream)
            # Other splits round differently.
            assert (given[0].float() - out.float()).norm() < 3e-3 * out.float().norm()
            assert torch.allclose(given[1], lse, atol=1e-4)
        with pytest.raises(ResidencyError, match="pass fewer splits"):
            fixed(Workspace())
    torch.cuda.synchronize()
    assert all(map(torch.equal, call(), (out, lse)))


@pytest.mark.sm90
def test_a_captured_launch_is_one_node() -> None:
    """No kernel clears its scratch in every replay: the counters of its splits return to zero."""
    from cuda.bindings import driver

    q = torch.randn(5, 16, 576, dtype=torch.bfloat16, device="cuda")
    kv = torch.randn(4096, 576, dtype=torch.bfloat16, device="cuda")
    ids = torch.randint(4096, (5, 2048), dtype=torch.int32, device="cuda")
    given = (q[..., :512].contiguous(), q[..., 512:].contiguous(), kv, ids)
    out, lse = sparse_mla(*given, sm_scale=0.1)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for _ in range(3):
            sparse_mla(*given, sm_scale=0.1, out=out, lse=lse)
    status, _, nodes = driver.cuGraphGetNodes(graph.raw_cuda_graph(), 0)
    assert int(status) == 0 and nodes == 3


@pytest.mark.sm90
def test_a_workspace_that_is_too_small_inside_a_capture_is_refused() -> None:
    """Growing would record the clearing of new memory without doing it, and the step would run on garbage."""
    inputs = step([8000, 5000, 100, 0], 8192)
    output = dsa.decode(**inputs, sm_scale=0.1, workspace=Workspace())
    small = Workspace()
    dsa.decode(**step([500], 1024), sm_scale=0.1, workspace=small)
    size = small.bytes
    with pytest.raises(LaunchError, match="workspace buffer.*before the capture began.*run once"):
        capture(inputs, output, small)
    assert small.bytes == size
    dsa.decode(**inputs, sm_scale=0.1, output=output, workspace=small)
    check_replay(capture(inputs, output, small), inputs, output, [0, 8192, 64, 3000])


@pytest.mark.sm90
def test_first_use_inside_a_capture_is_refused_with_the_fix() -> None:
    clear()
    scores, ends = (
        torch.randn(2, 4096, device="cuda"),
        torch.full((2,), 4096, dtype=torch.int32, device="cuda"),
    )
    topk_selector(
        torch.randn(2, 128, device="cuda"), torch.full((2,), 9, dtype=torch.int32, device="cuda"), 16
    )
    clear()
    with pytest.raises(LaunchError, match="before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        topk_selector(scores, ends, 2048)


@pytest.mark.sm90
def test_an_operand_on_another_device_is_refused_after_the_first_call_too() -> None:
    scores = torch.randn(2, 4096, device="cuda")
    ends = torch.full((2,), 4096, dtype=torch.int32)
    topk_selector(scores, ends.cuda(), 64)
    with pytest.raises(InvalidArgumentError, match="row_ends.*device cuda"):
        topk_selector(scores, ends, 64)


@pytest.mark.sm90
def test_ops_compile_with_inductor_and_agree_with_eager() -> None:
    inputs = step([3000, 10], 4096)
    output = dsa.decode(**inputs, sm_scale=0.1, workspace=Workspace())

    def attend(q, pe, kv, kpe, ids):
        out, lse = sparse_mla(q * 1.0, pe, kv, ids, sm_scale=0.1, kpe=kpe)
        return out + 0, lse

    args = (inputs["q_nope"], inputs["q_pe"], inputs["kv"], inputs["kpe"], output.indices)
    out, lse = torch.compile(attend, fullgraph=True)(*args)
    assert torch.equal(out, output.out) and torch.equal(lse, output.lse)


@pytest.mark.sm90
@pytest.mark.parametrize("streams", [False, True], ids=["one_stream", "own_streams"])
@pytest.mark.parametrize("shared", [False, True], ids=["no_workspace", "one_workspace"])
def test_steps_of_eight_threads_do_not_meet(streams: bool, shared: bool) -> None:
    inputs = [step([8000 - 500 * i, 3000, 100, 0], 8192) for i in range(8)]
    wanted = [dsa.decode(**each, sm_scale=0.1, workspace=Workspace()) for each in inputs]
    torch.cuda.synchronize()
    workspace, wrong = Workspace() if shared else None, torch.zeros(8, dtype=torch.int32, device="cuda")

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream() if streams else torch.cuda.current_stream()):
            for _ in range(50):
                result = dsa.decode(**inputs[i], sm_scale=0.1, workspace=workspace)
                right = (result.indices == wanted[i].indices).all() & (result.out == wanted[i].out).all()
                wrong[i] += (~right).int()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    torch.cuda.synchronize()
    assert wrong.tolist() == [0] * 8


@pytest.mark.sm90
def test_a_misaligned_operand_is_refused_and_the_context_lives() -> None:
    inputs = step([3000, 100], 4096)
    wanted = dsa.decode(**inputs, sm_scale=0.1)
    for name in ("q_index", "k_index_cache", "weights", "q_nope", "q_pe", "kv", "kpe"):
        given = inputs[name].contiguous()
        size = given.numel() * given.element_size()
        room = torch.empty(size + 16, dtype=torch.uint8, device="cuda")
        moved = room[4 : 4 + size].view(given.dtype).view(given.shape).copy_(given)
        with pytest.raises(InvalidArgumentError, match="multiple of 16 bytes"):
            dsa.decode(**{**inputs, name: moved}, sm_scale=0.1)
    result = dsa.decode(**inputs, sm_scale=0.1)
    assert torch.equal(result.indices, wanted.indices) and torch.equal(result.out, wanted.out)


@pytest.mark.sm90
def test_a_cache_of_another_shape_at_the_same_address_is_read_where_it_lies() -> None:
    inputs = step([3000, 100], 4096)
    ids = dsa.decode(**inputs, sm_scale=0.1).indices % 4096
    pool = torch.randn(4096 * 640, device="cuda").bfloat16()
    kv = torch.empty(0, dtype=torch.bfloat16, device="cuda")
    for stride in (576, 640, 584):
        kv.set_(pool.untyped_storage(), 0, (4096, 576), (stride, 1))
        result, wanted = (
            sparse_mla(inputs["q_nope"], inputs["q_pe"], each, ids, sm_scale=0.1)[0]
            for each in (kv, kv.clone(memory_format=torch.contiguous_format))
        )
        assert torch.equal(result, wanted)
