"""The hardware counters that a fingerprint is made of, by Nsight Compute's names.

Names that begin with gpu, sm, smsp, l1tex, lts and dram are in the chips' own catalogues, and a test checks
this table against those. Names that begin with launch, device and `sm__maximum` are Nsight Compute's; every
report has them.
"""

from __future__ import annotations

STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "selected",
    "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
# Reasons that only one chip counts.
CHIP_STALLS = {"GH100": ("gmma", "imc_miss"), "GB100": ()}
# The chip of an architecture, by which Nsight Compute names its counters.
CHIPS = {"sm_90": "GH100", "sm_100": "GB100"}
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
LATENCY = "smsp__average_warps_active_per_issue_active.ratio"
# The same reasons as samples of the program counter, and other names that they go by.
SAMPLED = "smsp__pcsamp_warps_issue_stalled_{}"
SAMPLES = "smsp__pcsamp_sample_count"
SAMPLED_AS = {"no_instructions": "no_instruction", "warpgroup_arrive": "gmma"}

DURATION = "gpu__time_duration.sum"
CYCLES = "sm__cycles_elapsed.max"

# Share of the peak rate of each unit.
SOL = {
    "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "l1": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
# The same rates under the names that a section or an older version prints.
SOL_OTHER = {
    "dram": ("dram__throughput.avg.pct_of_peak_sustained_elapsed",),
    "l1": ("l1tex__throughput.avg.pct_of_peak_sustained_active",),
}
PIPES = {
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "fma": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "alu": "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "xu": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
    "lsu": "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed",
    "tma": "sm__pipe_tma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "shared": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
}
PIPES_OTHER = {
    "tensor": (
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    ),
}

# Bytes read through each level, as a sum of (counter, factor) terms over the paths of that level.
SECTOR = 32.0
TRAFFIC: dict[str, tuple[tuple[str, float], ...]] = {
    # The counter of loads includes 16-byte asynchronous copies (measured on GH100), but not TMA's.
    "l1": (
        ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", SECTOR),
        ("l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum", 1.0),
    ),
    # Reads of distributed shared memory use the same crossbar, but are not served by the L2.
    "l2": (
        ("l1tex__m_xbar2l1tex_read_bytes.sum", 1.0),
        ("l1tex__m_xbar2l1tex_read_bytes_mem_dshared.sum", -1.0),
    ),
    "dram": (("dram__bytes_read.sum", 1.0),),
}

# The part of these bytes that asynchronous copies read.
ASYNC = (
    "l1tex__t_bytes_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
    "smsp__sass_l1tex_m_xbar2l1tex_read_bytes_mem_global_op_ldgsts_cache_bypass.sum",
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
)

ISSUE = {
    "issued": "smsp__issue_active.avg.per_cycle_active",
    "eligible": "smsp__warps_eligible.avg.per_cycle_active",
    "active": "smsp__warps_active.avg.per_cycle_active",
    "threads": "smsp__thread_inst_executed_per_inst_executed.ratio",
}
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
WAVES = "launch__waves_per_multiprocessor"
REGISTERS = "launch__registers_per_thread"
SHARED = ("launch__shared_mem_per_block_dynamic", "launch__shared_mem_per_block_static")
LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
}
GRID, SMS = "launch__grid_size", "launch__sm_count"
LAUNCH = (
    THEORETICAL, WAVES, REGISTERS, *SHARED, *LIMITS.values(), GRID, SMS,
    "launch__block_size", "launch__cluster_size",
)  # fmt: skip

LOCAL_INSTRUCTIONS = ("smsp__sass_inst_executed_op_local_ld.sum", "smsp__sass_inst_executed_op_local_st.sum")
LOCAL_SECTORS = (
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
)
L1_SECTORS = "l1tex__t_sectors.sum"

L1_HIT = "l1tex__t_sector_hit_rate.pct"
L2_HIT = "lts__t_sector_hit_rate.pct"
BANK_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
GLOBAL_LOADS = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
)
GLOBAL_STORES = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
)
BYTES_PER_SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
ATOMIC_SECTORS = ("lts__t_sectors_op_atom.sum", "lts__t_sectors_op_red.sum")
L2_SECTORS = "lts__t_sectors.sum"
L2_READS = "lts__t_sectors_op_read.sum"
DRAM_WRITES = "dram__bytes_write.sum"
ATOMIC_UNIT = "lts__d_atomic_input_cycles_active.avg.pct_of_peak_sustained_elapsed"
INSTRUCTIONS = "smsp__inst_executed.sum"
BALANCE = ("sm__cycles_active.max", "sm__cycles_active.avg")
ACTIVE_OF_ELAPSED = ("sm__cycles_active.avg", "sm__cycles_elapsed.avg")


def stalls(chip: str) -> tuple[str, ...]:
    """The stall reasons that a chip counts."""
    return (*STALLS, *CHIP_STALLS.get(chip, ()))


def counters(chip: str) -> tuple[str, ...]:
    """Every hardware counter that `collect` asks for on a chip ("GH100" or "GB100")."""
    terms = [name for group in TRAFFIC.values() for name, _ in group]
    names = [
        DURATION, CYCLES, *SOL.values(), *PIPES.values(), *terms, *ASYNC, *ISSUE.values(), ACHIEVED,
        *(STALL.format(reason) for reason in stalls(chip)), LATENCY, *LOCAL_INSTRUCTIONS, *LOCAL_SECTORS,
        L1_SECTORS, L1_HIT, L2_HIT, BANK_CONFLICTS, SHARED_WAVEFRONTS, *GLOBAL_LOADS, *GLOBAL_STORES,
        BYTES_PER_SECTOR, *ATOMIC_SECTORS, L2_SECTORS, L2_READS, DRAM_WRITES, ATOMIC_UNIT, INSTRUCTIONS,
        *BALANCE, *ACTIVE_OF_ELAPSED,
    ]  # fmt: skip
    return tuple(dict.fromkeys(names))


def requested(chip: str) -> tuple[str, ...]:
    """`counters`, plus the launch facts that Nsight Compute always adds."""
    return (*counters(chip), *LAUNCH)
