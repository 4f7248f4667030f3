"""Attack the library with random input, and print the outcomes beside the recorded ones.

    python scripts/attack.py                                     every attack in full
    python scripts/attack.py --budget 120s --only calls,helpers  these attacks, 120 s in all
    python scripts/attack.py --record                            in full, and write docs/attack.json

Each attack runs in a process of its own, so that a crash is counted too. Exits with 1 if any input had an
outcome that none may have: an untyped error, a timeout or a wrong result.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from dsl_kernels.arguments import require_known  # noqa: E402
from dsl_kernels.cli import _output as out  # noqa: E402
from dsl_kernels.cli import show_error  # noqa: E402
from dsl_kernels.errors import DslKernelError, InvalidArgumentError  # noqa: E402
from tests.fuzz import Counts  # noqa: E402
from tests.fuzz.attacks import ATTACKS, Attack  # noqa: E402

RECORD = ROOT / "docs" / "attack.json"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first chunk; later ones count up.")] = 8,
    budget: Annotated[str | None, typer.Option(help="Time in all, such as 120s or 10m.")] = None,
    only: Annotated[str | None, typer.Option(help=f"Some of {', '.join(ATTACKS)}.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Write the counts to docs/attack.json.")] = False,
) -> None:
    try:
        chosen = selected(only)
        seconds = seconds_of(budget)
        if record and seconds is not None:
            raise InvalidArgumentError(
                "--record", expected="whole attacks", got="--budget", fix="drop --budget"
            )
    except DslKernelError as error:
        show_error(error)
        raise typer.Exit(2) from None
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    outcomes: dict[str, Counts] = {}
    with out.progress() as bar:
        for position, name in enumerate(chosen):
            begin, attack = time.monotonic(), ATTACKS[name]
            task = bar.add_task(name, total=attack.runs)
            # Time that an attack does not use goes to the attacks after it.
            share = None if seconds is None else max(1.0, seconds / (len(chosen) - position))
            for outcomes[name] in chunks(attack, seed, share):
                bar.update(task, completed=outcomes[name].runs)
            if seconds is not None:
                seconds -= time.monotonic() - begin
    show(chosen, outcomes, recorded)
    if record:
        write(outcomes, recorded, seed)
    if any(counts.defects for counts in outcomes.values()):
        raise typer.Exit(1)


def selected(only: str | None) -> list[str]:
    """The attacks that `only` names, or all of them."""
    names = list(ATTACKS) if only is None else [part.strip() for part in only.split(",")]
    for name in names:
        require_known("--only", name, ATTACKS, "attack")
    return names


def seconds_of(budget: str | None) -> float | None:
    """The seconds of a budget such as 120s or 10m; None if there is no budget."""
    if budget is None:
        return None
    match = re.fullmatch(r"(\d{1,9})([smh]?)", budget.strip())
    if match is None:
        raise InvalidArgumentError(
            "--budget", expected="such as 120s or 10m", got=repr(budget), fix="give a time"
        )
    return float(int(match[1]) * UNITS[match[2]])


def chunks(attack: Attack, seed: int, seconds: float | None) -> Iterator[Counts]:
    """The counts after each chunk, until the attack is complete or time is too short for another chunk."""
    total, turn, begin = Counts(), 0, time.monotonic()
    while total.runs < attack.runs:
        count = min(attack.chunk, attack.runs - total.runs)
        if seconds is not None and turn == 0:
            count = min(count, attack.sample)
        total.add(apart(attack, count, seed + turn))
        turn += 1
        yield total
        spent = time.monotonic() - begin
        if seconds is not None and spent * (turn + 1) / turn > seconds:
            return


def apart(attack: Attack, count: int, seed: int) -> Counts:
    """Run a chunk in a process of its own; a process that dies counts as one untyped error."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(_chunk, attack, count, seed).result()
        except BrokenProcessPool:
            counts = Counts(runs=count, untyped=1)
            counts.note("untyped", f"{attack.function}({count}, {seed})", "the process died")
            return counts


def _chunk(attack: Attack, count: int, seed: int) -> Counts:
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return attack.run(count, seed)


def show(chosen: list[str], outcomes: dict[str, Counts], before: dict[str, Any]) -> None:
    """Print the counts beside the recorded ones, and the first defects."""
    columns = ("attack", "runs", "refused typed", "untyped", "too slow", "wrong", "recorded")
    rows = []
    for name in chosen:
        last = before.get("now", {}).get(name)
        recorded = (
            f"{last['untyped'] + last['slow'] + last['mismatches']} of {last['runs']}" if last else None
        )
        numbers = list(outcomes[name].numbers().values()) if name in outcomes else ["absent", *[None] * 4]
        rows.append([ATTACKS[name].about, *numbers, recorded])
    out.show(out.table("", columns, rows, right=columns[1:]))
    for name, counts in outcomes.items():
        for example in counts.examples:
            out.error_console().print(f"{name}: {example}", style="red", markup=False, soft_wrap=True)


def write(outcomes: dict[str, Counts], before: dict[str, Any], seed: int) -> None:
    """Replace the recorded counts of the attacks that ran."""
    date = time.strftime("%Y-%m-%d", time.gmtime())
    now = {name: {**counts.numbers(), "seed": seed, "date": date} for name, counts in outcomes.items()}
    content = {**before, "now": {**before.get("now", {}), **now}}
    RECORD.write_text(json.dumps(content, indent=1) + "\n")
    out.console().print(
        f"wrote {RECORD.relative_to(ROOT)}; `make docs` takes it into the documents", markup=False
    )


if __name__ == "__main__":
    app()
