"""Record in docs/builds.json what the variants in this machine's cache compiled to; scripts/update_docs.py
lists it.

    python scripts/record_builds.py

Only variants in the cache are read. Records of other variants stay as long as their program has not changed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from dsl_kernels import variants  # noqa: E402
from dsl_kernels.runtime import artifact, cache  # noqa: E402
from dsl_kernels.variants import Variant  # noqa: E402
from dsl_kernels_lab.verification import runs  # noqa: E402

PATH = ROOT / "docs" / "builds.json"
# An instruction of PTX: an opcode, optionally after a guard. Directives start with a dot, labels with a
# dollar sign.
INSTRUCTION = re.compile(r"^\s*(?:@!?%?\w+\s+)?[a-z][\w.:]*(?:\s[^;]*)?;", re.MULTILINE)
# Steps of a build that are neither the DSL's work nor a compiler's.
ASIDE = ("import", "sass")


def build(variant: Variant) -> dict[str, Any] | None:
    """What the variant compiled to on this machine, or None if it is not in the cache."""
    folder = cache.lookup(variant)
    if folder is None:
        return None
    built = artifact.read(folder, verify=False)
    seconds = json.loads((folder / artifact.BUILD).read_text())["seconds"]
    return {
        "program": runs.program_of(variant),
        "seconds": round(sum(value for step, value in seconds.items() if step not in ASIDE), 2),
        "registers": built.resources.registers,
        "shared": built.resources.static_smem + built.resources.dynamic_smem,
        "ptx": len(INSTRUCTION.findall((folder / "kernel.ptx").read_text())),
        "sass": sum(count for opcode, count in built.evidence.items() if "." not in opcode),
    }


def builds() -> dict[str, dict[str, Any]]:
    """The records of variants whose program has not changed since, by variant id."""
    recorded = json.loads(PATH.read_text()) if PATH.exists() else {}
    known = {v.id: v for v in variants.variants()}
    return {
        name: record
        for name, record in recorded.items()
        if name in known and record["program"] == runs.program_of(known[name])
    }


def main() -> int:
    records = builds()
    for variant in variants.variants():
        record = build(variant)
        if record is not None:
            records[variant.id] = record
    lines = (f"{json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(records.items()))
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
