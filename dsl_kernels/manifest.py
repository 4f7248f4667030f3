"""The manifest of a generated set: a record for each kernel module."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ArtifactError

SCHEMA = 1
MANIFEST = "manifest.json"


def text_of(records: Iterable[Mapping[str, Any]]) -> str:
    """The manifest of these variants' records."""
    return json.dumps({"schema": SCHEMA, "variants": list(records)}, indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class Variant:
    """One generated kernel module: an operation at fixed knobs, in one DSL, for one architecture."""

    id: str
    op: str
    backend: str
    arch: str
    knobs: Mapping[str, Any]
    path: Path
    sha256: str = ""
    declared: Mapping[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Text of the generated module.

        Raises:
            ArtifactError: the library has no generated set, and the variant is a bundle's.
        """
        try:
            return self.path.read_text()
        except FileNotFoundError:
            raise ArtifactError(
                self.id,
                expected="its generated module",
                got=f"no file {self.path}",
                fix="look at a library with its generated set; bundles hold compiled code alone",
            ) from None

    def record(self) -> dict[str, Any]:
        """The variant's record in the manifest."""
        return {
            "id": self.id,
            "op": self.op,
            "backend": self.backend,
            "arch": self.arch,
            "knobs": dict(self.knobs),
            "declared": dict(self.declared),
            "file": f"{self.arch}/{self.op}/{self.id}.py",
            "sha256": self.sha256,
        }
