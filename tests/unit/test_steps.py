"""Inputs of a step, workload files, and a check that catches each kind of fault."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from codegen.check import check as check_resources
from codegen.emit import entry, relative_path
from codegen.sweep import Instance, combinations
from dsl_kernels import ops, programs, variants
from dsl_kernels.arch import get_arch
from dsl_kernels.errors import DslKernelError, InvalidArgumentError
from dsl_kernels_lab import steps
from dsl_kernels_lab.steps.check import check
from dsl_kernels_lab.steps.drawing import part_of

SIZE = steps.StepSize(batch=3, context=300, topk=64, heads=8, index_heads=32, next_n=2, ragged=True)
PREFILL = steps.StepSize("prefill", rows=5, context=300, topk=64, heads=8, index_heads=32)


@pytest.fixture(autouse=True)
def declared(tmp_path, monkeypatch):
    """One variant per op and number of heads suffices, and none needs its template."""
    records = []
    for op in programs.names():
        program, arch = programs.get(op), get_arch("sm_90a")
        for knobs in combinations(program, arch, 0):
            instance = Instance(program, "tilelang", arch, knobs, Path("none"))
            if not check_resources(program, knobs, arch):
                records.append({**entry(instance, ""), "file": relative_path(instance)})
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": variants.SCHEMA, "variants": records}))
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(tmp_path))
    ops.clear()


def run(inputs):
    workspace = ops.Workspace()
    return inputs.run(executor="interpreter", workspace=workspace), workspace


@pytest.mark.parametrize("kv", steps.CACHES)
@pytest.mark.parametrize("size", [SIZE, PREFILL], ids=lambda size: size.kind)
def test_a_right_step_passes(size, kv):
    inputs = steps.draw(replace(size, kv=kv))[0]
    assert (inputs.size().kv, inputs.form) == (kv, "fp8" if kv == "fp8" else "bf16")
    output, workspace = run(inputs)
    comparisons = check(inputs, output, workspace)
    assert {op: c.failures for op, c in comparisons.items()} == {op: [] for op in comparisons}
    assert comparisons["chain"].figures["tokens selected differently"] == 0
    assert [item.variant.op for item in steps.used()] == ["lightning_indexer", "topk_selector", "sparse_mla"]


def faults():
    def logits(output, workspace):
        workspace.get("logits", (3, 2, 320), torch.float32, torch.device("cpu"), zeroed=False)[0, 0, 3] += (
            50.0
        )

    def lost_token(output, workspace):
        output.indices[0, 5] = -1

    def repeated_token(output, workspace):
        output.indices[0, 5] = output.indices[0, 4]

    def foreign_token(output, workspace):
        used = set(output.indices.flatten().tolist())
        output.indices[0, 5] = next(token for token in range(900) if token not in used)

    def out(output, workspace):
        output.out[1, 3] *= 1.5

    def nan(output, workspace):
        output.out[1, 3, 7] = float("nan")

    def lse(output, workspace):
        output.lse[0, 2] += 1e-3

    return [
        (logits, {"lightning_indexer", "topk_selector"}),
        (lost_token, {"topk_selector", "sparse_mla", "chain"}),
        (repeated_token, {"topk_selector", "sparse_mla", "chain"}),
        (foreign_token, {"topk_selector", "sparse_mla", "chain"}),
        (out, {"sparse_mla", "chain"}),
        (nan, {"sparse_mla", "chain"}),
        (lse, {"sparse_mla"}),
    ]


@pytest.mark.parametrize(("fault", "notice"), faults(), ids=lambda value: getattr(value, "__name__", ""))
def test_each_fault_is_noticed_by_the_right_comparison(fault, notice):
    inputs = steps.draw(SIZE)[0]
    output, workspace = run(inputs)
    fault(output, workspace)
    comparisons = check(inputs, output, workspace)
    assert {op for op, comparison in comparisons.items() if not comparison.ok} >= notice


def test_ragged_lengths_halve_and_end_with_padding():
    lens = steps.draw(SIZE)[0].tensors["seq_lens"]
    assert lens.tolist() == [[299, 300], [149, 150], [0, 0]]
    full = steps.draw(replace(SIZE, ragged=False))[0].tensors["seq_lens"]
    assert full.tolist() == [[299, 300]] * 3


def test_the_same_seed_draws_the_same_step():
    a, b, c = (steps.draw(SIZE, seed=seed)[0] for seed in (1, 1, 2))
    assert all(
        torch.equal(a.tensors[name].view(torch.uint8), b.tensors[name].view(torch.uint8))
        for name in a.tensors
    )
    assert not torch.equal(a.tensors["q_nope"], c.tensors["q_nope"])


@pytest.mark.parametrize("size", [SIZE, PREFILL], ids=lambda size: size.kind)
def test_a_step_survives_its_file(tmp_path, size):
    pytest.importorskip("safetensors")
    inputs = replace(steps.draw(size)[0], sm_scale=0.25, lse_base="e")
    steps.save(inputs, tmp_path / "step.safetensors")
    back = steps.load(tmp_path / "step.safetensors", steps.StepSize(size.kind))
    assert (back.topk, back.sm_scale, back.lse_base) == (64, 0.25, "e")
    assert set(back.tensors) == set(inputs.tensors)
    for name, tensor in inputs.tensors.items():
        assert tensor.dtype == back.tensors[name].dtype
        assert torch.equal(tensor.view(torch.uint8), back.tensors[name].view(torch.uint8))
    with pytest.raises(InvalidArgumentError, match="a (decode|prefill) step"):
        steps.load(
            tmp_path / "step.safetensors", steps.StepSize("prefill" if size.kind == "decode" else "decode")
        )


def test_lse_in_base_e_is_checked_in_base_e():
    inputs = replace(steps.draw(SIZE)[0], lse_base="e")
    output, workspace = run(inputs)
    assert check(inputs, output, workspace)["sparse_mla"].ok


def test_more_sequences_than_the_check_samples():
    inputs = steps.draw(steps.StepSize(batch=9, context=130, topk=64, heads=8, index_heads=32))[0]
    output, workspace = run(inputs)
    output.lse[1] += 1
    assert check(inputs, output, workspace, sample=2)["sparse_mla"].ok
    assert not check(inputs, output, workspace, sample=9)["sparse_mla"].ok


def altered(path: Path, edit, **metadata: str) -> Path:
    """A workload file of SIZE, after an edit."""
    inputs = steps.draw(SIZE)[0]
    tensors = {name: tensor.clone() for name, tensor in inputs.tensors.items()}
    edit(tensors)
    save_file(tensors, path, metadata={"kind": "decode", "topk": "64", **metadata})
    return path


@pytest.mark.parametrize(
    ("subject", "edit"),
    [
        ("seq_lens", lambda t: t["seq_lens"].fill_(10_000)),
        ("seq_lens", lambda t: t["seq_lens"].fill_(-1)),
        ("block_table", lambda t: t["block_table"].fill_(10_000)),
        ("block_table", lambda t: t["block_table"].fill_(-1)),
        ("block_table", lambda t: t.update(block_table=t["block_table"][:1].clone())),
        ("weights", lambda t: t.update(weights=t["weights"].double())),
        ("q_nope", lambda t: t.update(q_nope=t["q_nope"][..., :500].clone())),
    ],
)
def test_a_workload_file_whose_values_point_at_nothing_is_refused(tmp_path, subject, edit):
    with pytest.raises(DslKernelError) as caught:
        steps.load(altered(tmp_path / "step", edit), SIZE)
    assert caught.value.subject == subject


@pytest.mark.parametrize(
    "metadata", [{"topk": "x"}, {"topk": "0"}, {"sm_scale": "nan"}, {"lse_base": "10"}, {"kind": "train"}]
)
def test_metadata_that_says_nothing_is_refused(tmp_path, metadata):
    with pytest.raises(DslKernelError):
        steps.load(altered(tmp_path / "step", lambda tensors: None, **metadata), SIZE)


def test_sizes_beyond_the_memory_are_refused_before_they_are_drawn():
    with pytest.raises(InvalidArgumentError, match="free on cpu"):
        steps.draw(steps.StepSize(batch=1 << 16, context=1 << 24))
    with pytest.raises(InvalidArgumentError, match="seed"):
        steps.draw(SIZE, seed=10**30)


def test_sets_of_inputs_share_no_page_while_there_are_others() -> None:
    size = steps.StepSize(batch=3, context=130, pages=30, topk=64, heads=8)
    tables = [inputs.tensors["block_table"] for inputs in steps.draw(size, sets=4)]
    first, later = torch.cat(tables[:3]).flatten(), tables[3].flatten()
    assert len(first.unique()) == 27 and len(later.unique()) == 9, "nine pages a set, of thirty"
    assert len(set(later.tolist()) - set(first.tolist())) == 3


def test_a_part_of_an_order_begins_again_at_its_end() -> None:
    order = torch.tensor([5, 1, 4, 2, 3])
    assert part_of(order, 0, 3).tolist() == [5, 1, 4]
    assert part_of(order, 1, 3).tolist() == [2, 3, 5]
