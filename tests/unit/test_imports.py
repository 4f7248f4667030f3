"""What importing costs and pulls in, and habits that hold for every file of the library and the generator."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = sorted((ROOT / "dsl_kernels").rglob("*.py"))
GENERATOR = sorted((ROOT / "codegen").rglob("*.py"))
BUDGET_SECONDS = 0.5
# What only the repository has, and what reading about the kernels must not load.
GENERATOR_ONLY = ("codegen", "jinja2")
HEAVY = ("torch", *GENERATOR_ONLY, "cuda", "tilelang", "cutlass", "triton", "numpy")

PROBE = """
import json, sys, time
start = time.perf_counter()
import {module}
seconds = time.perf_counter() - start
print(json.dumps({{"seconds": seconds, "modules": sorted(sys.modules)}}))
"""


def fresh_import(module: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(module=module)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(), str(path)))


def imported(path: Path) -> set[str]:
    """First parts of the absolute names that a file imports, by statement or through importlib."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found.add(node.args[0].value.split(".")[0])
    return found


def test_importing_the_package_is_quick() -> None:
    best = min(fresh_import("dsl_kernels")["seconds"] for _ in range(3))
    assert best < BUDGET_SECONDS


@pytest.mark.parametrize(
    "module",
    ["dsl_kernels", "dsl_kernels.registry", "dsl_kernels.variants", "dsl_kernels.cli", "dsl_kernels.profile"],
)
def test_what_only_reads_declarations_and_records_loads_nothing_heavy(module: str) -> None:
    loaded = {name.split(".")[0] for name in fresh_import(module)["modules"]}
    assert not loaded & set(HEAVY)


def test_importing_the_ops_touches_no_gpu() -> None:
    probe = "import dsl_kernels.dsa, torch; print(torch.cuda.is_initialized())"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("path", LIBRARY, ids=name_of)
def test_the_library_knows_nothing_of_the_generator(path: Path) -> None:
    assert not imported(path) & set(GENERATOR_ONLY)


# Layers that serve any operation: what is special about one is declared by its problem.
GENERIC = (
    "arguments", "dtypes", "executors", "ops/_base", "ops/_library", "ops/_operands", "ops/_views",
    "ops/workspace", "problems/base", "registry", "runtime/launch", "tile/interpreter", "tile/lang", "tile/plan",
    "timing/bench", "verification/runs", "verification/trial",
)  # fmt: skip


@pytest.mark.parametrize("name", GENERIC)
def test_generic_layers_name_no_operand(name: str) -> None:
    from dsl_kernels import problems

    specs = [s for op in problems.names() for form in problems.get(op).forms.values() for s in form]
    names = {name for s in specs for name in (s.name, s.argument) if name}
    # Single letters, and words that mean something else as well.
    names -= {name for name in names if len(name) == 1} | {"out", "splits", "weights", "arrivals", "absolute"}
    for node in nodes(ROOT / "dsl_kernels" / f"{name}.py"):
        used = {getattr(node, field, None) for field in ("value", "id", "attr", "arg")}
        used = {value for value in used if isinstance(value, str)}
        assert not used & names, f"{name}.py:{node.lineno} names {', '.join(sorted(used & names))}"


@pytest.mark.parametrize("path", [*LIBRARY, *GENERATOR], ids=name_of)
def test_no_assert_and_no_print(path: Path) -> None:
    for node in nodes(path):
        assert not isinstance(node, ast.Assert), f"{name_of(path)}:{node.lineno} asserts: raise a typed error"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{name_of(path)}:{node.lineno} prints: log, or return the text"
