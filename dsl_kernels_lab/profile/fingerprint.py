"""A launch reduced to comparable numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from . import metrics
from .model import Fingerprint, Issue, KernelReport, Occupancy, Spills, Stall, Traffic, Workload


def fingerprint(report: KernelReport, workload: Workload | None = None) -> Fingerprint:
    """Utilisation, stalls, bytes, pipes and occupancy of a launch.

    Args:
        workload: what the launch had to do, by default what the report says. It gives the bytes used, to
            compare with the bytes moved.
    """
    values, work = report.metrics, workload or report.workload or Workload()
    stalls, notes = _stalls(values)
    duration = values.get(metrics.DURATION)
    return Fingerprint(
        kernel=report.kernel,
        source=report.source,
        arch=report.arch,
        device=report.device,
        label=report.label,
        us=None if duration is None else duration / 1e3,
        cycles=_first(values, (metrics.CYCLES, "sm__cycles_elapsed.avg")),
        sol=_shares(values, metrics.SOL, metrics.SOL_OTHER),
        pipes=_shares(values, metrics.PIPES, metrics.PIPES_OTHER),
        stalls=stalls,
        traffic=_traffic(values, work),
        issue=Issue(**{name: values.get(metric) for name, metric in metrics.ISSUE.items()}),
        occupancy=_occupancy(values),
        spills=_spills(values),
        rates=_rates(values),
        workload=work,
        rules=report.rules,
        missing=(*report.missing, *notes),
    )


def _first(values: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _sum(values: Mapping[str, float], names: Iterable[str]) -> float | None:
    """The sum of the values that were read; None if none was."""
    read = [values[name] for name in names if name in values]
    return sum(read) if read else None


def _ratio(values: Mapping[str, float], over: str, under: str) -> float | None:
    top, bottom = values.get(over), values.get(under)
    return top / bottom if top is not None and bottom else None


def _shares(
    values: Mapping[str, float], named: Mapping[str, str], other: Mapping[str, tuple[str, ...]]
) -> dict[str, float]:
    shares = {unit: _first(values, (name, *other.get(unit, ()))) for unit, name in named.items()}
    return {unit: value / 100 for unit, value in shares.items() if value is not None}


def _stalls(values: Mapping[str, float]) -> tuple[dict[str, Stall], tuple[str, ...]]:
    """Stalls, from cycles per issue if those were counted, else from samples; and notes about them."""
    reasons = (*metrics.STALLS, *metrics.CHIP_STALLS["GH100"])
    cycles = {r: values[metrics.STALL.format(r)] for r in reasons if metrics.STALL.format(r) in values}
    if cycles:
        # Every issue takes one cycle in the state "selected", whether that counter was read or not.
        known = sum(cycles.values()) + (0.0 if "selected" in cycles else 1.0)
        total = max(values.get(metrics.LATENCY, 0.0), known)
        partial = len(cycles) < len(metrics.STALLS) and metrics.LATENCY not in values
        notes = ("other stall reasons, so shares are upper limits",) if partial else ()
        return {r: Stall(value / total, value) for r, value in cycles.items()}, notes
    prefix = metrics.SAMPLED.format("")
    samples = {
        metrics.SAMPLED_AS.get(name[len(prefix) :], name[len(prefix) :]): value
        for name, value in values.items()
        if name.startswith(prefix) and not name.endswith("_not_issued") and "." not in name
    }
    total = max(values.get(metrics.SAMPLES, 0.0), sum(samples.values()))
    if not total:
        return {}, ("stall reasons",)
    return {r: Stall(value / total) for r, value in samples.items()}, ()


def _traffic(values: Mapping[str, float], work: Workload) -> dict[str, Traffic]:
    traffic = {}
    for level, terms in metrics.TRAFFIC.items():
        read = [values[name] * factor for name, factor in terms if name in values]
        if not read:
            continue
        moved = sum(read)
        used = work.unique_bytes if level == "dram" else work.read_bytes
        traffic[level] = Traffic(moved, used, used / moved if used is not None and moved else None)
    return traffic


def _occupancy(values: Mapping[str, float]) -> Occupancy:
    limits = {name: values[metric] for name, metric in metrics.LIMITS.items() if values.get(metric)}
    least = min(limits.values(), default=None)
    achieved, theoretical = values.get(metrics.ACHIEVED), values.get(metrics.THEORETICAL)
    waves = values.get(metrics.WAVES)
    if least and values.get(metrics.GRID) and values.get(metrics.SMS):
        # Computed anew: the profiler prints two decimals, which lose a single CTA.
        waves = values[metrics.GRID] / (values[metrics.SMS] * least)
    registers, shared = values.get(metrics.REGISTERS), _sum(values, metrics.SHARED)
    return Occupancy(
        achieved=None if achieved is None else achieved / 100,
        theoretical=None if theoretical is None else theoretical / 100,
        limiter=" and ".join(name for name, value in limits.items() if value == least) or None,
        waves=waves,
        registers=None if registers is None else int(registers),
        shared_bytes=None if shared is None else int(shared),
        ctas_per_sm=None if least is None else int(least),
    )


def _spills(values: Mapping[str, float]) -> Spills:
    sectors, all_sectors = _sum(values, metrics.LOCAL_SECTORS) or 0.0, values.get(metrics.L1_SECTORS)
    return Spills(
        _sum(values, metrics.LOCAL_INSTRUCTIONS) or 0.0,
        sectors,
        sectors / all_sectors if all_sectors else 0.0,
    )


def _rates(values: Mapping[str, float]) -> dict[str, float]:
    """The other figures that rules ask for."""
    percent = {"l1_hit": metrics.L1_HIT, "l2_hit": metrics.L2_HIT, "atomic_unit": metrics.ATOMIC_UNIT}
    rates: dict[str, float | None] = {
        name: values[metric] / 100 if metric in values else None for name, metric in percent.items()
    }
    rates["bank_conflicts"] = _ratio(values, metrics.BANK_CONFLICTS, metrics.SHARED_WAVEFRONTS)
    rates["sectors_per_request"] = _ratio(values, *metrics.GLOBAL_LOADS)
    rates["sectors_per_store"] = _ratio(values, *metrics.GLOBAL_STORES)
    use = values.get(metrics.BYTES_PER_SECTOR)
    rates["sector_use"] = use / metrics.SECTOR if use else None
    atomics, sectors = _sum(values, metrics.ATOMIC_SECTORS), values.get(metrics.L2_SECTORS)
    rates["atomics"] = atomics / sectors if atomics is not None and sectors else None
    rates["balance"] = _ratio(values, *metrics.BALANCE)
    rates["sm_active"] = _ratio(values, *metrics.ACTIVE_OF_ELAPSED)
    copied, loaded = _sum(values, metrics.ASYNC), _traffic(values, Workload()).get("l1")
    rates["async_copies"] = copied / loaded.moved if copied is not None and loaded and loaded.moved else None
    rates["sms"] = values.get(metrics.SMS)
    rates["grid"] = values.get(metrics.GRID)
    local, instructions = _sum(values, metrics.LOCAL_INSTRUCTIONS), values.get(metrics.INSTRUCTIONS)
    rates["local_instructions"] = local / instructions if local is not None and instructions else None
    rates["load_sectors"] = _ratio(values, metrics.GLOBAL_LOADS[0], metrics.L1_SECTORS)
    rates["samples"] = values.get(metrics.SAMPLES)
    duration = values.get(metrics.DURATION)
    for name, metric in (("dram_read", "dram__bytes_read.sum"), ("dram_write", metrics.DRAM_WRITES)):
        moved = values.get(metric)
        rates[f"{name}_gbps"] = moved / duration if moved is not None and duration else None
    return {name: value for name, value in rates.items() if value is not None}
