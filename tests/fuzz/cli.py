"""Fuzzing of the command line: every command, with valid options and with hostile ones.

Commands run in this process, where nothing may compile; some run again as processes of their own, with the
same outcome. A usage error of typer, which exits with 2 and gives a reason, is a typed refusal.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

from typer.main import get_command
from typer.testing import CliRunner

from dsl_kernels.errors import InvalidArgumentError

from . import Counts
from .helpers import isolated

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = (
    "", " ", "x", "-1", "0", "1", "2147483648", "9" * 40, "1e5", "3.5", "nan", "inf", "--", "-", "é", "a\nb",
    "[red]", "[/]", "%s",
    "{}", "'", "\\", "../..", "/dev/null", "/dev/null/x", "/nonexistent/x", "n" * 3000, "a b", "=", "a=",
    "=1", "t=1=2", ",", "t=²",
    "t=--5", "t=1,t=2", "rows=-1", "rows=99999999999999999999999", "(", "[", "*", "\udcff", "ſ", "None",
    "True", "sm_90", "sm_100a",
    "prefill", "decode", "fp8", "bf16", "tiny,huge", "real,", "cuda", "emulator", "interpretr", "NVIDIA H100",
    "smoke", "core",
)  # fmt: skip
# Valid values of options and arguments, by name; all others are drawn from hostile values only.
FITTING: dict[str, tuple[str, ...]] = {
    "op": ("sparse_mla", "topk_selector", "lightning_indexer"), "backend": ("tilelang", "cutedsl"),
    "arch":
        ("sm_90a", "sm_100a", "sm90a"), "executor": ("interpreter", "cuda", "emulator"), "tier": ("tiny",),
        "jobs": ("1", "2"),
    "kind":
        ("decode", "prefill"), "size": ("tiny",), "batch": ("1", "2"), "rows": ("1", "3"),
        "context": ("65", "130"),
    "heads": ("8", "16"), "index_heads": ("32", "64"), "topk": ("64", "128"), "kv": ("bf16", "joined", "fp8"),
    "next_n":
        ("1", "2"), "pages": ("0", "40"), "seed": ("0", "7"), "sample": ("1", "2"),
        "form": ("bf16", "default", "decode"),
    "gpu":
        ("NVIDIA H200", ""), "tuned": ("NVIDIA H200",), "days": ("0", "7"), "max_size": ("0", "100"),
        "schedules": ("1",),
    "grid": ("smoke",), "repeats": ("1",), "workload": ("step.safetensors", "none.safetensors", "."),
}  # fmt: skip
# Calls that `explain` can explain, as sizes must suit their operation.
CALLS: dict[str, dict[str, tuple[str, ...]]] = {
    "select": {"op": ("topk_selector",), "form": ("default",), "dim": ("rows=4,stride=4096,k=2048",)},
    "attend": {"op": ("sparse_mla",), "form": ("bf16", "fp8"), "dim": ("t=16,heads=16,topk=2048",)},
    "score": {
        "op": ("lightning_indexer",),
        "form": ("decode",),
        "dim": ("b=2,next_n=1,heads=64,max_pages=9,stride=576",),
    },
}
# Each command with its frequency: those that go through the whole set take most of a second.
WEIGHTS = {
    "list": 1,
    "warmup": 1,
    "doctor": 0.2,
    "compile": 1,
    "bundle write": 1,
    "verify": 3,
    "run": 6,
    "explain": 6,
}


@lru_cache(maxsize=1)
def parser() -> Any:
    """The whole command line, built once: building it takes typer longer than most commands take."""
    from dsl_kernels.cli import app

    return get_command(app)


def commands() -> dict[str, Any]:
    """Every command, by its words."""
    by_name: dict[str, Any] = {}

    def walk(group: Any, words: tuple[str, ...]) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                walk(command, (*words, name))
            else:
                by_name[" ".join((*words, name))] = command

    walk(parser(), ())
    return by_name


def line(name: str, command: Any, ids: Sequence[str], generator: random.Random) -> list[str]:
    """A command with arguments, most of them valid."""
    words: list[str] = []
    trailing: list[str] = []
    takes = [param.name for param in command.params if not getattr(param, "is_flag", False)]
    spoiled = generator.sample(takes, min(len(takes), generator.choice((0, 1, 1, 1, 2))))
    chosen = generator.choice(list(CALLS))
    for param in command.params:
        fitting = ids if param.name in ("variant", "name", "names") else FITTING.get(param.name, ())
        if name == "explain" and param.name in CALLS[chosen]:
            fitting = CALLS[chosen][param.name]
        value = generator.choice(HOSTILE if param.name in spoiled or not fitting else fitting)
        wanted = 0.9 if param.name in (*spoiled, "size", "executor", "dim", "form") else 0.25
        if param.param_type_name == "argument":
            # Without names, a command would take all variants.
            if param.required or param.nargs == -1 or generator.random() < 0.7:
                trailing.append(value)
        elif param.is_flag:
            # --record would write into the checkout.
            if generator.random() < 0.2 and param.name != "record":
                words.append(generator.choice([*param.opts, *param.secondary_opts]))
        elif generator.random() < wanted:
            words += [generator.choice(param.opts), value]
    if generator.random() < 0.03:
        words.append(generator.choice(("--bogus", "-z", "--help", "extra")))
    if generator.random() < 0.03 and trailing and name != "verify":
        trailing.pop()
    return [*name.split(), *words, *trailing]


def run(argv: Sequence[str]) -> Any:
    """Run a command in this process; a refusal becomes its error, any exception but an exit is raised."""
    from dsl_kernels.cli import app

    with mock.patch("typer.testing._get_command", lambda _: parser()):
        result = CliRunner().invoke(app, list(argv))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code == 2:
        message = result.stderr.strip()
        assert message, "status 2 and not a word"
        raise InvalidArgumentError("command", expected="what it takes", got=message[-200:], fix="see --help")
    return result


def judge(argv: Sequence[str]) -> Callable[[Any], bool | None]:
    """Status 0 or 1, and JSON if it was requested."""

    def right(result: Any) -> None:
        assert result.exit_code in (0, 1), f"status {result.exit_code}"
        if "--json" in argv and "--help" not in argv:
            json.loads(result.stdout)

    return right


@contextlib.contextmanager
def stage() -> Iterator[None]:
    """An isolated folder with a workload file, and the generated set outside the checkout."""
    from dsl_kernels import variants
    from dsl_kernels_lab import steps

    generated = variants.generated_root()
    with isolated() as folder:
        (folder / "generated").symlink_to(generated)
        steps.save(steps.draw(steps.named_size("decode", "tiny"))[0], folder / "step.safetensors")
        with mock.patch.dict(os.environ, {"DSL_KERNELS_GENERATED_DIR": str(folder / "generated")}):
            yield


SETTINGS = (
    "JOBS",
    "FORCE",
    "EXECUTOR",
    "CACHE_DIR",
    "GENERATED_DIR",
    "BUNDLE_DIR",
    "CHECK_VALUES",
    "COMPILE_TIMEOUT",
    "LOG_LEVEL",
)


def fuzz_cli(count: int, seed: int, processes: int = 0) -> Counts:
    """Run `count` commands; the first `processes` of them in processes of their own as well."""
    import torch

    from dsl_kernels import variants

    generator, counts = random.Random(seed), Counts()
    known = commands()
    if torch.cuda.is_available():
        # On a GPU it would measure for hours.
        del known["bench"]
    names = list(known)
    weights = [WEIGHTS.get(name, 2.0) for name in names]
    with stage():
        # The selector's variants run fastest.
        ids = variants.ids(variants.variants("topk_selector"))
        run(["run", "decode", "--size", "tiny", "--executor", "interpreter"])
        for turn in range(count):
            name = generator.choices(names, weights)[0]
            argv = line(name, known[name], ids, generator)
            settings = {}
            if generator.random() < 0.08:
                settings = {f"DSL_KERNELS_{generator.choice(SETTINGS)}": generator.choice(HOSTILE[:-1])}
            label = f"{settings or ''}{argv}"
            with mock.patch.dict(os.environ, settings):
                result = counts.call(label, run, argv, expect=judge(argv), limit_s=LIMIT_S.get(name, 1.0))
                if turn < processes:
                    codes = {2 if result is None else result.exit_code, *([2] if name in MAKING else [])}
                    counts.call(
                        f"process {label}",
                        _process,
                        argv,
                        expect=lambda done, codes=frozenset(codes): done in codes,
                        limit_s=60,
                    )
    return counts


MAKING = ("bundle write", "export-kernel")
"""Commands that refuse a second run, because their output exists."""
LIMIT_S = {
    "run": 20.0,
    "verify": 20.0,
    "doctor": 20.0,
    "compile": 5.0,
    "warmup": 5.0,
    "list": 5.0,
    "bundle write": 5.0,
}
"""Time limits of commands that interpret kernels, start other programs, or go through every variant."""


def _process(argv: Sequence[str]) -> int:
    """The exit status of a command as a process; raises if it printed a traceback."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "dsl_kernels", *argv],
        capture_output=True,
        check=False,
        env=environment,
        timeout=120,
    )
    if b"Traceback" in done.stderr or done.returncode not in (0, 1, 2):
        raise RuntimeError(done.stderr.decode(errors="replace")[-300:])
    return done.returncode
