"""What the commands of `profile` share: launches read from a file, diagnosed and shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from dsl_kernels.cli import _output as out
from dsl_kernels.errors import ArtifactError

from .. import profile
from ..profile import metrics
from . import _options as options


def read(path: Path, kernel: str | None) -> list[profile.KernelReport]:
    """The launches in a file whose kernel or range matches `kernel`, a regular expression."""
    pattern = options.pattern("--kernel", kernel)
    launches = profile.read(path)
    matching = [item for item in launches if pattern.search(item.kernel) or pattern.search(item.label)]
    if not matching:
        raise ArtifactError(
            str(path),
            expected=f"a kernel that matches {kernel!r}",
            got=", ".join(sorted({item.kernel[:60] for item in launches})[:8]),
            fix="correct --kernel",
        )
    return matching


def regions(path: Path) -> profile.Regions | None:
    """The record in a file that `profile regions --json` wrote; None if the file is something else."""
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
    """What a launch of the workload computes, and how many; None if its problem does not say."""
    from .. import oracles

    if work.op not in oracles.names() or (count := oracles.get(work.op).units) is None:
        return None
    try:
        return count(work.form, work.dims)
    except KeyError:
        return None


def diagnosed(
    reports: Sequence[profile.KernelReport], work: profile.Workload | None
) -> list[profile.Diagnosis]:
    """Each launch's diagnosis against its GPU's ceilings; only the longest is held to the op's bytes."""
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
    """Print the diagnoses of launches; also write what was read of them to `extract`, if given."""
    if extract is not None:
        extract.write_text(profile.dump(list(reports)))
    work = workload(op, dim, variant, form) if op is not None else None
    show(diagnosed(reports, work), as_json, markdown)


def show(diagnoses: Sequence[profile.Diagnosis], as_json: bool, markdown: bool) -> None:
    if as_json:
        typer.echo(profile.dump(list(diagnoses)), nl=False)
    elif markdown:
        typer.echo("\n".join(profile.markdown(item) for item in diagnoses), nl=False)
    elif len(diagnoses) == 1:
        typer.echo(profile.text(diagnoses[0]), nl=False)
    else:
        columns = ("kernel", "us", "DRAM", "L2", "tensor", "stall", "cause", "bound")
        out.show(out.table("", columns, map(_row, diagnoses), right=columns[1:5] + ("bound",)))


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
