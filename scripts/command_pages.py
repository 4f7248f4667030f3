"""The reference of every command of `python -m dsl_kernels` and `python -m codegen`, from its `--help`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from case_pages import table
from typer.main import get_command

from codegen.__main__ import app as generator
from dsl_kernels.cli import app as library

PROGRAMS = {"dsl_kernels": library, "codegen": generator}


def commands(package: str) -> Iterator[tuple[str, Any]]:
    """Every command of a package, with those of its groups, under the words that call it."""

    def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        for name, each in getattr(command, "commands", {}).items():
            if hasattr(each, "commands"):
                yield from below(f"{words} {name}", each)
            else:
                yield f"{words} {name}", each

    yield from below(f"python -m {package}", get_command(PROGRAMS[package]))


def plain(text: str | None) -> str:
    """A help text in one paragraph a line, without what only a terminal reads."""
    paragraphs = re.split(r"\n\s*\n", (text or "").replace("\b", ""))
    return "\n\n".join(" ".join(each.split()) for each in paragraphs).replace("<", "&lt;").strip()


def _default(one: Any) -> str:
    value = one.default() if callable(one.default) else one.default
    if one.required or value is None or isinstance(value, bool) or value in ((), [], ""):
        return "-"
    return f"`{getattr(value, 'value', value)}`"


def options(command: Any) -> str:
    """What a command takes, in a table."""
    rows = []
    for one in command.params:
        if "--help" in one.opts:
            continue
        named = one.opts[0].startswith("-")
        title = ", ".join([*one.opts, *one.secondary_opts]) if named else one.name.upper()
        must = " (must be given)" if one.required else ""
        rows.append((f"`{title}`", _default(one), plain(getattr(one, "help", "")).replace("|", "\\|") + must))
    return table(("argument or option", "default", "meaning"), rows)


EXPLAINED = ("explain", "sparse_mla", "--dim", "t=64,heads=16,topk=2048", "--gpu", "H200")


def explained() -> str:
    """What `explain` prints of one call of attention, without the table of refusals."""
    from typer.testing import CliRunner

    done = CliRunner().invoke(library, EXPLAINED, env={"COLUMNS": "160", "DSL_KERNELS_TUNED_DIR": os.devnull})
    if done.exit_code:
        raise RuntimeError(f"{' '.join(EXPLAINED)}: {done.output}")
    # The list of sizes that decide nothing, and the table of refusals.
    text = re.sub(
        r"^bucket .*?(?=^candidates)|^refused *\n.*?(?=^model us)",
        "",
        done.output,
        flags=re.MULTILINE | re.DOTALL,
    )
    said = "\n".join(line.rstrip() for line in text.splitlines() if line.strip() and "─" not in line)
    return f"```console\n$ python -m dsl_kernels {' '.join(EXPLAINED)}\n{said}\n```"


def page(package: str) -> str:
    """A section for each command of a package."""
    parts = []
    for words, command in sorted(commands(package)):
        parts.append(f"### {words.removeprefix('python -m ')}\n\n{plain(command.help)}")
        listed = options(command)
        if listed.count("\n") > 1:
            parts.append(listed)
    return "\n\n".join(parts)
