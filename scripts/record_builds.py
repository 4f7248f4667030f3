"""Note in docs/builds.json what the compiled variants in this machine's cache came to; scripts/update_docs.py lists it.

    python scripts/record_builds.py

Only variants that are in the cache are read; records of others stay as long as what their program says has not
changed.
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
from dsl_kernels.verification import runs  # noqa: E402

PATH = ROOT / "docs" / "builds.json"
# An instruction of PTX: an opcode, perhaps behind a guard; directives start with a dot and labels with a dollar sign.
INSTRUCTION = re.compile(r"^\s*(?:@!?%?\w+\s+)?[a-z][\w.:]*(?:\s[^;]*)?;", re.MULTILINE)
# Steps of a build that are not the DSL's or a compiler's work.
ASIDE = ("import", "sass")


def build(variant: Variant) -> dict[str, Any] | None:
    """What the variant compiled to here, or None where it is not in the cache."""
    folder = cache.lookup(variant)
    if folder is None:
        return None
    found = artifact.read(folder, verify=False)
    seconds = json.loads((folder / artifact.BUILD).read_text())["seconds"]
    return {
        "program": runs.program_of(variant),
        "seconds": round(sum(value for step, value in seconds.items() if step not in ASIDE), 2),
        "registers": found.resources.registers,
        "shared": found.resources.static_smem + found.resources.dynamic_smem,
        "ptx": len(INSTRUCTION.findall((folder / "kernel.ptx").read_text())),
        "sass": sum(count for opcode, count in found.evidence.items() if "." not in opcode),
    }


def builds() -> dict[str, dict[str, Any]]:
    """The records whose variants still say what they were made from, by variant id."""
    held = json.loads(PATH.read_text()) if PATH.exists() else {}
    known = {v.id: v for v in variants.variants()}
    return {
        name: record
        for name, record in held.items()
        if name in known and record["program"] == runs.program_of(known[name])
    }


def main() -> int:
    found = builds()
    for variant in variants.variants():
        record = build(variant)
        if record is not None:
            found[variant.id] = record
    lines = (f"{json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(found.items()))
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
