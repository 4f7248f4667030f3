"""A diagnosis as text: Markdown of at most 60 lines, for a person or a language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .model import Diagnosis, Evidence, Finding, Fingerprint

LINES = 60
SHOWN_FINDINGS, SHOWN_STALLS, SHOWN_MISSING = 3, 6, 4
COUNTS = ("threads", "waves", "balance", "issued", "sectors_per_request")


def markdown(diagnosis: Diagnosis) -> str:
    """One page: the kernel, the headline, where the time goes, the floor, what to change, for what gain."""
    f = diagnosis.fingerprint
    lines = [f"# {f.label or f.kernel}", "", _facts(f), ""]
    top = diagnosis.top
    lines += [f"**{top.headline}.**" if top else "**No rule holds: nothing that was read stands out.**", ""]
    lines += [*_units(f), ""]
    if diagnosis.ceiling_us is not None and f.us:
        lines += [
            f"Floor: the busiest unit alone would take {diagnosis.ceiling_us:.3g} of {f.us:.4g} µs.",
            "",
        ]
    for place, finding in enumerate(diagnosis.findings[:SHOWN_FINDINGS], 1):
        lines += [*_finding(place, finding), ""]
    if len(diagnosis.findings) > SHOWN_FINDINGS:
        others = ", ".join(finding.cause for finding in diagnosis.findings[SHOWN_FINDINGS:])
        lines += [f"Also seen: {others}.", ""]
    lines += [f"Not {cause}: {reason}." for cause, reason in diagnosis.refuted.items()]
    if diagnosis.missing:
        shown = "; ".join(diagnosis.missing[:SHOWN_MISSING])
        more = len(diagnosis.missing) - SHOWN_MISSING
        lines += [f"Not read: {shown}{f'; and {more} more' if more > 0 else ''}."]
    return "\n".join(lines[:LINES]).rstrip() + "\n"


def text(diagnosis: Diagnosis) -> str:
    """The same page for a terminal, without markup."""
    return markdown(diagnosis).replace("**", "").replace("# ", "", 1)


def _facts(f: Fingerprint) -> str:
    o = f.occupancy
    facts = [
        f.device or f.arch,
        f"{f.us:.4g} µs" if f.us else "",
        f"{o.registers} registers" if o.registers else "",
        f"{o.shared_bytes / 1024:.0f} KiB shared" if o.shared_bytes else "",
        f"{o.waves:.2f} waves" if o.waves is not None else "",
        f"occupancy {_of(o.achieved)}{f' (limited by {o.limiter})' if o.limiter else ''}"
        if o.achieved
        else "",
        f"read by {f.source}",
    ]
    return ", ".join(fact for fact in facts if fact)


def _units(f: Fingerprint) -> Iterator[str]:
    """A table of what each unit reached, the stalls, and the bytes."""
    yield "| what | share |"
    yield "|---|---|"
    if f.sol:
        yield f"| of peak | {_list(f.sol)} |"
    if f.pipes:
        yield f"| pipes | {_list(f.pipes)} |"
    if f.stalls:
        ordered = sorted(f.stalls.items(), key=lambda item: -item[1].share)[:SHOWN_STALLS]
        told = ", ".join(
            f"{name} {_of(stall.share)}"
            + (f" ({stall.cycles:.2f} cycles)" if stall.cycles is not None else "")
            for name, stall in ordered
        )
        yield f"| stalls | {told} |"
    if f.traffic:
        told = ", ".join(
            f"{level} {traffic.moved / 1e6:.4g} MB"
            + (f" ({traffic.ratio:.2f} used)" if traffic.ratio else "")
            for level, traffic in f.traffic.items()
        )
        yield f"| bytes read | {told} |"


def _finding(place: int, finding: Finding) -> Iterator[str]:
    state = "healthy: at a limit" if finding.healthy else "to fix"
    yield f"{place}. `{finding.cause}` ({state}). {finding.headline}."
    if finding.evidence:
        yield f"   - evidence: {', '.join(_reading(item) for item in finding.evidence)}"
    yield f"   - change: {finding.lever}."
    if finding.knobs:
        yield "   - knobs: " + "; ".join(f"`{name}` {what}" for name, what in finding.knobs.items())
    if finding.bound is not None:
        yield f"   - bound: at most {finding.bound:.2f} times as fast, if this alone were fixed"


def _reading(item: Evidence) -> str:
    value = f"{item.value:.2f}" if item.quantity in COUNTS else _of(item.value)
    return f"{item.quantity} {value}{f' ({item.wanted})' if item.wanted else ''}"


def _list(shares: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {_of(share)}" for name, share in sorted(shares.items(), key=lambda item: -item[1])
    )


def _of(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
