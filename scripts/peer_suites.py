"""Run a peer's own test suite over `dsl_kernels.compat`: python scripts/peer_suites.py flash_mla PATH [--limit S] [--out F].

PATH is a checkout of the peer, whose tests are imported as they are; nothing of theirs is here. Needs a GPU. A case counts as
passed if the suite's own check says so. What is skipped is said with its reason.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from dsl_kernels import compat
from dsl_kernels.errors import DslKernelError

Case = tuple[str, Callable[[], bool]]


def flash_mla(root: Path, skipped: Counter[str]) -> Iterator[Case]:
    """Sparse decode of deepseek-ai/FlashMLA, tests/test_flash_mla_sparse_decoding.py."""
    sys.path.insert(0, str(root / "tests"))
    compat.patch("flash_mla")
    suite = importlib.import_module("test_flash_mla_sparse_decoding")
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    torch.set_float32_matmul_precision("high")
    for raw in suite.gen_testcase():
        case = raw.to_test_param()
        if case.num_runs:
            skipped["timed by the names of FlashMLA's kernels"] += 1
        else:
            yield str(raw), lambda case=case: bool(suite.test_flash_mla(case).is_correct)


SUITES = {"flash_mla": flash_mla}


def main(
    name: Annotated[str, typer.Argument(help="flash_mla")],
    root: Annotated[Path, typer.Argument(help="A checkout of the peer.")],
    limit: Annotated[float, typer.Option(help="Begin no case after so many seconds; 0 for none.")] = 0,
    shuffle: Annotated[bool, typer.Option(help="Take the cases in a random order of seed 0.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the counts and the failures here, as JSON.")] = None,
) -> None:
    """Run one suite; status 1 if a case fails."""
    skipped: Counter[str] = Counter()
    cases = list(SUITES[name](root, skipped))
    if shuffle:
        random.Random(0).shuffle(cases)
    failures: dict[str, str] = {}
    passed, begun = 0, time.monotonic()
    for label, run in cases:
        if limit and time.monotonic() - begun > limit:
            skipped["the limit of time"] += 1
            continue
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                right = run()
        except (DslKernelError, AssertionError, RuntimeError) as error:
            right = False
            print(f"{type(error).__name__}: {error}", file=said)
        passed += right
        if not right:
            failures[label] = said.getvalue().strip().splitlines()[-1]
    table = Table("suite", "passed", "failed", "skipped")
    table.add_row(name, str(passed), str(len(failures)), str(sum(skipped.values())))
    console = Console()
    console.print(table)
    for reason, count in skipped.items():
        console.print(f"{count} skipped: {reason}")
    for label, why in list(failures.items())[:20]:
        console.print(f"failed: {label}\n  {why}", markup=False)
    if out is not None:
        found: dict[str, Any] = {"suite": name, "gpu": torch.cuda.get_device_name(), "passed": passed}
        out.write_text(json.dumps({**found, "failed": failures, "skipped": skipped}, indent=1))
    raise typer.Exit(bool(failures))


if __name__ == "__main__":
    typer.run(main)
