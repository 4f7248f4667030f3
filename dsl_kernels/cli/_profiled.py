"""What the commands of `profile` share: launches read from a file, diagnosed and shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from .. import profile
from ..errors import ArtifactError
from ..profile import metrics
from . import _output as out


def read(path: Path, kernel: str | None) -> list[profile.KernelReport]:
    """The launches in a file whose kernel or range matches."""
    pattern = out.pattern("--kernel", kernel)
    held = profile.read(path)
    found = [item for item in held if pattern.search(item.kernel) or pattern.search(item.label)]
    if not found:
        raise ArtifactError(
            str(path),
            expected=f"a kernel that matches {kernel!r}",
            got=", ".join(sorted({item.kernel[:60] for item in held})[:8]),
            fix="correct --kernel",
        )
    return found


def regions(path: Path) -> profile.Regions | None:
    """What a file by `profile regions --json` holds; None where it is none."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return (
        profile.load(profile.Regions, data, str(path)) if isinstance(data, dict) and "roles" in data else None
    )


def workload(op: str, dim: list[str] | None, variant: str | None, form: str | None) -> profile.Workload:
    from ..profile import targets

    return targets.workload(op, out.dims_of(dim or []), form=form, variant=variant or "")


def units(work: profile.Workload) -> tuple[str, float] | None:
    """What a launch of a workload gives, and how much of it; None where its problem does not say."""
    from .. import problems

    if work.op not in problems.names() or (count := problems.get(work.op).units) is None:
        return None
    try:
        return count(work.form, work.dims)
    except KeyError:
        return None


def diagnosed(
    reports: Sequence[profile.KernelReport], work: profile.Workload | None
) -> list[profile.Diagnosis]:
    """Each launch by the ceilings of its GPU; what the op has to read is the longest launch's business."""
    longest = max(reports, key=lambda report: report.metrics.get(metrics.DURATION, 0.0))
    return [
        profile.diagnose(
            profile.fingerprint(report, work if report is longest else None),
            profile.read_ceilings(report.device) if report.device else None,
        )
        for report in reports
    ]


def diagnose(
    reports: Sequence[profile.KernelReport],
    op: str | None,
    dim: list[str] | None,
    variant: str | None,
    form: str | None,
    extract: Path | None,
    markdown: bool,
    as_json: bool,
) -> None:
    """Print the diagnoses of launches, and keep what was read of them where that was asked for."""
    if extract is not None:
        extract.write_text(profile.dump(list(reports)))
    work = workload(op, dim, variant, form) if op is not None else None
    show(diagnosed(reports, work), as_json, markdown)


def show(found: Sequence[profile.Diagnosis], as_json: bool, markdown: bool) -> None:
    if as_json:
        typer.echo(profile.dump(list(found)), nl=False)
    elif markdown:
        typer.echo("\n".join(profile.markdown(item) for item in found), nl=False)
    elif len(found) == 1:
        typer.echo(profile.text(found[0]), nl=False)
    else:
        columns = ("kernel", "us", "DRAM", "L2", "tensor", "stall", "cause", "bound")
        out.show(out.table("", columns, map(_row, found), right=columns[1:5] + ("bound",)))


def _row(item: profile.Diagnosis) -> tuple[Any, ...]:
    f, top = item.fingerprint, item.top

    def share(value: float | None) -> str | None:
        return None if value is None else f"{value:.0%}"

    stall = f.dominant_stall
    return (
        (f.label or f.kernel)[:60],
        f.us,
        share(f.sol.get("dram")),
        share(f.sol.get("l2")),
        share(f.pipes.get("tensor")),
        f"{stall} {f.stalls[stall].share:.0%}" if stall else None,
        top.cause if top else None,
        top.bound if top else None,
    )
