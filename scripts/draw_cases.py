"""Draw the pictures of the cases, and judge the claims, from the records in docs/cases. Needs no GPU.

    python scripts/draw_cases.py [--from FOLDER]    FOLDER holds new records (`benchmarks/cases_session.py`)

Writes docs/cases/<case>.png, docs/cases/stalls.png and docs/cases/claims.json; with --from, the records as
well. `make docs` then renews the tables of the pages.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from dsl_kernels_lab import cases  # noqa: E402
from dsl_kernels_lab.cases import _figures, base, claims  # noqa: E402

FOLDER = ROOT / "docs" / "cases"
# Launches of several cases whose stalls are drawn side by side.
BESIDE = (
    ("reduction", "v1_4Mi"),
    ("reduction", "v4_64Mi"),
    ("gather_occupancy", "loads_w8_d1"),
    ("gather_occupancy", "bulk_w8_d8"),
    ("gather_occupancy", "attention_t64"),
    ("split_k", "exp2"),
    ("triton_attention", "triton_128x64_8w"),
    ("triton_attention", "sdpa_default"),
)


def take(source: Path, into: Path = FOLDER) -> list[str]:
    """Copy the records of a session, checked and in canonical form; returns the cases."""
    taken = []
    for name in cases.names():
        path = source / f"{name}.json"
        if path.exists():
            record = base.read(path)
            record["question"] = cases.get(name).question
            record["expected"] = base.judged(cases.get(name), record["counters"])
            base.write(record, into / path.name)
            taken.append(name)
    return taken


def draw(records: Path = FOLDER, into: Path = FOLDER) -> list[Path]:
    """Every picture that the records allow."""
    held = claims.records_in(records)
    drawn = []
    for name, record in held.items():
        drawn.append(_save(cases.get(name).draw(record), into / f"{name}.png"))
    beside = {
        f"{case}\n{launch}": held[case]["counters"][launch]
        for case, launch in BESIDE
        if launch in held.get(case, {}).get("counters", {})
    }
    if beside:
        any_record = held[next(iter(held))]
        figure, (axis,) = _figures.panels(1, "Where the warps of different kernels wait", any_record, 10.0)
        _figures.stalls(axis, {"counters": beside}, few=7)
        axis.set_title("")
        drawn.append(_save(figure, into / "stalls.png"))
    return drawn


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", type=Path, help="folder of new records")
    options = parser.parse_args()
    if options.source is not None:
        take(options.source)
    draw()
    judged = claims.table(claims.records_in(FOLDER))
    (FOLDER / "claims.json").write_text(json.dumps(judged, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
