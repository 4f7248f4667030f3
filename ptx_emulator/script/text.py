"""The findings of a checked program's launches, as text and as plain data."""

from __future__ import annotations

from typing import Any

from .session import LaunchRecord, Session

PURPOSE = (
    "Emulated: this verifies kernels written for NVIDIA GPUs before they run there. It is no platform to run "
    "them on, nothing is translated, and times mean nothing."
)


def row(record: LaunchRecord) -> dict[str, Any]:
    """One launch as plain data."""
    first = record.first()
    return {
        "launch": record.number,
        "kernel": record.kernel.entry,
        "source": record.source,
        "grid": list(record.grid),
        "block": list(record.block),
        "cluster": list(record.cluster) if record.cluster else None,
        "dynamic_smem": record.dynamic_smem,
        "attributes": list(record.attributes),
        "interleavings": len(record.reports),
        "instructions": record.instructions,
        "results": record.results,
        "seconds": round(record.seconds, 3),
        "errors": dict(record.codes(errors=True)),
        "warnings": dict(record.codes(errors=False)),
        "ok": record.ok,
        "page": record.page,
        "failure": record.failure or (f"{first[0]}\n  under {first[1].interleaving}" if first else ""),
    }


def reached(session: Session) -> list[dict[str, Any]]:
    """What the launches of each kernel reached together, as plain data."""
    return [{"kernel": kernel.entry, **covered.as_dict()} for kernel, covered in session.coverage().items()]


def summary(session: Session) -> str:
    """One line per launch, the first error of each, and requests that were not carried out."""
    lines = [PURPOSE]
    for record in session.launches:
        data = row(record)
        codes = ", ".join(f"{code} in {n}" for code, n in {**data["errors"], **data["warnings"]}.items())
        results = "" if record.results <= 1 else f", {record.results} different results"
        lines.append(
            f"{'ok    ' if record.ok else 'FAILED'} {record}: {data['interleavings']} interleavings, "
            f"{record.instructions} warp instructions, {data['seconds']} s{results}"
            f"{'; ' + codes if codes else ''}"
        )
        if data["failure"]:
            lines += [f"    {line}" for line in data["failure"].splitlines()]
        if record.page:
            lines.append(f"    explained in {record.page}")
    if not session.launches:
        lines.append("no kernel was launched")
    lines += [f"note: {text} ({n} times)" for text, n in session.notes.items()]
    return "\n".join(lines)
