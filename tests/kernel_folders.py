"""What tests that all operations share take from the folders of tests/kernels, one folder an operation.

| file | holds | for |
| --- | --- | --- |
| `leaves_*.py` | a case of each leaf | test_leaves |
| `mutated_*.py` | structures whose bodies are broken | test_mutated_texts |
| `seeded_<op>.py` | `CASES`: a variant, its workload and splits, bugs of its PTX | test_mutated_variants |
| | `LONG`, `LAUNCHES`: workloads and launches that the problem does not name | |
| `sizes_<op>.py` | `GRID`: calls that selection serves | test_registry, test_cost |
| | `COUNTED`: small calls whose bodies are walked and counted | test_cost |
| | `WALKED`: sizes of each form that the clock walks; 0 stands for the variant's own | test_clock |
| | `RECORDED`: more calls whose choice is recorded | test_selections |
| | `of_point`: the call of a tuned point's form and sizes | test_selections |
| | `EMULATED`: beginnings of the names of workloads that reach most paths at a small size | test_emulator |
| | `AGREED`: the same of workloads on which DSLs are compared | test_backends_agree |
| | `CHEAP`: by architecture, how the variant that compiles fastest is named | test_probes |
| | `SLOW`, `TRACED`: DSLs and architectures that compile slowly, that are always traced | test_probes |
| `selections.json` | what is chosen for these calls | test_selections |

Deleting the folder of an operation, its folder in `dsl_kernels/kernels`, its module in
`dsl_kernels_lab/oracles` and its generated modules removes it.
Importing this module makes the folders' modules importable, as pytest does with those of tests: no two have
the same name, so no folder is a package.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent / "kernels"

sys.path[:0] = [str(path) for path in sorted(FOLDER.iterdir()) if path.is_dir() and str(path) not in sys.path]


def modules(part: str) -> dict[str, list[ModuleType]]:
    """Import the `<part>_*.py` of each folder: operation -> modules, both sorted by name."""
    imported: dict[str, list[ModuleType]] = {}
    for path in sorted(FOLDER.glob(f"*/{part}_*.py")):
        imported.setdefault(path.parent.name, []).append(importlib.import_module(path.stem))
    return imported


def of_each(part: str) -> dict[str, ModuleType]:
    """Import the `<part>_<op>.py` of each folder that has it: operation -> module."""
    return {
        op: module
        for op, files in modules(part).items()
        for module in files
        if module.__name__ == f"{part}_{op}"
    }
