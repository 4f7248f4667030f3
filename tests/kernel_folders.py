"""What tests that all operations share take from the folders of tests/kernels, one folder an operation.

| file | holds | for |
| --- | --- | --- |
| `leaves_*.py` | a case of each leaf | test_leaves |
| `mutated_*.py` | structures whose bodies are broken | test_mutated_texts |

Deleting the folder of an operation, its folder in `dsl_kernels/kernels` and its generated modules removes it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent / "kernels"


def modules(part: str) -> dict[str, list[ModuleType]]:
    """Import the `<part>_*.py` of each folder: operation -> modules, both sorted by name."""
    imported: dict[str, list[ModuleType]] = {}
    for path in sorted(FOLDER.glob(f"*/{part}_*.py")):
        # As pytest does for test modules: their names differ from one another, so no folder is a package.
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        imported.setdefault(path.parent.name, []).append(importlib.import_module(path.stem))
    return imported
