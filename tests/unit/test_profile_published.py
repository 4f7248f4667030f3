"""Profiles published by others, with the figures as printed: the diagnosis must be the right one."""

from __future__ import annotations

import pytest

from dsl_kernels_lab.profile import KernelReport, Workload, diagnose, fingerprint, metrics


def figures(**values: float) -> KernelReport:
    """A report by short names: units and pipes in percent; stalls in cycles, `share_x` in samples of 100."""
    names = {
        **{unit: metrics.SOL[unit] for unit in metrics.SOL},
        "tensor": metrics.PIPES_OTHER["tensor"][0],
        "l2_hit": metrics.L2_HIT,
        "occupancy": metrics.ACHIEVED,
        "waves": metrics.WAVES,
        "registers": metrics.REGISTERS,
        "shared": metrics.SHARED[0],
        "us": metrics.DURATION,
        "cycles": metrics.CYCLES,
        "load_sectors": metrics.GLOBAL_LOADS[0],
    }
    by_label = {}
    for name, value in values.items():
        if name.startswith("share_"):
            by_label[metrics.SAMPLED.format(name[6:])] = value
            by_label[metrics.SAMPLES] = 100.0
        elif name in metrics.STALLS:
            by_label[metrics.STALL.format(name)] = value
        else:
            by_label[names[name]] = value * (1e3 if name == "us" else 1.0)
    return KernelReport("published", "figures", metrics=by_label)


GATHER = {"row_bytes": 1152, "footprint_bytes": 4096 * 64 * 1152.0, "order": "random"}

PUBLISHED = {
    # Triton split-K sparse attention, B200: limited by occupancy according to Nsight Compute.
    "sparse_t4": (
        figures(sm=3.3, memory=7.1, l1=53, occupancy=12.5, waves=0.22, shared=171.5 * 1024, registers=128),
        Workload(read_bytes=4 * 2048 * 1152.0, row_bytes=1152, footprint_bytes=2048 * 64 * 1152.0,
                 order="random"),
        "small_grid",
        ("occupancy",),
    ),
    "sparse_t64": (
        figures(sm=17.7, memory=38.1, l1=48, occupancy=12.5, waves=0.86, us=86.4, shared=171.5 * 1024,
                registers=158),
        Workload(read_bytes=151e6, **GATHER),
        "gather_below_ceiling",
        ("occupancy",),
    ),
    # Warp-specialised GQA forward, H200: tensor cores at 65 %, softmax between the products.
    "gqa": (
        figures(tensor=65.0, long_scoreboard=3.09, wait=1.57, short_scoreboard=0.32, math_pipe_throttle=0.02),
        None,
        "tensor_exposed",
        (),
    ),
    # Reduction of 4M floats, L4: one atomic per thread, and warp shuffles.
    "reduction_v1": (
        figures(cycles=12_085_435, dram=0.46, l2_hit=88.74, occupancy=91.17, share_lg_throttle=31.1),
        None,
        "atomics",
        ("occupancy", "dram bandwidth"),
    ),
    "reduction_v4": (
        figures(cycles=55_229, dram=88.2, l2_hit=0.95, occupancy=91.89, share_long_scoreboard=84.6),
        None,
        "dram_bound",
        (),
    ),
    # Triton attention, and torch's FlashAttention 2, on an L4.
    "attention_triton": (
        figures(
            cycles=1_565_141, sm=39.3, tensor=44.6, dram=10.6, registers=255, occupancy=8.3, share_wait=38.6,
            share_selected=21.7, share_math_pipe_throttle=19.4, share_short_scoreboard=14.9,
        ),
        None,
        "dependency_chain",
        ("dram bandwidth",),
    ),
    "attention_sdpa": (
        figures(
            cycles=827_328, sm=72.1, tensor=78.8, dram=20.3, registers=184, occupancy=16.2, share_wait=19.0,
            share_selected=13.6, share_math_pipe_throttle=41.5, share_short_scoreboard=2.2,
        ),
        None,
        "tensor_bound",
        ("occupancy",),
    ),
    # Resampling by a binary search per thread, H100: "768 times below the DRAM", with data in L2.
    "resample": (
        figures(sm=36.61, dram=0.13, load_sectors=1_245_183, long_scoreboard=2.03, us=110.0),
        Workload(read_bytes=64 * 4096 * 32 * 2.0, unique_bytes=64 * 4096 * 32 * 2.0),
        "wasted_sectors",
        ("dram bandwidth",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_diagnosis_is_the_right_one(name: str) -> None:
    report, workload, cause, not_these = PUBLISHED[name]
    diagnosis = diagnose(fingerprint(report, workload))
    assert diagnosis.top is not None
    assert diagnosis.top.cause == cause
    assert set(not_these) <= set(diagnosis.refuted)


def test_the_gain_of_a_resident_dataset_is_not_the_gap_to_the_dram() -> None:
    report, workload, _, _ = PUBLISHED["resample"]
    diagnosis = diagnose(fingerprint(report, workload))
    assert "live in the L2" in diagnosis.refuted["dram bandwidth"]
    l1 = diagnosis.fingerprint.traffic["l1"]
    assert l1.moved == 1_245_183 * 32
    assert l1.ratio == pytest.approx(1 / 2.37, rel=0.01)
