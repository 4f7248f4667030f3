"""Run a whole program by its own main with every launch checked; the commands print the outcome."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import PtxEmulatorError
from . import emulated
from .session import Session
from .text import PURPOSE, reached, row


@dataclass(frozen=True)
class Outcome:
    """The launches of a program, and why the program itself failed ("" if it did not)."""

    script: Path
    arch: str
    session: Session
    failure: str

    @property
    def ok(self) -> bool:
        return not self.failure and self.session.ok

    def as_dict(self, coverage: bool = False) -> dict[str, Any]:
        """The outcome as plain data; ``coverage`` adds what the launches reached."""
        record = {
            "script": str(self.script), "arch": self.arch, "purpose": PURPOSE,
            "launches": [row(record) for record in self.session.launches], "notes": dict(self.session.notes),
            "failure": self.failure, "ok": self.ok,
        }  # fmt: skip
        return {**record, "coverage": reached(self.session)} if coverage else record


def check_program(
    script: Path, arguments: Sequence[str], *, arch: str, quiet: bool = False, **settings: Any
) -> Outcome:
    """Run a program as `python script arguments` would, with every launch checked.

    Args:
        script: The program's file.
        arguments: `sys.argv` of the program after its own name.
        arch: The architecture to compile for.
        quiet: Send the program's standard output to standard error.
        settings: Settings of :func:`~ptx_emulator.script.emulated`.

    Raises:
        LaunchError, UnsupportedArchError: `emulated` refuses the settings. An exception of the program itself
            becomes the outcome's failure.
    """
    failure = ""
    argv, path = sys.argv, list(sys.path)
    with emulated(arch, check="report", **settings) as session:
        sys.argv = [str(script), *arguments]
        sys.path.insert(0, os.fspath(script.resolve().parent))
        try:
            with contextlib.redirect_stdout(sys.stderr) if quiet else contextlib.nullcontext():
                runpy.run_path(str(script), run_name="__main__")
        except SystemExit as stop:
            failure = "" if stop.code in (0, None) else f"the program ended with {stop.code!r}"
        except PtxEmulatorError as error:
            failure = str(error)
        except Exception:  # the program's own
            failure = traceback.format_exc()
        finally:
            sys.argv, sys.path[:] = argv, path
    return Outcome(script, arch, session, failure)
