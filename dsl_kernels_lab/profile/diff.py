"""Two fingerprints, or two launches by region, side by side."""

from __future__ import annotations

from collections.abc import Iterable

from .model import Diff, DiffRow, Fingerprint, Regions

# Stalls below this share in both launches are left out.
LEAST_STALL = 0.02


def diff(a: Fingerprint, b: Fingerprint) -> Diff:
    """Every figure that either has, those of speed first; shares are fractions, `ratio` is b over a."""
    rows = [
        _row("time (us)", a.us, b.us),
        _row("cycles", a.cycles, b.cycles),
        *(_row(f"{unit} of peak", a.sol.get(unit), b.sol.get(unit)) for unit in _names(a.sol, b.sol)),
        *(_row(f"{pipe} pipe", a.pipes.get(pipe), b.pipes.get(pipe)) for pipe in _names(a.pipes, b.pipes)),
        _row("issued a cycle", a.issue.issued, b.issue.issued),
        _row("eligible warps", a.issue.eligible, b.issue.eligible),
        _row("threads an instruction", a.issue.threads, b.issue.threads),
    ]
    for level in _names(a.traffic, b.traffic):
        one, other = a.traffic.get(level), b.traffic.get(level)
        moved = [traffic.moved / 1e6 if traffic else None for traffic in (one, other)]
        rows.append(_row(f"{level} MB read", *moved))
        rows.append(
            _row(f"{level} used / moved", *(traffic.ratio if traffic else None for traffic in (one, other)))
        )
    rows += [
        _row("L2 hit rate", a.rates.get("l2_hit"), b.rates.get("l2_hit")),
        _row("bank conflicts", a.rates.get("bank_conflicts"), b.rates.get("bank_conflicts")),
        _row("registers", a.occupancy.registers, b.occupancy.registers),
        _row("shared bytes", a.occupancy.shared_bytes, b.occupancy.shared_bytes),
        _row("waves", a.occupancy.waves, b.occupancy.waves),
        _row("occupancy", a.occupancy.achieved, b.occupancy.achieved),
        _row("spill sectors", a.spills.share or None, b.spills.share or None),
        _row("samples", a.rates.get("samples"), b.rates.get("samples")),
    ]
    for reason in _names(a.stalls, b.stalls):
        one_stall, other_stall = a.stalls.get(reason), b.stalls.get(reason)
        shares = [stall.share if stall else None for stall in (one_stall, other_stall)]
        if max(share or 0.0 for share in shares) >= LEAST_STALL:
            rows.append(_row(f"stall {reason}", *shares))
    notes = []
    if a.arch and b.arch and a.arch != b.arch:
        notes.append(f"{a.arch} beside {b.arch}: stall reasons are not the same set")
    if a.us and b.us and a.cycles and b.cycles:
        clocks = [one.cycles / one.us / 1e3 for one in (a, b) if one.cycles and one.us]
        if abs(clocks[0] / clocks[1] - 1.0) > 0.03:
            notes.append(
                f"the SM clock was {clocks[0]:.2f} GHz and {clocks[1]:.2f} GHz: compare cycles and time apart"
            )
    return Diff(
        a.label or a.kernel,
        b.label or b.kernel,
        tuple(row for row in rows if row.a is not None or row.b is not None),
        tuple(notes),
    )


def diff_regions(a: Regions, b: Regions) -> Diff:
    """Two launches region by region: median times of CTAs, roles and regions; `ratio` is b over a."""
    rows = [_row("SM", a.sm.most, b.sm.most), _row("CTA", a.cta.median, b.cta.median)]
    ones, others = ({role.role: role for role in launch.roles} for launch in (a, b))
    for name in _names(ones, others):
        one, other = ones.get(name), others.get(name)
        rows.append(_row(name, *(role.ticks.median if role else None for role in (one, other))))
        rows.append(_row(f"{name} in waits", *(role.waits if role else None for role in (one, other))))
        regions = [{r.region: r.ticks.median for r in role.regions} if role else {} for role in (one, other)]
        for region in _names(*regions):
            rows.append(_row(f"{name}: {region}", *(spent.get(region) for spent in regions)))
    notes = [f"{a.clock} beside {b.clock}"] if a.clock != b.clock else []
    if a.workload != b.workload or a.dims != b.dims:
        notes.append(f"{a.workload} beside {b.workload}: the sizes differ")
    return Diff(a.variant, b.variant, tuple(rows), tuple(notes))


def _names(one: Iterable[str], other: Iterable[str]) -> list[str]:
    """Names of either, in the order of the first."""
    return list(dict.fromkeys([*one, *other]))


def _row(figure: str, a: float | None, b: float | None) -> DiffRow:
    return DiffRow(figure, a, b, b / a if a and b is not None else None)
