"""What ops refuse or survive: threads, changing tensors, bad addresses and values, interruptions."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import dsl_kernels.ops.workspace as scratch_memory
from dsl_kernels import dsa, executors, ops
from dsl_kernels.errors import (
    ArgumentTypeError,
    ExecutorUnavailableError,
    InvalidArgumentError,
    UnknownNameError,
)
from dsl_kernels.ops import (
    Workspace,
    _operands,
    lightning_indexer,
    lightning_indexer_prefill,
    resample_trajectories,
    sparse_mla,
    topk_selector,
)
from dsl_kernels.problems.base import UNDEFINED
from dsl_kernels.problems.binding import Bound
from dsl_kernels.tile.executor import Executor
from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial

CPU = {"executor": "interpreter"}


def draw(op: str, form: str, seed: int = 3, **params) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return oracles.get(op).make(Workload("drawn", "tiny", form, params), generator)


def call_of(op: str) -> tuple:
    """A public op, small arguments by name, and the operands whose argument has another name."""
    if op == "sparse_mla":
        inputs = draw("sparse_mla", "bf16", t=2, heads=8, topk=64, n=128)
        names = ("q_nope", "q_pe", "kpe", "indices", "attn_sink", "sm_scale")
        arguments = {"kv": inputs["ckv"], **{name: inputs[name] for name in names}}
        out, lse = torch.empty(2, 8, 512, dtype=torch.bfloat16), torch.empty(2, 8)
        return sparse_mla, {**arguments, "out": out, "lse": lse}
    if op == "topk_selector":
        inputs = draw("topk_selector", "default", lens=[190, 20], k=32, page_size=64)
        inputs["block_table"].remainder_(4096)
        names = ("logits", "row_starts", "row_ends", "block_table", "k", "page_size", "next_n", "absolute")
        out = torch.empty(2, 32, dtype=torch.int32)
        return topk_selector, {**{name: inputs[name] for name in names}, "out": out}
    if op == "resample_trajectories":
        inputs = draw(op, "default", b=2, n=20, m=30, d=8)
        return resample_trajectories, {**inputs, "out": torch.empty(2, 30, 8, dtype=torch.bfloat16)}
    if op == "prefill":
        inputs = draw("lightning_indexer", "prefill", s=3, skv=100, heads=64)
        return lightning_indexer_prefill, {**inputs, "out": torch.empty(3, 100)}
    inputs = draw("lightning_indexer", "decode", lens=[[100]], heads=64, pages=4)
    return lightning_indexer, {**inputs, "out": torch.empty(1, 1, 192)}


OPS = ("sparse_mla", "topk_selector", "lightning_indexer", "prefill", "resample_trajectories")


def step(seed: int) -> dict:
    inputs = draw("lightning_indexer", "decode", seed, lens=[[130 + seed], [70]], heads=64, pages=8)
    generator = torch.Generator().manual_seed(seed)
    return {
        "q_index": inputs["q"], "k_index_cache": inputs["k_cache"], "weights": inputs["weights"],
        "seq_lens": inputs["seq_lens"], "block_table": inputs["block_table"],
        "q_nope": torch.randn(2, 8, 512, generator=generator).bfloat16(),
        "q_pe": torch.randn(2, 8, 64, generator=generator).bfloat16(),
        "kv": torch.randn(512, 576, generator=generator).bfloat16(), "sm_scale": 0.1, "topk": 64, **CPU,
    }  # fmt: skip


@pytest.mark.parametrize("shared", [False, True], ids=["own", "one_workspace"])
def test_steps_of_several_threads_do_not_meet(shared: bool, in_threads) -> None:
    inputs = [step(seed) for seed in range(4)]
    wanted = [dsa.decode(**each, workspace=Workspace()) for each in inputs]
    workspace = Workspace() if shared else None
    results = in_threads(4, lambda i: dsa.decode(**inputs[i], workspace=workspace))
    for got, right in zip(results, wanted, strict=True):
        assert isinstance(got, dsa.StepOutput), got
        assert torch.equal(got.indices, right.indices) and torch.equal(got.out, right.out)


def test_a_threads_workspace_ends_with_it() -> None:
    gone, device = [], torch.device("cpu")

    def work() -> None:
        workspace = scratch_memory.own_workspace(device)
        assert workspace is scratch_memory.own_workspace(device) and workspace.bytes == 0
        gone.append(weakref.ref(workspace.get("logits", (1000,), torch.float32, device, zeroed=False)))
        gone.append(weakref.ref(workspace))

    for _ in range(300):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    gc.collect()
    assert len(gone) == 600 and not any(reference() for reference in gone)


def test_a_variant_is_loaded_once_by_all_threads(monkeypatch, in_threads) -> None:
    loads = []

    class Slow(executors.Interpreter):
        def prepare(self, variant, device=None):
            loads.append(variant.id)
            threading.Event().wait(0.02)
            return super().prepare(variant, device)

    monkeypatch.setitem(executors.EXECUTORS, "interpreter", Slow)
    ops.clear()
    call, arguments = call_of("topk_selector")
    arguments.pop("out")
    results = in_threads(6, lambda i: call(**arguments, **CPU))
    ops.clear()
    assert len(loads) == 1 and all(torch.equal(each, results[0]) for each in results)


@pytest.mark.parametrize("change", ["set", "resize", "dtype", "kpe"])
def test_a_cache_of_another_shape_at_the_same_address_is_looked_at_again(change: str) -> None:
    inputs = draw("sparse_mla", "bf16", t=2, heads=8, topk=64, n=256)
    q, pe, ids = inputs["q_nope"], inputs["q_pe"], inputs["indices"].clamp(max=99)
    pool = torch.randn(256 * 1152).bfloat16()
    kv, kpe = torch.empty(0, dtype=torch.bfloat16), torch.randn(256, 64).bfloat16()
    kv.set_(pool.untyped_storage(), 0, (256, 512), (512, 1))
    sparse_mla(q, pe, kv, ids, sm_scale=0.1, kpe=kpe, **CPU)
    if change == "kpe":
        narrow = kpe.clone()
        kpe.set_(kpe.untyped_storage(), 0, (128, 64), (128, 1))
        kv.set_(pool.untyped_storage(), 0, (128, 512), (512, 1))
        assert not torch.equal(kpe, narrow[:128])
    elif change == "dtype":
        kv.data = kv.view(torch.float16)
        with pytest.raises(ArgumentTypeError, match=r"kv.*float16"):
            sparse_mla(q, pe, kv, ids, sm_scale=0.1, kpe=kpe, **CPU)
        return
    elif change == "set":
        kv.set_(pool.untyped_storage(), 0, (256, 512), (576, 1))
    else:
        kv, kpe = kv.clone().resize_(100, 512), kpe.clone().resize_(100, 64)
        sparse_mla(q, pe, kv, ids, sm_scale=0.1, kpe=kpe, **CPU)
        for cache, width in ((kv, 512), (kpe, 64)):
            cache.resize_(256, width)
        ids = inputs["indices"]
    wanted = sparse_mla(q, pe, kv.clone(), ids, sm_scale=0.1, kpe=kpe.contiguous().clone(), **CPU)
    result = sparse_mla(q, pe, kv, ids, sm_scale=0.1, kpe=kpe, **CPU)
    assert torch.equal(result[0], wanted[0])


def shifted(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """A copy that begins `by` bytes past a multiple of 64."""
    size = tensor.numel() * tensor.element_size()
    room = torch.empty(size + 128, dtype=torch.uint8)
    first = -room.data_ptr() % 64 + by
    return room[first : first + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)


BY_ELEMENT = {
    "sparse_mla": {"indices", "topk_length", "lse"},
    "topk_selector": {"logits", "row_starts", "row_ends", "block_table", "out"},
    "lightning_indexer": {"seq_lens", "block_table", "out"},
    "prefill": {"k_start", "k_end", "out"},
    "resample_trajectories": {"src_times", "tgt_times"},
}


@pytest.mark.parametrize("op", OPS)
def test_every_misaligned_operand_is_refused_by_name(op: str) -> None:
    call, arguments = call_of(op)
    call(**arguments, **CPU)
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor):
            continue
        moved = {**arguments, name: shifted(value, 4)}
        if name in BY_ELEMENT[op]:
            call(**moved, **CPU)
            continue
        for _ in range(2):
            with pytest.raises(
                InvalidArgumentError, match=rf"{name}: .*multiple of 16 bytes.*4 bytes.*clone"
            ):
                call(**moved, **CPU)
        call(**{**moved, name: moved[name].clone()}, **CPU)


@pytest.mark.parametrize("op", OPS)
def test_the_executor_looks_at_the_first_call_of_a_shape(op: str, monkeypatch) -> None:
    looked = []

    class Strict(executors.Interpreter):
        def prepare(self, variant, device=None):
            launcher = super().prepare(variant, device)

            class Checked:
                def check(self, operands, dims):
                    looked.append(sorted(operands))
                    if len(looked) == 1:
                        raise InvalidArgumentError("x", expected="a", got="b", fix="c")

                def __call__(self, *given):
                    launcher(*given)

            return Checked()

    monkeypatch.setitem(executors.EXECUTORS, "interpreter", Strict)
    ops.clear()
    call, arguments = call_of(op)
    with pytest.raises(InvalidArgumentError):
        call(**arguments, **CPU)
    for _ in range(3):
        call(**arguments, **CPU)
    ops.clear()
    assert len(looked) == 2, "a refused shape is looked at again, an accepted one is not"
    operands = oracles.get("lightning_indexer" if op == "prefill" else op).operands(
        {"sparse_mla": "bf16", "lightning_indexer": "decode", "prefill": "prefill"}.get(op, "default")
    )
    assert set(looked[1]) >= {spec.name for spec in operands if spec.kind != "scalar"}


def test_a_launch_that_raises_does_not_poison_later_ones(monkeypatch) -> None:
    inputs = draw("sparse_mla", "bf16", t=2, heads=8, topk=256, n=256)
    given = inputs["q_nope"], inputs["q_pe"], inputs["ckv"], inputs["indices"]
    options = {"sm_scale": 0.1, "kpe": inputs["kpe"], "splits": 4, "workspace": Workspace(), **CPU}
    variant = next(
        v.id
        for v in ops_variants("sparse_mla")
        if (v.knobs["heads"], v.knobs["kv"], v.knobs["cluster"]) == (8, "bf16", 1)
    )
    sparse_mla(*given, variant=variant, **options)
    arrive, arrived = Executor._count, []

    def fail_third(self, *arguments):
        arrived.append(arguments)
        if len(arrived) == 3:
            raise KeyboardInterrupt
        return arrive(self, *arguments)

    monkeypatch.setattr(Executor, "_count", fail_third)
    with pytest.raises(KeyboardInterrupt):
        sparse_mla(*given, variant=variant, **options)
    given = given[0].flip(0).contiguous(), *given[1:]
    wanted = sparse_mla(*given, variant=variant, **{**options, "workspace": Workspace()})[0]
    assert torch.equal(sparse_mla(*given, variant=variant, **options)[0], wanted)


def ops_variants(op: str) -> list:
    from dsl_kernels import variants

    return variants.variants(op, arch="sm_90a")


def test_an_interrupted_graph_keeps_the_counters_it_was_given(monkeypatch) -> None:
    device, scratch = torch.device("cpu"), Workspace()
    wanted = scratch_memory.Buffers(
        device, (("arrivals", (4,), torch.int32, True), ("o", (8,), torch.float32, False))
    )
    monkeypatch.setattr(scratch_memory, "capturing", lambda device: False)
    first = scratch.views(wanted)
    monkeypatch.setattr(scratch_memory, "capturing", lambda device: True)
    assert scratch.views(wanted)["arrivals"] is first["arrivals"]
    address, size = weakref.ref(first["arrivals"].untyped_storage()), scratch.bytes
    scratch.interrupted(wanted)
    monkeypatch.setattr(scratch_memory, "capturing", lambda device: False)
    again = scratch.views(wanted)
    assert scratch.bytes == size + 16 and address() is not None
    assert again["arrivals"].data_ptr() != first["arrivals"].data_ptr()
    assert again["o"].data_ptr() == first["o"].data_ptr()


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


# (op, argument, bad value, rule, whether its meaning is undefined for kernels)
BAD_VALUES = [
    ("lightning_indexer", "seq_lens", int32(-1)[:, None], "0 to min", True),
    ("lightning_indexer", "seq_lens", int32(193)[:, None], "0 to min", True),
    ("lightning_indexer", "block_table", int32(0, -1, 0)[None], "page ids", True),
    ("lightning_indexer", "block_table", int32(4, 0, 0)[None], "page ids", True),
    ("prefill", "k_start", int32(-3, 0, 0), "0 to skv", False),
    ("prefill", "k_end", int32(9, 101, 100), "0 to skv", False),
    ("prefill", "k_start", int32(0, 100, 0), "at least k_start", False),
    ("topk_selector", "row_starts", int32(-1, 0), "0 to stride", False),
    ("topk_selector", "row_ends", int32(3, 1000), "0 to stride", False),
    ("topk_selector", "row_starts", int32(0, 21), "at least row_starts", False),
    ("topk_selector", "block_table", int32(1, 1)[:, None], "at most max_pages", True),
    ("topk_selector", "block_table", int32(1, 2, -7, 0, 0, 0, 0, 0).view(2, 4), "page ids", True),
    ("topk_selector", "block_table", int32(1, 2, 2**25, 0, 0, 0, 0, 0).view(2, 4), "page ids", True),
    ("resample_trajectories", "src_times", torch.arange(40.0).flip(0).view(2, 20), "finite and ascending",
     True),
    ("sparse_mla", "indices", int32(*[128, *range(127)]).view(2, 64), "token ids", False),
    ("sparse_mla", "indices", int32(*[-2, *range(127)]).view(2, 64), "token ids", False),
]  # fmt: skip


@pytest.mark.parametrize(("op", "name", "value", "rule", "undefined"), BAD_VALUES)
def test_values_out_of_range(op, name, value, rule, undefined, monkeypatch) -> None:
    """With checks on, every bad value is refused; otherwise, off the GPU, only what is undefined."""
    call, arguments = call_of(op)
    bad = {**arguments, name: value}
    if undefined:
        with pytest.raises(InvalidArgumentError, match=rule):
            call(**bad, **CPU)
    else:
        result = call(**bad, **CPU)
        form = {"sparse_mla": "bf16", "topk_selector": "default", "prefill": "prefill"}[op]
        problem = oracles.get("lightning_indexer" if op == "prefill" else op)
        inputs = {**bad, "ckv": bad.get("kv"), "lse_scale": 1.0, "skip_below": 0}
        outputs = (
            {"out": result[0], "lse": result[1]}
            if op == "sparse_mla"
            else {("logits" if op == "prefill" else "indices"): result}
        )
        comparison = problem.compare(form, inputs, outputs, problem.reference(form, inputs))
        assert comparison.ok, comparison.failures
    monkeypatch.setenv("DSL_KERNELS_CHECK_VALUES", "1")
    with pytest.raises(InvalidArgumentError, match=rule) as caught:
        call(**bad, **CPU)
    assert caught.value.subject in bad
    call(**arguments, **CPU)


def test_every_integer_operand_has_rules_of_values_and_all_rules_are_documented() -> None:
    documented = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text()
    for op in oracles.names():
        for form, operands in oracles.get(op).forms.items():
            for spec in operands:
                if spec.kind == "in" and spec.dtype == "int32":
                    assert spec.values, (op, form, spec.name)
                assert all(f"| {rule.allowed} |" in documented for rule in spec.values)
    assert UNDEFINED in {
        rule.otherwise for rule in oracles.get("topk_selector").operands("default")[2].values
    }


def test_entries_of_a_table_that_no_row_uses_may_be_anything(monkeypatch) -> None:
    monkeypatch.setenv("DSL_KERNELS_CHECK_VALUES", "1")
    for op in ("lightning_indexer", "topk_selector"):
        call, arguments = call_of(op)
        table = arguments["block_table"].clone()
        table[0, 3:] = -9
        table[0, 2:] = -9 if op == "lightning_indexer" else table[0, 2:]
        call(**{**arguments, "block_table": table}, **CPU)


@pytest.mark.parametrize("op", OPS)
def test_meta_tensors_are_refused_after_a_call_of_their_shape_too(op: str) -> None:
    call, arguments = call_of(op)
    call(**arguments, **CPU)
    names = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    for name in names:
        with pytest.raises(InvalidArgumentError, match=r"device cpu|device meta"):
            call(**{**arguments, name: arguments[name].to("meta")}, **CPU)
    gone = {name: arguments[name].to("meta") for name in names}
    with pytest.raises(ExecutorUnavailableError, match="meta"):
        call(**{**arguments, **gone}, **CPU)


def test_sizes_without_memory_answer_at_once() -> None:
    rows = 2**31
    logits = torch.empty(1, 128).expand(rows, 128)
    ends = torch.zeros(1, dtype=torch.int32).expand(rows)
    with pytest.raises(InvalidArgumentError, match="positive multiples"):
        topk_selector(logits, ends, 16, **CPU)
    q = torch.empty(1, 1, 64, 128).to(torch.float8_e4m3fn).expand(rows, 1, 64, 128)
    _, arguments = call_of("lightning_indexer")
    arguments.pop("out")
    with pytest.raises(InvalidArgumentError):
        lightning_indexer(**{**arguments, "q": q}, **CPU)


@pytest.mark.parametrize(
    ("op", "out", "other"),
    [
        ("sparse_mla", "out", "q_nope"), ("sparse_mla", "lse", "attn_sink"),
        ("topk_selector", "out", "block_table"),
        ("topk_selector", "out", "row_ends"), ("lightning_indexer", "out", "weights"),
        ("prefill", "out", "weights"),
        ("resample_trajectories", "out", "tgt_times"),
    ],
)  # fmt: skip
def test_an_output_over_an_input_is_refused(op: str, out: str, other: str) -> None:
    call, arguments = call_of(op)
    call(**arguments, **CPU)
    whole = arguments[out].numel() * arguments[out].element_size()
    room = torch.zeros(whole + 4096 + arguments[other].numel() * 4 + 64, dtype=torch.uint8)
    room = room[-room.data_ptr() % 64 :]

    def at(first: int, like: torch.Tensor) -> torch.Tensor:
        size = like.numel() * like.element_size()
        return room[first : first + size].view(like.dtype).view(like.shape).copy_(like)

    apart = {out: at(0, arguments[out]), other: at(-(-whole // 64) * 64, arguments[other])}
    call(**{**arguments, **apart}, **CPU)
    over = {out: at(0, arguments[out]), other: at((whole - 1) // 16 * 16, arguments[other])}
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=rf"{out}: .*memory of its own.*overlap with {other}"):
            call(**{**arguments, **over}, **CPU)


def test_few_sets_of_addresses_are_remembered_as_apart() -> None:
    """Each is a tuple of integers; a call whose addresses never repeat would keep as many as it is made."""
    bound = Bound((), {}, (), False)
    for address in range(1000):
        bound.hold({}, (address,), off_gpu=False, every_value=False)
    assert (999,) in bound.apart and len(bound.apart) <= 64


def test_outputs_may_not_overlap_one_another() -> None:
    call, arguments = call_of("sparse_mla")
    room = torch.empty(2 * 8 * 512 * 2, dtype=torch.uint8)
    out = room.view(torch.bfloat16).view(2, 8, 512)
    lse = room[:64].view(torch.float32).view(2, 8)
    with pytest.raises(InvalidArgumentError, match="out: .*overlap with lse"):
        call(**{**arguments, "out": out, "lse": lse}, **CPU)


def test_integers_are_what_an_index_may_be() -> None:
    call, arguments = call_of("topk_selector")
    wanted = call(**arguments, **CPU).clone()
    for k in (np.int64(32), np.uint8(32), torch.tensor(32)):
        assert torch.equal(call(**{**arguments, "k": k}, **CPU), wanted)
    for name in ("k", "page_size", "next_n"):
        for value in (3.0, "64", None, [1], np.float32(2), 1j):
            with pytest.raises(ArgumentTypeError, match=rf"{name}: expected an integer"):
                call(**{**arguments, name: value}, **CPU)
    call, arguments = call_of("sparse_mla")
    for name, value in (("splits", 2.0), ("sm_scale", "1"), ("sm_scale", None)):
        with pytest.raises(ArgumentTypeError, match=name):
            call(**{**arguments, name: value}, **CPU)
    for value in (float("nan"), float("inf"), 10**400):
        with pytest.raises(InvalidArgumentError, match=r"sm_scale.*finite"):
            call(**{**arguments, "sm_scale": value}, **CPU)
    with pytest.raises(ArgumentTypeError, match=r"topk.*integer.*float"):
        dsa.decode(**{**step(0), "topk": 64.0})
    call, arguments = call_of("lightning_indexer")
    for value, error in ((-1, InvalidArgumentError), (0.5, ArgumentTypeError), (2**31, InvalidArgumentError)):
        with pytest.raises(error, match="skip_below"):
            call(**{**arguments, "skip_below": value}, **CPU)


def test_gradients_are_warned_of_once_and_change_nothing(monkeypatch) -> None:
    monkeypatch.setattr(_operands, "_warned", set())
    call, arguments = call_of("sparse_mla")
    wanted = call(**arguments, **CPU)[0].clone()
    wanting = {**arguments, "q_nope": arguments["q_nope"].clone().requires_grad_()}
    with pytest.warns(UserWarning, match="sparse_mla.*no backward") as caught:
        results = [call(**wanting, **CPU)[0] for _ in range(3)]
    assert len([w for w in caught if "no backward" in str(w.message)]) == 1
    assert torch.equal(results[0], wanted) and not results[0].requires_grad
    monkeypatch.setattr(_operands, "_warned", set())
    cache = torch.nn.Parameter(arguments["kv"].clone())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        assert torch.equal(call(**{**arguments, "kv": cache}, **CPU)[0], wanted)
    with pytest.warns(UserWarning, match="no backward"):
        call(**{**arguments, "kv": cache}, **CPU)


def test_ops_run_in_and_after_inference_mode() -> None:
    for op in OPS:
        ops.clear()
        call, arguments = call_of(op)
        with torch.inference_mode():
            inner_call, inner = call_of(op)
            inner_call(**inner, **CPU)
            inner.pop("out")
            inner.pop("lse", None)
            inner_call(**inner, **CPU)
        call(**arguments, **CPU)
        call(**inner, **CPU)


def test_autocast_changes_nothing() -> None:
    call, arguments = call_of("sparse_mla")
    wanted = call(**arguments, **CPU)[0].clone()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(call(**arguments, **CPU)[0], wanted)


def test_a_forced_operation_that_does_not_exist_is_an_error(monkeypatch) -> None:
    call, arguments = call_of("topk_selector")
    monkeypatch.setenv("DSL_KERNELS_FORCE", "topk_selectr=anything")
    with pytest.raises(
        UnknownNameError, match=r"DSL_KERNELS_FORCE.*topk_selectr.*did you mean topk_selector"
    ):
        call(**arguments, **CPU)


@pytest.mark.parametrize("name", ["q_nope", "kv", "kpe", "indices"])
def test_tensors_that_are_not_dense_are_refused(name: str) -> None:
    call, arguments = call_of("sparse_mla")
    sparse = torch.zeros(4, 4).to_sparse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(1, 3)])
    for value in (sparse, nested, [1], "x", 3.5):
        with pytest.raises(ArgumentTypeError, match=name):
            call(**{**arguments, name: value}, **CPU)


def test_names_of_other_types_are_refused() -> None:
    call, arguments = call_of("sparse_mla")
    for name in ("executor", "variant", "arch"):
        for value in (5, [1], {"a": 1}):
            with pytest.raises(ArgumentTypeError, match=name):
                call(**{**arguments, "executor": "interpreter", name: value})
    for value in (5, "x", object()):
        with pytest.raises(ArgumentTypeError, match="workspace"):
            call(**arguments, workspace=value, **CPU)


@pytest.mark.parametrize("op", oracles.names())
def test_a_workload_of_every_op_is_aligned_as_declared(op: str) -> None:
    for workload in oracles.get(op).workloads:
        if workload.tier == "tiny":
            inputs = trial.draw(op, workload, seed=0)
            for spec in oracles.get(op).operands(workload.form):
                value = inputs.get(spec.name)
                if isinstance(value, torch.Tensor):
                    assert value.data_ptr() % spec.align == 0 and spec.align in (2, 4, 16)


def test_a_workspace_on_another_stream_waits_for_the_one_before(monkeypatch) -> None:
    """Two streams that share a workspace take turns: the second waits, and the allocator knows of its use."""
    log: list[tuple] = []

    class Stream:
        def __init__(self, number: int) -> None:
            self.cuda_stream = number

        def wait_stream(self, other) -> None:
            log.append(("wait", self.cuda_stream, other.cuda_stream))

    class Buffer:
        def record_stream(self, stream) -> None:
            log.append(("record", stream.cuda_stream))

    streams, present = [Stream(0), Stream(7)], [0]
    device, scratch = torch.device("cuda", 0), Workspace()
    monkeypatch.setattr(scratch_memory, "capturing", lambda device: present[0] < 0)
    monkeypatch.setattr(scratch_memory, "stream_of", lambda device: streams[present[0]].cuda_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[present[0]])
    scratch._buffers = {("o", device): Buffer(), ("o", torch.device("cuda", 1)): Buffer()}
    for stream in (0, 0, 1, 1, -1, 1, 0):
        present[0] = stream
        scratch._enter(device)
    assert log == [("wait", 7, 0), ("record", 7), ("wait", 0, 7), ("record", 0)]
