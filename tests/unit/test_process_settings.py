"""Every op and step under every setting of the process: the bits of a plain call, and settings unchanged.

A library call must not depend on what the surrounding program chose for its own tensors. `meta` stands for a
default device of "cuda": a tensor made without an explicit device becomes a meta tensor, which is noticed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import sampling
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from dsl_kernels import dsa, ops, variants
from dsl_kernels.errors import InvalidArgumentError
from dsl_kernels.ops import Workspace, lightning_indexer, lightning_indexer_prefill, sparse_mla, topk_selector
from dsl_kernels.tile.executor import Executor
from dsl_kernels_lab import oracles, steps
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.steps.check import check
from dsl_kernels_lab.verification import trial

pytestmark = pytest.mark.usefixtures("few_sms")
ARCHS = ("sm_90a", "sm_100a")
Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A call: its inputs by name, and the function that runs it; `where` are the executor's arguments."""

    name: str
    inputs: dict[str, Any]
    call: Callable[..., Any]

    def __call__(self, **where: Any) -> Results:
        got = self.call(self.inputs, **where)
        if isinstance(got, dsa.StepOutput):
            return got.out, got.lse, got.indices
        return got if isinstance(got, tuple) else (got,)

    def on(self, device: str) -> Case:
        moved = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in self.inputs.items()}
        return Case(self.name, moved, self.call)


def _decode(i: dict[str, Any], **where: Any) -> Any:
    # Columns past a row's length are not written, so only the others are compared.
    lens = i["seq_lens"]
    b, next_n = lens.shape
    out = lens.new_full((b, next_n, i["block_table"].shape[1] * 64), -7.0, dtype=torch.float32)
    return lightning_indexer(
        i["q"], i["k_cache"], i["weights"], lens, i["block_table"], out=out, skip_below=i["skip_below"],
        **where
    )  # fmt: skip


def _prefill(i: dict[str, Any], **where: Any) -> Any:
    out = i["q"].new_full((i["q"].shape[0], -(-i["k"].shape[0] // 4) * 4), -7.0, dtype=torch.float32)
    names = ("q", "k", "k_scales", "weights", "k_start", "k_end")
    return lightning_indexer_prefill(*(i[n] for n in names), out=out, **where)


def _select(i: dict[str, Any], **where: Any) -> Any:
    paged = {"block_table": i["block_table"], "page_size": i["page_size"], "next_n": i["next_n"]}
    return topk_selector(
        i["logits"], i["row_ends"], i["k"], row_starts=i.get("row_starts"),
        **(paged if i["page_size"] else {}), **where
    )  # fmt: skip


def _attend(i: dict[str, Any], **where: Any) -> Any:
    kv, kpe = (i["kv_cache"], None) if "kv_cache" in i else (i["ckv"], i["kpe"])
    base = "2" if i["lse_scale"] == 1.0 else "e"
    return sparse_mla(
        i["q_nope"], i["q_pe"], kv, i["indices"], sm_scale=i["sm_scale"], kpe=kpe,
        attn_sink=i.get("attn_sink"), lse_base=base, **where
    )  # fmt: skip


def _step(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda i, **where: run(**i, sm_scale=0.1, topk=64, **where)


WORKLOADS = {
    "decode": ("lightning_indexer", "decode_mtp3", _decode),
    "decode skip": ("lightning_indexer", "decode_skip", _decode),
    "prefill": ("lightning_indexer", "prefill_h32", _prefill),
    "select": ("topk_selector", "tiny", _select),
    "select paged": ("topk_selector", "mtp3_paged", _select),
    "select starts": ("topk_selector", "starts", _select),
    "attend": ("sparse_mla", "tiny_h16", _attend),
    "attend sink": ("sparse_mla", "sink", _attend),
    "attend natural": ("sparse_mla", "natural_log", _attend),
    "attend wide": ("sparse_mla", "tiny_h40", _attend),
    "attend fp8": ("sparse_mla", "fp8_holes", _attend),
}
STEPS = {
    "step decode": (steps.StepSize(batch=2, context=130, topk=64, heads=8, index_heads=32), dsa.decode),
    "step decode fp8": (steps.StepSize(batch=2, context=130, topk=64, heads=16, index_heads=64, kv="fp8"),
                        dsa.decode),
    "step prefill": (steps.StepSize("prefill", rows=3, context=130, topk=64, heads=8, index_heads=32),
                     dsa.prefill),
}  # fmt: skip
NAMES = (*WORKLOADS, *STEPS)


def drawn(op: str, workload: Workload) -> dict[str, Any]:
    """Inputs without the operands that an op fills in if the caller has none."""
    inputs = trial.draw(op, workload, seed=5)
    unused = {"row_starts": lambda starts: not starts.any(), "attn_sink": lambda sink: sink.isinf().any()}
    return {n: v for n, v in inputs.items() if n not in unused or not unused[n](v)}


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    by_name = {}
    for name, (op, workload, call) in WORKLOADS.items():
        by_name[name] = Case(name, drawn(op, oracles.get(op).workload(workload)), call)
    for name, (size, run) in STEPS.items():
        tensors = steps.draw(size, seed=5)[0].tensors
        by_name[name] = Case(name, dict(tensors), _step(run))
    return by_name


@pytest.fixture(scope="module")
def plain() -> dict[tuple[str, str], Results]:
    """Results of plain calls, by case and architecture."""
    return {}


@contextlib.contextmanager
def restored(change: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


class Calls(TorchDispatchMode):
    """A dispatch mode that passes every call on unchanged."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """A function mode that passes every call on unchanged."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


SETTINGS: dict[str, Callable[[], Any]] = {
    "float64": lambda: restored(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16": lambda: restored(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "default device": lambda: restored(torch.set_default_device, "meta", None),
    "with device": lambda: torch.device("meta"),
    "deterministic": lambda: restored(torch.use_deterministic_algorithms, True, False),
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "anomaly": torch.autograd.detect_anomaly,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "matmul precision": lambda: restored(torch.set_float32_matmul_precision, "medium", "highest"),
    "flush denormals": lambda: restored(torch.set_flush_denormal, True, False),
    "dispatch mode": Calls,
    "function mode": Functions,
    "flop counter": lambda: FlopCounterMode(display=False),
}


def same(got: Results, wanted: Results) -> None:
    for g, w in zip(got, wanted, strict=True):
        assert (g.dtype, g.device, g.shape, g.requires_grad) == (w.dtype, w.device, w.shape, False)
        assert torch.equal(g.view(torch.uint8), w.view(torch.uint8))


def forget() -> None:
    """Restore the state of a new process: nothing prepared, no constant, no workspace, no cached view."""
    ops.clear()
    ops.workspace._own.workspaces.clear()
    ops._base._constants.clear()
    ops._views._kept.clear()


@pytest.mark.sample(18)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_changes_a_bit(setting, name, cases, plain) -> None:
    """The architectures alternate, so that each setting and each case sees both."""
    case, arch = cases[name], ARCHS[([*SETTINGS].index(setting) + NAMES.index(name)) % 2]
    where = {"executor": "interpreter", "arch": arch}
    forget()
    wanted = plain[name, arch] = plain.get((name, arch)) or case(**where)
    forget()
    # What is cached under the setting serves plain calls, and the other way round.
    with SETTINGS[setting]():
        cold = case(**where)
    after = case(**where)
    with SETTINGS[setting]():
        warm = case(**where)
    for got in (cold, after, warm):
        same(got, wanted)


def shapes(results: Results) -> list[tuple[Any, ...]]:
    return [(tensor.shape, tensor.dtype, tensor.device.type) for tensor in results]


FAKES: dict[str, Callable[[], tuple[FakeTensorMode, Any]]] = {
    "in the mode": lambda: (mode := FakeTensorMode(), mode),
    "outside of it": lambda: (FakeTensorMode(), contextlib.nullcontext()),
}


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("made", FAKES)
def test_fake_tensors_give_fake_outputs_and_leave_nothing(made, name, cases) -> None:
    """The shapes are right, and what the process caches for later calls does not change."""
    case, where = cases[name], {"executor": "interpreter", "arch": "sm_90a"}
    forget()
    wanted = case(**where)
    forget()
    mode, entered = FAKES[made]()
    with mode:
        given = {n: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for n, v in case.inputs.items()}
    with entered:
        got = Case(case.name, given, case.call)(**where)
    assert all(isinstance(tensor, FakeTensor) for tensor in got)
    assert shapes(got) == shapes(wanted)
    assert not ops._base._constants and not ops._base._prepared and not ops._views._kept
    same(case(**where), wanted)


@pytest.mark.sample(14)
@pytest.mark.parametrize("tracing", ["real", "symbolic"])
@pytest.mark.parametrize("name", NAMES)
def test_a_traced_call_is_one_node_that_runs(name, tracing, cases) -> None:
    case, where = cases[name], {"executor": "interpreter", "arch": "sm_90a"}
    tensors = {n: v for n, v in case.inputs.items() if isinstance(v, torch.Tensor)}
    graph = make_fx(
        lambda given: Case(case.name, {**case.inputs, **given}, case.call)(**where), tracing_mode=tracing
    )(tensors)
    called = [str(node.target) for node in graph.graph.nodes if "dsl_kernels" in str(node.target)]
    assert len(called) == (3 if name in STEPS else 1)
    same(tuple(graph(tensors)), case(**where))


class Wrapped(torch.Tensor):
    """A tensor without memory of its own that runs nothing and only has sizes."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, held.shape, held.stride(), dtype=held.dtype)
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"no rule for {function}")


TRANSFORMS: dict[str, Callable[[Callable[..., Any], torch.Tensor], Any]] = {
    "vmap": lambda call, x: torch.func.vmap(call)(x[None]),
    "grad": lambda call, x: torch.func.grad(lambda y: call(y).float().sum())(x),
    "jvp": lambda call, x: torch.func.jvp(call, (x,), (x,)),
    "dual": lambda call, x: _dual(call, x),
    "wrapper": lambda call, x: call(Wrapped(x)),
}


def _dual(call: Callable[..., Any], x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(x, x))


@pytest.mark.sample(15)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_no_op_has_a_rule_for_is_refused_by_name(transform, name, cases) -> None:
    case, where = cases[name], {"executor": "interpreter", "arch": "sm_90a"}
    forget()
    wanted = case(**where)
    forget()
    changed = next(
        n for n, v in case.inputs.items() if getattr(v, "dtype", None) in (torch.float32, torch.bfloat16)
    )
    call = lambda x: Case(case.name, {**case.inputs, changed: x}, case.call)(**where)[0]  # noqa: E731
    with pytest.raises(InvalidArgumentError) as caught:
        TRANSFORMS[transform](call, case.inputs[changed])
    assert caught.value.fix
    same(case(**where), wanted)


@contextlib.contextmanager
def everything() -> Iterator[None]:
    """Several settings at once, as in a trainer or a server."""
    with contextlib.ExitStack() as stack:
        for name in ("float64", "default device", "deterministic", "inference_mode", "autocast"):
            stack.enter_context(SETTINGS[name]())
        yield


def test_bodies_run_outside_autocast_and_gradients(cases, monkeypatch) -> None:
    modes = set()

    def call(self, statement, call=Executor.do_call):
        modes.add((torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))
        call(self, statement)

    monkeypatch.setattr(Executor, "do_call", call)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad():
        cases["attend"](executor="interpreter")
        assert torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
    assert modes == {(False, False)}


TINY = {
    "decode": ("lightning_indexer", "decode_tiny"),
    "prefill": ("lightning_indexer", "prefill_tiny"),
    "select": ("topk_selector", "tiny", "tiny_paged"),
    "attend": ("sparse_mla", "tiny_h16", "tiny_fp8"),
}


@pytest.mark.parametrize("kind", TINY)
def test_no_body_of_any_variant_feels_the_settings(kind) -> None:
    """Each distinct schedule, not only those that selection prefers for these sizes."""
    (op, *workloads), call = TINY[kind], WORKLOADS[kind][2]
    distinct = {(v.arch, *sorted(v.knobs.items())): v for v in variants.variants(op)}
    fitting = []
    for name, variant in product(workloads, distinct.values()):
        own = oracles.get(op).workload(name)
        workload = trial.fitted(variant, own)
        if workload.form != own.form:
            continue
        if trial.accepts(variant, workload, trial.draw(op, workload, seed=5)) is None:
            fitting.append((workload, variant))
    assert len(fitting) >= 8
    for workload, variant in sampling.sample(fitting, 16, kind):
        case = Case(workload.name, drawn(op, workload), call)
        where = {"executor": "interpreter", "arch": variant.arch, "variant": variant.id}
        wanted = case(**where)
        forget()
        with everything():
            got = case(**where)
        same(got, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_as_one_graph(name, cases) -> None:
    case = cases[name]
    tensors = {n: v for n, v in case.inputs.items() if isinstance(v, torch.Tensor)}
    others = {n: v for n, v in case.inputs.items() if n not in tensors}
    where = {"executor": "interpreter", "arch": "sm_90a"}
    if name in STEPS:
        where["workspace"] = Workspace()

    def call(given: dict[str, torch.Tensor]) -> Results:
        return Case(name, {**given, **others}, case.call)(**where)

    wanted = call(tensors)
    forget()
    torch._dynamo.reset()
    got = torch.compile(call, fullgraph=True, backend="aot_eager")(tensors)
    same(got, wanted)


def _work_in_child(case: Case, wanted: Results, queue: Any) -> None:
    try:
        same(case(executor="interpreter"), wanted)
        queue.put("")
    except BaseException as error:
        queue.put(repr(error))


@pytest.mark.parametrize("name", NAMES)
def test_after_a_fork(name, cases) -> None:
    """The child inherits the parent's prepared launches and caches, and makes its own."""
    wanted = cases[name](executor="interpreter")
    context = multiprocessing.get_context("fork")
    for warm in (True, False):
        if not warm:
            forget()
        queue = context.SimpleQueue()
        child = context.Process(target=_work_in_child, args=(cases[name], wanted, queue))
        child.start()
        child.join(60)
        assert child.exitcode == 0 and queue.get() == ""


@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", NAMES)
def test_four_threads_at_once(name, arch, cases, in_threads) -> None:
    case = cases[name]
    where = {"executor": "interpreter", "arch": arch}
    wanted = case(**where)
    forget()

    def work(i: int) -> None:
        same(case(**where), wanted)

    # Each thread's first call, then another with what the first has cached.
    for _ in range(2):
        assert in_threads(4, work) == [None] * 4


def test_a_result_of_inference_mode_may_be_written_outside_it(cases) -> None:
    """Buffers that a server allocates under inference_mode serve calls from anywhere."""
    for name in STEPS:
        case = cases[name]
        wanted = case(executor="interpreter")
        with torch.inference_mode():
            output = dsa.StepOutput(*(torch.empty_like(tensor) for tensor in wanted))
        same(case(executor="interpreter", output=output), wanted)


@pytest.mark.sample(5)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("setting", SETTINGS)
def test_drawing_and_checking_feel_no_setting(setting) -> None:
    """Inputs, references and comparisons, on which `verify`, `run` and a user's own tests are built."""

    def work() -> list[Any]:
        results: list[Any] = []
        for op in ("lightning_indexer", "topk_selector", "sparse_mla"):
            problem = oracles.get(op)
            for workload in (w for w in problem.workloads if w.tier != "real"):
                inputs = trial.draw(op, workload, seed=2)
                expected = problem.reference(workload.form, inputs)
                results += [*inputs.values(), *expected.values()]
                figures = problem.compare(workload.form, inputs, expected, expected)
                results += [figures.failures, *figures.figures.values()]
        for size, _ in STEPS.values():
            results += steps.draw(size, seed=2)[0].tensors.values()
        return results

    wanted = work()
    with SETTINGS[setting]():
        got = work()
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        if isinstance(w, torch.Tensor):
            same((g.contiguous(),), (w.contiguous(),))
        else:
            assert g == w


@pytest.mark.parametrize("setting", ("default device", "float64", "inference_mode", "autocast"))
def test_a_step_is_checked_under_a_setting(setting) -> None:
    inputs, workspace = steps.draw(STEPS["step decode"][0], seed=2)[0], Workspace()
    with SETTINGS[setting]():
        output = inputs.run(executor="interpreter", workspace=workspace)
        verdict = check(inputs, output, workspace)
    assert {op: comparison.failures for op, comparison in verdict.items()} == {op: [] for op in verdict}


@contextlib.contextmanager
def side_stream() -> Iterator[None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextlib.contextmanager
def other_device() -> Iterator[None]:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs, found one")
    with torch.cuda.device(1):
        yield


GPU_SETTINGS = {
    **{name: make for name, make in SETTINGS.items() if name != "flush denormals"},
    "default device cuda": lambda: restored(torch.set_default_device, "cuda", None),
    "autocast cuda": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
    "side stream": side_stream,
    "other device": other_device,
}


@pytest.mark.sm90
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("setting", GPU_SETTINGS)
def test_no_setting_changes_a_bit_on_a_gpu(setting, name, cases) -> None:
    case = cases[name].on("cuda:0")
    forget()
    wanted = case()
    forget()
    with GPU_SETTINGS[setting]():
        cold = case()
    after = case()
    with GPU_SETTINGS[setting]():
        warm = case()
    torch.cuda.synchronize(0)
    for got in (cold, after, warm):
        same(got, wanted)
