"""Profiles of the tuned winners of a GPU: `dsl_kernels_lab/records/<gpu>_fingerprints.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from dsl_kernels.errors import ArtifactError
from dsl_kernels.measured import slug
from dsl_kernels.runtime.storage import read_file

from .. import RECORDS
from .model import Diagnosis

SCHEMA = 1


def path_of(gpu: str, folder: Path | None = None) -> Path:
    """Where the fingerprints of a GPU are kept."""
    return (folder or RECORDS) / f"{slug(gpu)}_fingerprints.json"


def summary(diagnosis: Diagnosis) -> dict[str, Any]:
    """The few figures of a diagnosis to show beside a time; shares are fractions."""
    f, stall, top = diagnosis.fingerprint, diagnosis.fingerprint.dominant_stall, diagnosis.top
    return {
        "us": None if f.us is None else round(f.us, 2),
        "dram": _rounded(f.sol.get("dram")),
        "l2": _rounded(f.sol.get("l2")),
        "tensor": _rounded(f.pipes.get("tensor")),
        "stall": stall,
        "stall_share": _rounded(f.stalls[stall].share if stall else None),
        "cause": top.cause if top else None,
        "bound": _rounded(top.bound if top else None),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def write(
    gpu: str, added: Iterable[Mapping[str, Any]], metadata: Mapping[str, Any], folder: Path | None = None
) -> Path:
    """Merge entries (op, form, bucket, variant and a `summary`) into the GPU's file."""
    path = path_of(gpu, folder)
    merged = {_key(entry): dict(entry) for entry in [*entries(gpu, folder), *added]}
    content = {
        "schema": SCHEMA,
        "metadata": dict(metadata),
        "entries": [merged[key] for key in sorted(merged)],
    }
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    _table.cache_clear()
    return path


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return entry["op"], entry["form"], tuple(sorted(entry["bucket"].items())), entry["variant"]


def entries(gpu: str, folder: Path | None = None) -> tuple[Mapping[str, Any], ...]:
    """All recorded figures of a GPU; empty if none were recorded."""
    path = path_of(gpu, folder)
    return _table(path) if path.exists() else ()


def of(
    gpu: str, op: str, form: str, bucket: Mapping[str, int], variant: str, folder: Path | None = None
) -> Mapping[str, Any] | None:
    """The recorded figures of a variant at a bucket; None if there are none.

    Raises:
        ArtifactError: the file is damaged or of another schema.
    """
    wanted = (op, form, tuple(sorted(bucket.items())), variant)
    return next((entry for entry in entries(gpu, folder) if _key(entry) == wanted), None)


@lru_cache(maxsize=8)
def _table(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        content = json.loads(read_file(path).decode())
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}")
        rows = tuple(content["entries"])
        for entry in rows:
            _key(entry)
        return rows
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            str(path),
            expected=f"fingerprints of schema {SCHEMA}",
            got=f"{type(error).__name__}: {error}",
            fix="restore it or record it again",
        ) from None


def line(entry: Mapping[str, Any]) -> str:
    """The figures in one line, for a person."""
    parts = [
        f"{entry['us']:.2f} us under the profiler" if entry.get("us") is not None else "",
        f"DRAM {entry['dram']:.0%}" if entry.get("dram") is not None else "",
        f"L2 {entry['l2']:.0%}" if entry.get("l2") is not None else "",
        f"tensor cores {entry['tensor']:.0%}" if entry.get("tensor") else "",
        f"warps wait most for {entry['stall']} ({entry['stall_share']:.0%})" if entry.get("stall") else "",
        f"cause {entry['cause']}" if entry.get("cause") else "",
        f"at most {entry['bound']:.2f} times as fast" if entry.get("bound") else "",
    ]
    return ", ".join(part for part in parts if part)
