"""Where each variant has run and matched the reference, so that listings stay honest.

`python -m dsl_kernels verify --record` writes `runs.json`. A record names the source that ran: the generated
module and the device helpers that it imports. It no longer counts once their code has changed; comments,
docstrings and line breaks may change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from dsl_kernels.arguments import checked
from dsl_kernels.backends.base import imported_helpers
from dsl_kernels.errors import CacheError
from dsl_kernels.runtime.storage import read_record, write_atomically
from dsl_kernels.tokens import program
from dsl_kernels.variants import Variant

from ..arguments import as_json

SCHEMA = 2
PATH = Path(__file__).resolve().parent / "runs.json"
EXECUTORS = ("cuda", "emulator", "interpreter")


@dataclass(frozen=True)
class Run:
    """One executor's record: where it ran (a GPU's name, or "CPU"), when, and on how many workloads.

    `current` says whether the source is still the same. `counted` is what the emulator counted in one launch:
    the workload, its instructions, and figures by pipe and memory level.
    """

    executor: str
    where: str
    date: str
    workloads: int
    current: bool
    counted: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=4)
def _read(path: Path, stamp: int) -> Mapping[str, Any]:
    return read_record(
        path,
        SCHEMA,
        lambda content: dict(content["runs"]),
        expected=f"records of schema {SCHEMA}",
        fix="restore or delete it",
    )


def source_of(variant: Variant) -> str:
    """SHA-256 of a variant's program text: its generated module, and its device helpers with their names."""
    return _digest(variant, variant.sha256, lambda content: content)


def program_of(variant: Variant) -> str:
    """SHA-256 of the same files' code, without comments, docstrings and line breaks."""
    return _digest(variant, hashlib.sha256(program(variant.path.read_bytes())).hexdigest(), program)


def _digest(variant: Variant, module: str, read: Callable[[bytes], bytes]) -> str:
    digest = hashlib.sha256(module.encode())
    for path in imported_helpers(variant.path, variant.backend):
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(read(path.read_bytes())).digest())
    return digest.hexdigest()


@checked
def of(variant: Variant, path: Path | None = None) -> list[Run]:
    """The records of a variant, hardware first."""
    path = path or PATH
    if not path.exists():
        return []
    mine = _read(path, path.stat().st_mtime_ns).get(variant.id, {})
    source = source_of(variant) if mine else ""
    # Tokens are compared only if the texts differ.
    same = all(item["source"] == source for item in mine.values())
    program_hash = "" if same else program_of(variant)
    return [
        Run(
            name,
            item["where"],
            item["date"],
            int(item["workloads"]),
            item["source"] == source or (not same and item.get("program") == program_hash),
            item.get("counted", {}),
        )
        for name in EXECUTORS
        if (item := mine.get(name)) is not None
    ]


@checked
def summary(records: list[Run]) -> str:
    """One phrase: the GPUs that ran it, or else the other executors; "not run" if nothing ran."""
    current = [r for r in records if r.current]
    if not current:
        return "changed since it ran" if records else "not run"
    return ", ".join(r.where.removeprefix("NVIDIA ") if r.executor == "cuda" else r.executor for r in current)


@checked
def record(
    variant: Variant,
    executor: str,
    where: str,
    date: str,
    workloads: int,
    path: Path | None = None,
    counted: Mapping[str, Any] | None = None,
) -> None:
    """Add or replace one record.

    Raises:
        ArtifactError: the existing records are damaged.
        CacheError: they cannot be written.
    """
    path = path or PATH
    runs = dict(_read(path, path.stat().st_mtime_ns)) if path.exists() else {}
    entry = {"where": where, "date": date, "workloads": workloads}
    entry |= {"source": source_of(variant), "program": program_of(variant)}
    if counted:
        entry["counted"] = dict(counted)
    of_variant = {**runs.get(variant.id, {}), executor: entry}
    content = {"schema": SCHEMA, "runs": {**runs, variant.id: of_variant}}
    text = as_json("counted", content, indent=1, sort_keys=True)
    try:
        write_atomically(path, f"{text}\n".encode())
    except OSError as error:
        raise CacheError(
            str(path), expected="a file that can be written", got=str(error), fix="correct its permissions"
        ) from None
