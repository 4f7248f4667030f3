"""Which uncertain rates decide the clock's choice of a variant when nothing was measured. Needs no GPU.

    python benchmarks/clock_doubts.py                        # a B200, core and serving grids: four minutes
    python benchmarks/clock_doubts.py --gpu H200 --grid smoke
    python benchmarks/clock_doubts.py --write docs/clock.md  # replace the table on that page

For every call of the grids, and again with a quarter of its pages: the choice at the centre of the rates'
intervals, and the rates that change it on their own at an end of their interval
(`dsl_kernels/clock/interval.py`). Losses below 1 % count as none. Selection and resampling are not walked, as
their work depends on the data.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from codegen import walks
from dsl_kernels import clock, registry, variants
from dsl_kernels.arch import GPUS
from dsl_kernels.clock.interval import Doubt, doubts, interval

GRIDS = "core", "serving"
# The lines of a page between which the table is.
MARKS = "<!-- printed by benchmarks/clock_doubts.py -->\n", "<!-- end of what it printed -->\n"


@dataclass(frozen=True)
class Choice:
    """The clock's choice for a call: variant, best and worst µs, number of candidates, and doubts."""

    call: registry.Call
    variant: str
    best: float
    worst: float
    among: int
    doubts: list[Doubt]


def choices(gpu: str, grids: Sequence[str]) -> Iterator[Choice]:
    """The choice for each call of the grids for which at least two variants exist."""
    row = GPUS[gpu]
    for op in clock.walked():
        for call in walks.calls_of(op, row, grids):
            of = [v for v in variants.variants(op, arch=row.arch.name) if registry.refusal(call, v) is None]
            if len(of) < 2:
                continue
            us = {variant.id: interval(call, variant) for variant in of}
            chosen = min(of, key=lambda variant: (us[variant.id].us, variant.id)).id
            yield Choice(call, chosen, us[chosen].best, us[chosen].worst, len(of), doubts(call, of))


def sizes(call: registry.Call) -> str:
    """The sizes of a call by which its grid's points differ."""
    shown = (
        "b",
        "t",
        "s",
        "sq",
        "skv",
        "heads",
        "kv_heads",
        "next_n",
        "max_pages",
        "n",
        "dim",
        "causal",
        "topk",
    )
    return ", ".join(
        f"{name} {call.dims[name]}"
        for name in shown
        if call.dims.get(name, 0) > 1 or (name in ("t", "b") and name in call.dims)
    )


def turned(doubts: list[Doubt]) -> str:
    """The cell of a table row about the rates that change its choice."""
    cells = []
    for doubt in doubts:
        rate = (
            f"`{doubt.rate}` {doubt.value:g} → {doubt.end:g}"
            if doubt.rate
            else "several at their ends together"
        )
        item = f"; `{doubt.item.replace('|', chr(92) + '|')}`" if doubt.item else ""
        cells.append(f"{rate}: {short(doubt.chosen)} {doubt.faster:.2f} times as fast{item}")
    return "<br>".join(cells) or "holds"


def short(variant: str) -> str:
    """A variant without its operation and architecture."""
    _, target, knobs = variant.split("__")
    return f"`{knobs}` ({target.split('_')[0]})"


def table(listed: list[Choice]) -> str:
    """A row per operation and form, one per call whose choice is in doubt, and a sentence of summary."""
    lines = ["| op, form | calls | variants | chosen | hold |", "| --- | --- | --- | --- | --- |"]
    for op, form in dict.fromkeys((choice.call.op, choice.call.form) for choice in listed):
        mine = [choice for choice in listed if (choice.call.op, choice.call.form) == (op, form)]
        taken = ", ".join(
            f"{short(name)} {count}" for name, count in Counter(c.variant for c in mine).most_common()
        )
        least, most = min(c.among for c in mine), max(c.among for c in mine)
        among = f"{least}" if least == most else f"{least} to {most}"
        lines.append(f"| {op} {form} | {len(mine)} | {among} | {taken} | {sum(not c.doubts for c in mine)} |")
    doubtful = [choice for choice in listed if choice.doubts]
    if doubtful:
        lines += ["", "| call | choice | µs, best to worst | what turns it |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {c.call.op} {c.call.form}, {sizes(c.call)} | {short(c.variant)} "
            f"| {c.best:.1f} to {c.worst:.1f} | {turned(c.doubts)} |"
            for c in doubtful
        ]
    rates = sorted({doubt.rate for choice in doubtful for doubt in choice.doubts if doubt.rate})
    verdict = f"{len(listed) - len(doubtful)} of {len(listed)} choices hold at both ends of all intervals."
    if rates:
        verdict += f" The others hang on {', '.join(f'`{rate}`' for rate in rates)}."
    return "\n".join([*lines, "", verdict, ""])


def write(page: Path, text: str) -> None:
    """Put the table between its marks on a page."""
    before, rest = page.read_text().split(MARKS[0])
    _, after = rest.split(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}{text}{MARKS[1]}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="B200", choices=sorted(GPUS), help="a row of arch.GPUS")
    parser.add_argument(
        "--grid", action="append", help="core, serving, contest, smoke or wide; core and serving by default"
    )
    parser.add_argument("--write", type=Path, help="the page whose table to replace")
    options = parser.parse_args()
    text = table(list(choices(options.gpu, options.grid or GRIDS)))
    if options.write:
        write(options.write, text)
    print(text)


if __name__ == "__main__":
    main()
