"""The ops as custom ops of torch: derived schemas, opcheck, and graphs that keep every argument of a call."""

from __future__ import annotations

import gc
import inspect
import math

import pytest
import torch

from dsl_kernels import dsa, ops
from dsl_kernels.errors import ArgumentTypeError, DeclarationError, InvalidArgumentError
from dsl_kernels.ops import Workspace, _base
from dsl_kernels.ops._library import torch_op
from dsl_kernels_lab import oracles, steps
from dsl_kernels_lab.verification import trial

NAMES = (
    "lightning_indexer",
    "lightning_indexer_prefill",
    "topk_selector",
    "sparse_mla",
    "resample_trajectories",
)
SETTINGS = {"executor": "interpreter", "arch": "sm_100a"}
# Checks that torch cannot do: float8 has no comparison on a CPU, and columns beyond a row's length are not
# written, so two runs differ there.
UNCHECKED = {"lightning_indexer": "test_schema", "lightning_indexer_prefill": "test_schema"}


def arguments_of(name: str) -> tuple[tuple, dict, dict]:
    """Positional arguments, options and outputs of a small call, with no option at its default."""

    def draw(op: str, workload: str) -> dict:
        return trial.draw(op, oracles.get(op).workload(workload), seed=3)

    if name == "lightning_indexer":
        i = draw("lightning_indexer", "decode_tiny")
        args = tuple(i[n] for n in ("q", "k_cache", "weights", "seq_lens", "block_table"))
        return args, {"skip_below": 3}, {"out": torch.zeros(1, 1, i["block_table"].shape[1] * 64)}
    if name == "lightning_indexer_prefill":
        i = draw("lightning_indexer", "prefill_tiny")
        args = tuple(i[n] for n in ("q", "k", "k_scales", "weights", "k_start", "k_end"))
        return args, {"skip_below": 3}, {"out": torch.zeros(3, 132)}
    if name == "topk_selector":
        i = draw("topk_selector", "mtp3_paged")
        options = {n: i[n] for n in ("row_starts", "block_table", "page_size", "next_n")}
        out = torch.zeros(i["logits"].shape[0], i["k"], dtype=torch.int32)
        return (i["logits"], i["row_ends"], i["k"]), options, {"out": out}
    if name == "resample_trajectories":
        i = draw("resample_trajectories", "tiny")
        out = torch.zeros(*i["tgt_times"].shape, i["data"].shape[2], dtype=torch.bfloat16)
        return (i["data"], i["src_times"], i["tgt_times"]), {}, {"out": out}
    i = draw("sparse_mla", "tiny_h16")
    options = {n: i[n] for n in ("kpe", "attn_sink", "sm_scale")} | {"lse_base": "e", "splits": 2}
    options |= {"topk_length": torch.tensor([0, 7], dtype=torch.int32), "empty_lse": math.inf}
    outputs = {"out": torch.zeros_like(i["q_nope"]), "lse": torch.zeros(2, 16)}
    return (i["q_nope"], i["q_pe"], i["ckv"], i["indices"]), options, outputs


def results(returned: torch.Tensor | tuple) -> tuple[torch.Tensor, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def same(name: str, got: torch.Tensor | tuple, wanted: torch.Tensor | tuple) -> None:
    """Equality of what an op writes, which excludes columns beyond a row's length."""
    for g, w in zip(results(got), results(wanted), strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        columns = {"lightning_indexer": 100, "lightning_indexer_prefill": 100}.get(name, g.shape[-1])
        assert torch.equal(g[..., :columns], w[..., :columns])


@pytest.mark.parametrize("written", [False, True], ids=["returning", "writing"])
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str, written: bool) -> None:
    args, options, outputs = arguments_of(name)
    op = getattr(torch.ops.dsl_kernels, f"{name}_out" if written else name)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    if name in UNCHECKED:
        # Without checks that compare unwritten bits, or need a gradient of float8.
        checks = ("test_autograd_registration", "test_faketensor")
    schema = [argument.name for argument in op.default._schema.arguments if not argument.kwarg_only]
    given = dict(zip(inspect.signature(getattr(ops, name)).parameters, args, strict=False))
    given |= options | (outputs if written else {})
    positional, workspace = tuple(given.pop(n, None) for n in schema), Workspace()
    options = {**given, **SETTINGS, "workspace": workspace.handle}
    torch.library.opcheck(op, positional, options, test_utils=checks)


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_has_every_argument_of_the_function(name: str) -> None:
    parameters = inspect.signature(getattr(ops, name)).parameters
    returning, writing = (getattr(torch.ops.dsl_kernels, n).default._schema for n in (name, f"{name}_out"))
    outputs = {"out", "lse", "max_logits", "maxima", "values", "positions"} & set(parameters)
    assert {argument.name for argument in writing.arguments} == set(parameters)
    assert {argument.name for argument in returning.arguments} == set(parameters) - outputs
    assert {a.name for a in writing.arguments if a.alias_info and a.alias_info.is_write} == outputs
    for argument in returning.arguments:
        default = parameters[argument.name].default
        assert argument.default_value == (None if default is inspect.Parameter.empty else default)


@pytest.fixture
def launches(monkeypatch) -> list[dict]:
    """The arguments that every call passes to the code common to all ops."""
    seen: list[dict] = []
    real = _base.run

    def run(op, form, operands, *rest, **named):
        arguments = inspect.signature(real).bind(op, form, operands, *rest, **named).arguments
        seen.append({**arguments, "operands": dict(operands)})
        return real(op, form, operands, *rest, **named)

    for name in ("lightning_indexer", "topk_selector", "sparse_mla", "resample_trajectories"):
        monkeypatch.setitem(inspect.unwrap(getattr(ops, name)).__globals__, "run", run)
    return seen


@pytest.mark.sample(8)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    ("name", "given"), [*((name, count) for name in NAMES for count in (0, 1)), ("sparse_mla", 2)]
)
def test_a_graph_hands_on_every_argument(name: str, given: int, backend: str, launches: list[dict]) -> None:
    args, options, outputs = arguments_of(name)
    public = getattr(ops, name)
    outputs = dict(list(outputs.items())[:given])
    wanted = public(*args, **options, **SETTINGS)
    workspace = Workspace()
    launches.clear()

    def call(args, options, outputs):
        return public(*args, **options, **outputs, **SETTINGS, workspace=workspace)

    torch._dynamo.reset()
    got = torch.compile(call, fullgraph=True, backend=backend)(args, options, outputs)
    same(name, got, wanted)
    for output, tensor in zip(results(got), outputs.values(), strict=False):
        assert output is tensor
    (seen,) = launches
    assert seen["workspace"] is workspace and seen["executor"] == "interpreter" and seen["arch"] == "sm_100a"
    assert seen.get("launch") == ({"splits": 2} if name == "sparse_mla" else None)
    # The page size of attention is that of the cache.
    for option in ("skip_below", "next_n", "sm_scale", *(("page_size",) if name == "topk_selector" else ())):
        assert seen["operands"].get(option) == options.get(option)
    # Partial results of two CTAs per query are in the workspace.
    assert (workspace.bytes > 0) == (name == "sparse_mla")


def test_the_largest_scores_are_written_in_a_graph() -> None:
    args, options, _ = arguments_of("sparse_mla")
    eager, traced = torch.zeros(2, 16), torch.zeros(2, 16)
    wanted = ops.sparse_mla(*args, **options, max_logits=eager, **SETTINGS)

    def call(most: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ops.sparse_mla(*args, **options, max_logits=most, **SETTINGS)

    torch._dynamo.reset()
    same("sparse_mla", torch.compile(call, fullgraph=True, backend="aot_eager")(traced), wanted)
    assert torch.equal(traced, eager) and (eager[0] == -math.inf).all() and eager[1].isfinite().all()


@pytest.mark.parametrize("given", (("values",), ("out", "values", "positions")))
def test_outputs_that_are_written_on_demand_are_written_in_a_graph(given: tuple[str, ...]) -> None:
    args, options, _ = arguments_of("topk_selector")
    rows, k = len(args[0]), args[2]
    made = {"values": torch.float32}

    def tensors() -> dict[str, torch.Tensor]:
        return {name: torch.zeros(rows, k, dtype=made.get(name, torch.int32)) for name in given}

    eager, traced = tensors(), tensors()
    wanted = ops.topk_selector(*args, **{**options, **eager}, **SETTINGS)
    torch._dynamo.reset()
    call = torch.compile(ops.topk_selector, fullgraph=True, backend="aot_eager")
    assert torch.equal(call(*args, **{**options, **traced}, **SETTINGS), wanted)
    assert all(torch.equal(traced[name], eager[name]) for name in given)
    assert not torch.equal(eager["values"], torch.zeros(rows, k))


def test_a_variant_is_handed_on(launches: list[dict]) -> None:
    from dsl_kernels import programs, variants

    args, options, _ = arguments_of("topk_selector")
    known = variants.variants("topk_selector", arch="sm_100a")
    ids = [v.id for v in known if programs.get(v.op).form(v.knobs) == "default"][:2]
    torch._dynamo.reset()
    for variant in ids:
        call = torch.compile(ops.topk_selector, fullgraph=True, backend="eager")
        call(*args, **options, **SETTINGS, variant=variant)
    assert [seen["variant"] for seen in launches] == ids


def test_one_graph_serves_any_workspace_and_splits(launches: list[dict]) -> None:
    args, options, _ = arguments_of("sparse_mla")
    wanted = ops.sparse_mla(*args, **options, **SETTINGS)
    launches.clear()
    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(ops.sparse_mla, fullgraph=True, backend=count)
    spaces = [Workspace() for _ in range(5)]
    for splits, workspace in zip((1, 2, 3, 4, 2), spaces, strict=True):
        got = compiled(*args, **{**options, "splits": splits}, **SETTINGS, workspace=workspace)
        torch.testing.assert_close(got, wanted, atol=2e-2, rtol=2e-2)
    assert [seen["workspace"] for seen in launches] == spaces
    assert [seen["launch"]["splits"] for seen in launches] == [1, 2, 3, 4, 2]
    assert len(graphs) <= 3, "a handle that changes is a symbol, not a reason to trace again"


def test_a_step_in_a_graph_uses_its_workspace() -> None:
    size = steps.StepSize(batch=2, context=130, topk=64, heads=16, index_heads=64)
    tensors = steps.draw(size, seed=5)[0].tensors
    options = {"sm_scale": 0.1, "topk": 64, "executor": "interpreter"}
    wanted, workspace = dsa.decode(**tensors, **options), Workspace()
    torch._dynamo.reset()

    def step(tensors):
        return dsa.decode(**tensors, **options, workspace=workspace)

    got = torch.compile(step, fullgraph=True, backend="aot_eager")(tensors)
    assert torch.equal(got.out, wanted.out) and torch.equal(got.indices, wanted.indices)
    assert workspace.bytes > 0


def test_a_workspace_that_is_gone_is_refused_by_name() -> None:
    args, options, _ = arguments_of("topk_selector")
    workspace = Workspace()
    handle = workspace.handle
    given = {**options, **SETTINGS, "workspace": handle}
    starts, table = given.pop("row_starts"), given.pop("block_table")
    torch.ops.dsl_kernels.topk_selector(*args, starts, table, **given)
    del workspace
    gc.collect()
    with pytest.raises(InvalidArgumentError, match="workspace.*still held.*keep the Workspace"):
        torch.ops.dsl_kernels.topk_selector(*args, starts, table, **given)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_graph_refuses_as_a_call_does(backend: str) -> None:
    args, options, _ = arguments_of("topk_selector")
    torch._dynamo.reset()
    call = torch.compile(ops.topk_selector, fullgraph=True, backend=backend)
    with pytest.raises(InvalidArgumentError, match="out.*k = 256"):
        call(*args, **options, **SETTINGS, out=torch.zeros(len(args[0]), 8, dtype=torch.int32))
    with pytest.raises(InvalidArgumentError, match="k.*1 to 4096"):
        call(*args[:2], 4097, **options, **SETTINGS)
    with pytest.raises(ArgumentTypeError, match="workspace.*Workspace or None"):
        torch.compile(ops.topk_selector, backend=backend)(*args, **options, **SETTINGS, workspace="mine")


def test_an_op_is_its_signature(monkeypatch) -> None:
    """A new op needs only its function: names, outputs and sizes come from the problem."""

    def double_indexer(
        q: torch.Tensor, k: torch.Tensor, k_scales: torch.Tensor, weights: torch.Tensor,
        k_start: torch.Tensor,
        k_end: torch.Tensor, *, out: torch.Tensor | None = None, workspace: Workspace | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Twice the scores."""
        scores = ops.lightning_indexer_prefill(
            q, k, k_scales, weights, k_start, k_end, out=out, workspace=workspace, **SETTINGS
        )
        return scores.mul_(2)

    made = torch_op("lightning_indexer", "prefill")(double_indexer)
    assert made.__doc__ == "Twice the scores." and inspect.signature(made) == inspect.signature(
        double_indexer
    )
    args, _, outputs = arguments_of("lightning_indexer_prefill")
    wanted = ops.lightning_indexer_prefill(*args, **SETTINGS) * 2
    same("lightning_indexer_prefill", made(*args), wanted)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    same("lightning_indexer_prefill", compiled(*args), wanted)
    assert compiled(*args, out=outputs["out"]) is outputs["out"]


def test_a_signature_that_no_schema_can_hold_is_refused() -> None:
    def listed(q: torch.Tensor, k: list[int], *, out: torch.Tensor | None = None) -> torch.Tensor:
        return q

    with pytest.raises(DeclarationError, match=r"argument k of an op.*list\[int\]"):
        torch_op("lightning_indexer", "prefill")(listed)

    def fewer(q: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        return q

    with pytest.raises(DeclarationError, match="outputs of fewer.*skv.*sizes"):
        torch_op("lightning_indexer", "prefill")(fewer)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("written", [False, True], ids=["returning", "writing"])
def test_nested_tensors_are_refused_by_name(name: str, written: bool) -> None:
    nested = torch.nested.nested_tensor([torch.zeros(n, dtype=torch.int32) for n in (2, 1)])
    args, options, outputs = arguments_of(name)
    public = getattr(ops, name)
    given = dict(zip(inspect.signature(public).parameters, args, strict=False))
    given |= options | (outputs if written else {})
    for argument, value in given.items():
        if isinstance(value, torch.Tensor):
            with pytest.raises(ArgumentTypeError, match=f" {argument}: .*nested"):
                public(**{**given, argument: nested}, **SETTINGS)
