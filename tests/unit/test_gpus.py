"""GPU rows: how a device finds its row; grids and predictions depend on it, generated code does not."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from dsl_kernels import executors, programs, registry, variants
from dsl_kernels.arch import ARCHS, GPUS, ArchSpec, GpuSpec, gpu_row, siblings
from dsl_kernels.errors import UnsupportedArchError
from dsl_kernels.executors import Interpreter
from dsl_kernels.kernels.sparse_mla.policy import MOST_SPLITS
from dsl_kernels_lab.verification import trial

DECODE = {"b": 4, "next_n": 1, "heads": 64, "max_pages": 64, "stride": 4096, "pages": 300, "skip_below": 0}


def test_rows_are_complete() -> None:
    assert set(GPUS) == {gpu.name for gpu in GPUS.values()} == {"H100", "H20", "H200", "B200", "B300"}
    assert len({gpu.device for gpu in GPUS.values()}) == len(GPUS)
    for arch in ARCHS.values():
        assert GPUS[arch.gpu].arch is arch
    for gpu in GPUS.values():
        assert gpu.rates_from.startswith(
            "measured on one H200" if gpu.name == "H200" else "published figures"
        )


def test_a_declaration_cannot_see_a_gpu() -> None:
    """Generated text is made from an architecture, which has no figure that varies between products."""
    assert {f.name for f in fields(ArchSpec)} & {f.name for f in fields(GpuSpec)} == {"name"}


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_a_device_finds_its_row(gpu: GpuSpec) -> None:
    for name in (gpu.name, gpu.device):
        assert gpu_row(gpu.arch.name, name) is gpu_row(gpu.arch.name, name, gpu.sms) is gpu


def test_without_a_device_the_reference_counts() -> None:
    assert (gpu_row("sm_90a").name, gpu_row("sm_100a").name) == ("H200", "B200")
    with pytest.raises(UnsupportedArchError):
        gpu_row("sm_80")


@pytest.mark.parametrize(
    ("device", "sms", "note"),
    [
        ("NVIDIA GH200 480GB", 132, "no row for NVIDIA GH200 480GB on sm_90a"),
        ("NVIDIA H100 PCIe", 114, "no row for NVIDIA H100 PCIe on sm_90a"),
        ("NVIDIA H200", 16, "no row for NVIDIA H200 with 16 SMs"),
        ("NVIDIA B200", 148, "no row for NVIDIA B200 on sm_90a"),
    ],
)
def test_another_product_gets_the_reference_with_its_own_sms(device: str, sms: int, note: str) -> None:
    gpu, reference = gpu_row("sm_90a", device, sms), GPUS["H200"]
    assert (gpu.device, gpu.sms, gpu.arch, gpu.hbm_gbps) == (device, sms, reference.arch, reference.hbm_gbps)
    assert gpu.l2_gbps / sms == pytest.approx(reference.l2_gbps / reference.sms)
    assert gpu.tensor_tflops["bfloat16"] / sms == pytest.approx(814.0 / 132)
    assert gpu.note == f"{note}: the rates of the H200, for {sms} SMs" and "the H200" in gpu.rates_from


@pytest.mark.parametrize(
    ("gpu", "nearest"),
    [
        (GPUS["H100"], ["H200", "H20"]),
        (GPUS["H20"], ["H200", "H100"]),
        (GPUS["H200"], ["H100", "H20"]),
        (GPUS["B200"], ["B300"]),
        (gpu_row("sm_90a", "NVIDIA GH200 480GB", 132), ["H200", "H100", "H20"]),
        # A part of a GPU has the whole GPU as a sibling.
        (gpu_row("sm_90a", "NVIDIA H200", 120), ["H200", "H100", "H20"]),
    ],
    ids=lambda value: value.name if isinstance(value, GpuSpec) else "",
)
def test_siblings_are_of_the_same_architecture_the_nearest_first(gpu: GpuSpec, nearest: list[str]) -> None:
    assert [row.name for row in siblings(gpu)] == nearest


def test_the_device_at_hand_is_read_once(monkeypatch) -> None:
    asked = []

    def properties(index: int) -> SimpleNamespace:
        asked.append(index)
        name, major, sms = {0: ("NVIDIA H20", 9, 78), 1: ("NVIDIA X", 10, 100)}[index]
        return SimpleNamespace(name=name, major=major, minor=0, multi_processor_count=sms)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    executors.gpu_at_hand.cache_clear()
    try:
        for _ in range(2):
            assert executors.gpu_at_hand(0) is GPUS["H20"]
            assert (executors.gpu_at_hand(1).sms, executors.gpu_at_hand(1).arch.name) == (100, "sm_100a")
        assert asked == [0, 1]
    finally:
        executors.gpu_at_hand.cache_clear()


def launched(gpu: GpuSpec, variant: variants.Variant, dims: dict[str, int]) -> dict[str, int]:
    form = programs.get(variant.op).form(variant.knobs)
    call = registry.Call.on(gpu, variant.op, form, dims)
    selection = registry.explain(call, variant.id).selection
    assert selection is not None
    return selection.launch


def test_launches_follow_the_sms_of_the_gpu() -> None:
    for variant in variants.variants("lightning_indexer"):
        if variant.knobs["mode"] == "decode":
            for gpu in (g for g in GPUS.values() if g.arch.name == variant.arch):
                heads = variant.knobs["heads"]
                sizes = {
                    "heads": heads,
                    "index_heads": heads,
                    "index_dim": 128,
                    "next_n": variant.knobs["queries"],
                }
                launch = launched(gpu, variant, {**DECODE, **sizes})
                assert launch == {"ctas": gpu.sms * variant.knobs["resident"]}
    attend = next(v for v in variants.variants("gqa_forward", arch="sm_90a") if v.knobs["dim"] == 128)
    dims = {"b": 4, "sq": 4096, "skv": 4096, "heads": 64, "kv_heads": 8, "dim": 128, "causal": 0}
    for name in ("H20", "H200"):
        assert launched(GPUS[name], attend, dims)["ctas"] == GPUS[name].sms // attend.knobs["cluster"]


@pytest.mark.parametrize("gpu", ("H20", "H200"))
@pytest.mark.parametrize("keys", (300, 32768, 131072))
def test_a_prompt_is_split_so_that_its_last_round_of_ctas_is_full(gpu: str, keys: int) -> None:
    variant = variants.get("lightning_indexer__cutedsl_sm90a__prefill_h64_q8_t128_st4_c1_e0")

    def taken(rows: int, splits: int) -> float:
        return -(-(rows // 8) * splits // GPUS[gpu].sms) / splits

    for rows in (8, 64, 256, 512, 800, 1024, 4096):
        dims = {"s": rows, "skv": keys, "heads": 64, "stride": keys, "skip_below": 0}
        splits = launched(GPUS[gpu], variant, dims)["splits"]
        plain = max(1, -(-GPUS[gpu].sms // (rows // 8)))
        assert taken(rows, splits) <= 1.02 * taken(rows, plain)
        assert (rows, gpu) != (512, "H200") or (
            splits == 2 and taken(rows, plain) > 1.3 * taken(rows, splits)
        )


@pytest.mark.parametrize("cluster", (1, 2))
def test_a_query_has_no_more_splits_than_its_longest_one_needs(cluster: int) -> None:
    """With whole rows, 37 queries of 32 tiles have three splits of 11, not two of 16."""
    gpu = GPUS["H200"]
    variant = variants.get(f"sparse_mla__cutedsl_sm90a__h16_fp8_bt64_st2_cl{cluster}")
    tiles, most = 32, MOST_SPLITS if cluster == 1 else 32
    for t in range(1, 200):
        splits = launched(gpu, variant, {"t": t, "heads": 16, "topk": 64 * tiles})["splits"]
        longest, allowed = (
            -(-tiles // splits),
            min(most, gpu.slots_in_clusters(cluster) // (t * cluster) * cluster),
        )
        assert splits % cluster == 0 and splits <= max(cluster, allowed)
        assert splits == cluster or -(-tiles // (splits - cluster)) > longest
        assert longest == -(-tiles // max(cluster, min(allowed, tiles)))
        assert (t, cluster) != (37, 1) or splits == 3


def test_predictions_follow_the_gpu() -> None:
    """An H20 multiplies at a sixth of an H100's rate and reads faster: long prompts take it far longer."""
    dims = {"s": 4096, "skv": 32768, "heads": 64, "stride": 32768, "skip_below": 0}

    def best(gpu: str) -> float:
        explanation = registry.explain(registry.Call.on(GPUS[gpu], "lightning_indexer", "prefill", dims))
        return min(c.predicted_us for c in explanation.candidates if c.predicted_us is not None)

    assert best("H20") > 4 * best("H100")


@pytest.mark.parametrize("backend", ["cutedsl", "tilelang"])
def test_a_kernel_generated_once_is_right_on_an_h20(backend: str) -> None:
    variant = variants.get(f"lightning_indexer__{backend}_sm90a__decode_h64_q8_t256_st4_c1_e0")
    workload = next(w for w in trial.workloads(variant, "edge") if "ragged" in w.name)
    with mock.patch.dict(GPUS, {"H200": replace(GPUS["H20"], name="H200")}):
        result = trial.run(variant, workload, Interpreter())
    assert result.dims["ctas"] == 78 and result.comparison.ok, result.comparison.failures
