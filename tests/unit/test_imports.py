"""What importing costs and loads, and rules that every file of the library and the generator obeys."""

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
LABORATORY = sorted((ROOT / "dsl_kernels_lab").rglob("*.py"))
EMULATOR = sorted((ROOT / "ptx_emulator").rglob("*.py"))
GENERATOR = sorted((ROOT / "codegen").rglob("*.py"))
# Packages that only the repository has, and packages that commands which only read must not load.
GENERATOR_ONLY = ("codegen", "jinja2")
HEAVY = ("torch", *GENERATOR_ONLY, "cuda", "tilelang", "cutlass", "triton", "numpy")

PROBE = """
import json, sys
import {module}
print(json.dumps({{"modules": sorted(sys.modules)}}))
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
    """First components of the absolute names that a file imports, by statement or through importlib."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names.add(node.args[0].value.split(".")[0])
    return names


@pytest.mark.parametrize(
    "module",
    [
        "dsl_kernels",
        "dsl_kernels.registry",
        "dsl_kernels.variants",
        "dsl_kernels.cli",
        "dsl_kernels_lab.profile",
    ],
)
def test_what_only_reads_declarations_and_records_loads_nothing_heavy(module: str) -> None:
    loaded = {name.split(".")[0] for name in fresh_import(module)["modules"]}
    assert not loaded & set(HEAVY)


RUN = """
import sys
sys.argv[0] = "dsl_kernels"
from dsl_kernels.cli import main
try:
    main()
finally:
    print(*sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
"""
KEPT = "tests/unit/data/planted_h200.json.xz"
READING = (
    "case list",
    "list --op topk_selector",
    "show VARIANT --describe --source",
    "explain topk_selector --dim rows=4,len=4096,k=2048 --arch sm_90a",
    "explain lightning_indexer --dim b=4,len=4096,heads=64,next_n=1 --gpu H200",
    "explain sparse_mla --dim t=4,heads=16,topk=2048 --arch sm_100a",
    "explain gqa_forward --dim b=1,sq=64,skv=64,heads=16,kv_heads=8,dim=128,causal=1 --gpu H200",
    "explain resample_trajectories --dim b=4,n=100,m=100,d=32 --gpu H200",
    f"profile read {KEPT}",
    f"profile diff {KEPT} {KEPT}",
    "profile schema",
    "cache ls",
    "env",
    "doctor",
)


@pytest.mark.parametrize("command", READING)
def test_commands_that_only_read_load_no_torch(command: str) -> None:
    if command.startswith("profile"):
        pytest.importorskip("pydantic")
    words = command.replace("VARIANT", next((ROOT / "generated/sm_90a/topk_selector").glob("topk*.py")).stem)
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    # `doctor` exits with 1 if something is missing.
    assert done.returncode == 0 or command == "doctor", done.stderr
    assert "torch" not in done.stderr.splitlines()[-1].split()


def test_importing_the_ops_touches_no_gpu() -> None:
    probe = "import dsl_kernels.dsa, torch; print(torch.cuda.is_initialized())"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("path", [*LIBRARY, *LABORATORY, *EMULATOR], ids=name_of)
def test_the_library_knows_nothing_of_the_generator(path: Path) -> None:
    assert not imported(path) & set(GENERATOR_ONLY)


# What a server imports. The rest of the library is walked too, by the statements of its files.
SERVER = (
    "ops", "dsa.parallel", "dsa.v4", "registry", "executors", "prepare", "runtime.bundle", "runtime.launch",
    "runtime.pool", "compat.deep_gemm", "compat.flash_mla", "compat.sgl_topk", "compat.vllm_topk",
    "integrations.sglang", "integrations.vllm",
)  # fmt: skip
ALONE = """
import importlib, sys
sys.modules["dsl_kernels_lab"] = sys.modules["ptx_emulator"] = None
for name in sys.argv[1:]:
    importlib.import_module(f"dsl_kernels.{name}")
import torch
from dsl_kernels import ops
lengths = torch.tensor([64], dtype=torch.int32)
ids = ops.topk_selector(torch.arange(64.0)[None], lengths, 8, executor="interpreter")
print(sorted(ids.flatten().tolist()))
"""


def test_a_server_needs_neither_laboratory_nor_emulator() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *SERVER], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and json.loads(done.stdout) == list(range(56, 64)), done.stderr
    loaded = fresh_import(
        "dsl_kernels.ops, dsl_kernels.dsa, dsl_kernels.registry, dsl_kernels.integrations.vllm"
    )
    assert not [name for name in loaded["modules"] if name.startswith(("dsl_kernels_lab", "ptx_emulator"))]


@pytest.mark.parametrize("path", LIBRARY, ids=name_of)
def test_the_library_imports_the_emulator_where_it_runs_a_kernel(path: Path) -> None:
    emulator = {module_of(other) for other in EMULATOR}
    assert not used(path) & emulator or path == ROOT / "dsl_kernels" / "executors.py"
    at_once = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not [text for text in map(ast.unparse, at_once) if "ptx_emulator" in text]


@pytest.mark.parametrize("path", EMULATOR, ids=name_of)
def test_the_emulator_knows_nothing_of_the_library(path: Path) -> None:
    assert not imported(path) & {"dsl_kernels", "dsl_kernels_lab", *GENERATOR_ONLY}


@pytest.mark.parametrize("path", [*LIBRARY, *GENERATOR], ids=name_of)
def test_the_library_and_the_generator_know_nothing_of_the_laboratory(path: Path) -> None:
    assert "dsl_kernels_lab" not in imported(path)


@pytest.mark.parametrize("part", ("cases", "cli", "profile", "steps", "timing", "verification"))
def test_the_laboratory_is_beside_the_library_and_uses_it(part: str) -> None:
    assert not (ROOT / "dsl_kernels" / part).exists() or part == "cli"
    of_part = [path for path in LABORATORY if path.is_relative_to(ROOT / "dsl_kernels_lab" / part)]
    assert of_part and any("dsl_kernels" in imported(path) for path in of_part)


def test_the_first_use_of_torch_puts_it_wherever_its_stand_in_was_imported() -> None:
    probe = (
        "import sys; from dsl_kernels import _torch; from dsl_kernels.problems import layouts, mxfp4\n"
        "assert 'torch' not in sys.modules\n"
        "layouts.torch.float32; import torch\n"
        "assert all(each.torch is torch for each in (_torch, layouts, mxfp4))"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, cwd=ROOT)


def test_importing_the_ops_imports_no_tile_program() -> None:
    """Only a first call needs its operation's program."""
    probe = (
        "import sys; from dsl_kernels import kernels, ops\n"
        "for op in kernels.names('op'): kernels.get(op, 'op', '__doc__', 'op')\n"
        "loaded = {name for name in sys.modules if name.startswith('dsl_kernels.kernels.')}\n"
        "assert any(name.endswith('.op') for name in loaded)\n"
        "assert not [name for name in loaded if '.program' in name], loaded"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, cwd=ROOT)


MOST_LINES_IN_ALL = 52_882
"""Lines of Python in `dsl_kernels` and `codegen` together. The number only falls."""


def test_the_library_and_the_generator_grow_no_further() -> None:
    lines = sum(path.read_text().count("\n") for path in (*LIBRARY, *GENERATOR))
    assert lines <= MOST_LINES_IN_ALL, f"{lines} lines: take out as many as were added"
    assert MOST_LINES_IN_ALL - lines < 1000, f"{lines} lines: lower MOST_LINES_IN_ALL"


# Layers for all operations: whatever is special about one is declared by its problem.
GENERIC = (
    "arguments", "dtypes", "executors", "ops/_base", "ops/_library", "ops/_operands", "ops/_views",
    "ops/workspace", "problems/base", "registry", "runtime/driver", "runtime/launch", "tile/cta",
    "tile/executor", "tile/interpreter", "tile/lang", "tile/plan",
)  # fmt: skip
GENERIC_PATHS = (
    *(ROOT / f"dsl_kernels/{name}.py" for name in GENERIC),
    *(
        ROOT / f"dsl_kernels_lab/{name}.py"
        for name in ("timing/bench", "verification/runs", "verification/trial")
    ),
)


@pytest.mark.parametrize("path", GENERIC_PATHS, ids=name_of)
def test_generic_layers_name_no_operand(path: Path) -> None:
    from dsl_kernels import problems

    specs = [s for op in problems.names() for form in problems.get(op).forms.values() for s in form]
    names = {name for s in specs for name in (s.name, s.argument) if name}
    # Single letters, and words with other meanings.
    meant = {"out", "splits", "values", "positions", "weights", "arrivals", "absolute", "interleave"}
    names -= {name for name in names if len(name) == 1} | meant
    for node in nodes(path):
        used = {getattr(node, field, None) for field in ("value", "id", "attr", "arg")}
        used = {value for value in used if isinstance(value, str)}
        assert not used & names, f"{name_of(path)}:{node.lineno} names {', '.join(sorted(used & names))}"


@pytest.mark.parametrize("path", [*LIBRARY, *LABORATORY, *EMULATOR, *GENERATOR], ids=name_of)
def test_no_assert_and_no_print(path: Path) -> None:
    for node in nodes(path):
        assert not isinstance(node, ast.Assert), f"{name_of(path)}:{node.lineno} asserts: raise a typed error"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{name_of(path)}:{node.lineno} prints: log, or return the text"


MOST_LINES = 600


@pytest.mark.parametrize("path", [*LIBRARY, *LABORATORY, *EMULATOR, *GENERATOR], ids=name_of)
def test_no_file_is_too_long_to_read(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= MOST_LINES, f"{name_of(path)} has {lines} lines: give what belongs together a module"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


# Without the package itself, whose attributes are loaded lazily.
MODULES = {module_of(path): path for path in (*LIBRARY, *LABORATORY, *EMULATOR, *GENERATOR)}
del MODULES["dsl_kernels"]


def used(path: Path) -> set[str]:
    """Modules of the project that a file imports, at once or within functions, but not for types only."""
    whole = list(nodes(path))
    for_types = {
        id(inner)
        for node in whole
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in whole:
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            continue
        package = module_of(path).split(".")[: -1 if path.name != "__init__.py" else None]
        above = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        inside = {f"{base}.{alias.name}" for alias in node.names} & MODULES.keys()
        names |= inside if len(inside) == len(node.names) else {base, *inside}
    return names & MODULES.keys()


def test_imports_go_one_way() -> None:
    left = {name: used(path) - {name} for name, path in MODULES.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, "import circles among " + ", ".join(sorted(left))


@pytest.mark.parametrize("layer", ("tile", "programs", "policies", "problems", "device"))
def test_what_is_declared_knows_nothing_of_how_it_runs(layer: str) -> None:
    for name, path in MODULES.items():
        if name.startswith(f"dsl_kernels.{layer}"):
            assert not [other for other in used(path) if other.startswith("dsl_kernels.runtime")], name
