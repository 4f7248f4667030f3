"""A new kernel and a new DSL in a copy of the checkout: no file but their own is written.

The kernel is the row softmax of newcomer/, written as docs/new_kernel.md says; the DSL is that of toydsl/.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from codegen.sweep import backends
from dsl_kernels.arch import ARCHS

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
FOLDERS = (
    "benchmarks", "codegen", "dsl_kernels", "dsl_kernels_lab", "examples", "generated", "ptx_emulator",
    "templates", "tests",
)  # fmt: skip
# Of scripts/ what tests import: `generate` brings documents up to date where their script is.
FILES = ("pyproject.toml", "scripts/count_mutants.py")
OP = "row_softmax"
PYTEST = ("-m", "pytest", "-q", "-rA", "--tb=no", "-n", "0", "-p", "no:cacheprovider")

pytestmark = [pytest.mark.slow, pytest.mark.compile]


class Tree:
    """A copy of the checkout in which commands run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
        (root / "scripts").mkdir()
        for file in FILES:
            shutil.copy(ROOT / file, root / file)
        self.before = self.files()

    def files(self) -> dict[str, str]:
        paths = (path for path in sorted(self.root.rglob("*")) if path.is_file())
        return {
            path.relative_to(self.root).as_posix(): sha256(path.read_bytes()).hexdigest() for path in paths
        }

    def add(self, folder: Path) -> set[str]:
        """Copy the files of a folder into the tree; returns their paths."""
        shutil.copytree(folder, self.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        return {
            path.relative_to(folder).as_posix()
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    def run(self, *arguments: str, succeeds: bool = True) -> str:
        own = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
        kept = {name: value for name, value in os.environ.items() if name != "DSL_KERNELS_GENERATED_DIR"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=kept | own, capture_output=True, text=True
        )
        text = done.stdout + done.stderr
        assert (done.returncode == 0) is succeeds, f"{' '.join(arguments)}: {done.returncode}\n{text}"
        return text

    def changed(self) -> set[str]:
        now = self.files()
        return {name for name in now.keys() | self.before.keys() if now.get(name) != self.before.get(name)}

    def manifest(self) -> list[dict]:
        return json.loads((self.root / "generated" / "manifest.json").read_text())["variants"]


def outcomes(text: str, word: str) -> list[str]:
    """The ids of the tests with this outcome."""
    return [line.split()[1] for line in text.splitlines() if line.startswith(f"{word} ")]


def generated(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("generated/")}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory) -> Tree:
    tree = Tree(tmp_path_factory.mktemp("unfinished"))
    tree.run("-m", "codegen", "new", OP)
    return tree


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Iterator[Tree]:
    """The tree with the kernel complete, generated and compiled for every DSL and architecture."""
    tree = Tree(tmp_path_factory.mktemp("finished"))
    tree.run("-m", "codegen", "new", OP)
    scaffolded = tree.changed()
    assert tree.add(HERE / "newcomer") == scaffolded
    tree.run("-m", "codegen", "generate", "--op", OP)
    yield tree
    assert tree.changed() - generated(tree.changed()) == scaffolded, (
        "the kernel needed an edit outside its files"
    )


def test_an_unfinished_kernel_fails_its_own_tests_and_nobody_else_s(unfinished) -> None:
    files = (
        "tests/numerics/test_interpreter.py",
        f"tests/kernels/{OP}/test_{OP}.py",
        "tests/codegen/test_render.py",
    )
    others = ("merge_outputs", "window_ids")
    wanted = f"{OP} or has_variants or (({' or '.join(others)}) and (tiny or in_step))"
    text = unfinished.run(*PYTEST, *files, "-k", wanted, succeeds=False)
    failed, passed = outcomes(text, "FAILED"), outcomes(text, "PASSED")
    assert not outcomes(text, "ERROR"), text
    assert failed and all(OP in name for name in failed), failed
    assert {name.split("::")[0] for name in failed} == set(files)
    for other in others:
        assert any(other in name for name in passed), text
    unfinished.run(*PYTEST, "--co", "tests/kernels", "tests/numerics", "tests/compile/test_evidence.py")


def test_the_files_that_are_written_are_typed_and_tidy(unfinished, finished) -> None:
    for tree in (unfinished, finished):
        own = sorted(name for name in tree.changed() - generated(tree.changed()))
        tree.run("-m", "ruff", "check", "--no-cache", *own)
        tree.run("-m", "ruff", "format", "--no-cache", "--check", *own)
        typed = [name for name in own if name.endswith(("/problem.py", "/program.py", f"oracles/{OP}.py"))]
        options = ("--follow-imports=skip", "--cache-dir", os.devnull)
        tree.run("-m", "mypy", *options, *typed)


def test_every_dsl_and_architecture_has_it_and_the_others_stay_as_they_are(finished) -> None:
    mine = [record for record in finished.manifest() if record["op"] == OP]
    assert sorted((r["backend"], r["arch"]) for r in mine) == sorted(
        (b, a) for b in backends() for a in ARCHS
    )
    changed = generated(finished.changed())
    assert changed == {"generated/manifest.json", *(f"generated/{record['file']}" for record in mine)}
    others = json.loads((ROOT / "generated" / "manifest.json").read_text())["variants"]
    assert [record for record in finished.manifest() if record["op"] != OP] == others


@pytest.mark.emulator
def test_the_shared_tests_take_it_through_interpreter_emulator_and_evidence(finished) -> None:
    files = [
        *(f"tests/numerics/test_{name}.py" for name in ("interpreter", "emulator", "leaves")),
        f"tests/kernels/{OP}/test_{OP}.py",
        "tests/compile/test_evidence.py",
        "tests/codegen/test_render.py",
    ]
    passed = outcomes(finished.run(*PYTEST, *files, "-k", OP), "PASSED")
    for file in files:
        assert any(name.startswith(file) for name in passed), file
    assert any("in_step" in name for name in passed)
    for record in finished.manifest():
        if record["op"] == OP:
            for file in ("tests/numerics/test_emulator.py", "tests/compile/test_evidence.py"):
                assert any(name.startswith(file) and record["id"] in name for name in passed), (
                    file,
                    record["id"],
                )


@pytest.mark.emulator
def test_a_second_kernel_takes_rows_by_a_launch_plan_in_bf16(tmp_path) -> None:
    """RMSNorm: bf16 rows, a weight, a float scalar, a grid from the plan, registers kept across rows."""
    op = "rms_norm"
    tree = Tree(tmp_path)
    tree.run("-m", "codegen", "new", op)
    scaffolded = tree.changed()
    assert tree.add(HERE / "newcomer_rms_norm") == scaffolded
    tree.run("-m", "codegen", "generate", "--op", op)
    own = sorted(tree.changed() - generated(tree.changed()))
    assert set(own) == scaffolded
    tree.run("-m", "ruff", "check", "--no-cache", *own)
    tree.run("-m", "ruff", "format", "--no-cache", "--check", *own)
    files = [f"tests/numerics/test_{name}.py" for name in ("interpreter", "emulator")]
    files += [f"tests/kernels/{op}/test_{op}.py", "tests/unit/test_cost.py"]
    passed = outcomes(tree.run(*PYTEST, *files, "-k", op), "PASSED")
    made = [record for record in tree.manifest() if record["op"] == op]
    assert sorted((r["backend"], r["arch"]) for r in made) == sorted(
        (b, a) for b in backends() for a in ARCHS
    )
    assert any("test_cost" in name for name in passed)
    for record in made:
        assert any("test_emulator" in name and record["id"] in name for name in passed), record["id"]
    leaves = tree.run(*PYTEST, "tests/numerics/test_leaves.py", "-k", op)
    for leaf in ("read_weight", "read_row", "sum_squares", "write_row"):
        assert any(leaf in name for name in outcomes(leaves, "PASSED")), leaves
        # Without any guard, a variant that was built for rows of another length must not be selected.
    asked = ("-m", "dsl_kernels", "explain", op, "--dim", "rows=100,dim=1000")
    assert "dim = 1000, built for 1024" in tree.run(*asked, succeeds=False)


def test_selection_explains_itself(finished) -> None:
    explain = ("-m", "dsl_kernels", "explain", OP, "--json")
    for arch in ARCHS:
        told = json.loads(finished.run(*explain, "--arch", arch, "--dim", "rows=100,columns=1024"))
        assert told["selection"]["variant"].startswith(f"{OP}__") and told["bucket"] == {
            "rows": 128,
            "columns": 1024,
        }
    assert "columns = 1000, built for 1024" in finished.run(
        "-m", "dsl_kernels", "explain", OP, "--dim", "rows=100,columns=1000", succeeds=False
    )


# Forget the variants of the operation, as `codegen generate` does, and check one DSL on one architecture.
WITHOUT = """
from codegen.emit import emit
from codegen.sweep import Filter, sweep
emit([], only=Filter(op="{op}"))
only = Filter(backend="tilelang", arch="sm_90a")
print(emit(sweep(0, only).kept, dry_run=True, only=only).drifted)
"""


def test_a_kernel_is_removed_with_its_folders(tmp_path) -> None:
    """Nothing that all operations share names it, but for the line by which `ops` offers it."""
    op, tree = "gqa_forward", Tree(tmp_path)
    for folder in (f"dsl_kernels/kernels/{op}", f"tests/kernels/{op}", *tree.root.glob(f"generated/*/{op}")):
        shutil.rmtree(tree.root / folder)
    (tree.root / f"dsl_kernels_lab/oracles/{op}.py").unlink()
    offered = tree.root / "dsl_kernels" / "ops" / "__init__.py"
    lines = offered.read_text().splitlines(keepends=True)
    offered.write_text("".join(line for line in lines if op not in line))
    assert tree.run("-c", WITHOUT.format(op=op)) == "[]\n"
    shared = (
        "interpreter",
        "emulator",
        "leaves",
        "mutated_texts",
        "mutated_variants",
        "backends_agree",
        "probes",
    )
    files = [f"tests/numerics/test_{name}.py" for name in shared]
    files += [f"tests/unit/test_{name}.py" for name in ("cost", "clock", "registry", "selections")]
    collected = tree.run(*PYTEST, "-o", "addopts=", "--co", "tests/kernels", *files)
    assert "sparse_mla__" in collected and f"{op}__" not in collected


BENCH_ON_CPU = """
import json, os
os.environ["DSL_KERNELS_EXECUTOR"] = "interpreter"
import torch
from dsl_kernels import executors, problems
from dsl_kernels.arch import gpu_row
from dsl_kernels_lab.timing import bench, grids, measure
measure.DEVICE, bench.turns = "cpu", lambda touched: 2
torch.cuda.current_device, executors.gpu_at_hand = lambda: 0, lambda index: gpu_row("sm_90a")
timed = []
def graph_time(calls, replays=30):
    for call in calls:
        call()
    timed.append(len(calls))
    return bench.Timing(1.0, 1.0, 1.0, len(calls), replays)
bench.graph_time = graph_time
points = grids.points("row_softmax", "smoke")
small = grids.Point("row_softmax", "default", {"rows": 6, "columns": 1024})
prepared = grids.prepare(small)
record, entry = grids.time_point(small, prepared), grids.tune_point(small, prepared)
print(json.dumps([[p.label for p in points], record, entry, timed]))
"""


def test_bench_draws_times_and_tunes_it(finished) -> None:
    import torch

    if not torch.cuda.is_available():
        assert "EXECUTOR_UNAVAILABLE" in finished.run("-m", "dsl_kernels", "bench", OP, succeeds=False)
    points, record, entry, timed = json.loads(finished.run("-c", BENCH_ON_CPU))
    assert points == ["rows=4096 columns=1024"]
    assert record["variant"].startswith(f"{OP}__") and record["gbps"] == 8 * 6 * 1024 / 1e3
    assert set(entry["us"]) == {
        r["id"] for r in finished.manifest() if (r["op"], r["arch"]) == (OP, "sm_90a")
    }
    assert timed == [2] * 3


COMPARE_TOY = """
import json
from dsl_kernels import backends, variants
from dsl_kernels_lab.verification import trial
from dsl_kernels.executors import Interpreter
found = []
for variant in variants.variants(backend="toy"):
    for workload in trial.workloads(variant, "tiny", "edge"):
        example = trial.cached_example(variant.op, workload)
        executors = (Interpreter(), backends.get("toy"))
        runs = [trial.run(variant, workload, each, example=example) for each in executors]
        assert all(run.comparison.ok for run in runs)
        wanted, got = (run.operands["y"] for run in runs)
        found.append([variant.id, workload.name, float((got - wanted).abs().max())])
print(json.dumps(found))
"""

LISTED = """
import json
from dsl_kernels.cli.machine import _packages
from dsl_kernels_lab.timing import bench
print(json.dumps([list(_packages()), bench.environment()["versions"]]))
"""


def test_a_dsl_is_three_places_of_its_name(tmp_path) -> None:
    """It prints a kernel whose leaves it has, and no other; the printed module runs, barriers included."""
    tree = Tree(tmp_path)
    own = tree.add(HERE / "newcomer") | tree.add(HERE / "toydsl")
    places = {"dsl_kernels/backends/toy.py", "dsl_kernels/device/toy/", "templates/toy/"}
    assert {place for place in places if any(name.startswith(place) for name in own)} == places
    tree.run("-m", "codegen", "generate", "--backend", "toy", "--no-compile")
    added = [record["id"] for record in tree.manifest() if record["backend"] == "toy"]
    assert sorted(added) == sorted(f"{OP}__toy_{arch.tag}__n1024_st2" for arch in ARCHS.values())
    assert tree.changed() - generated(tree.changed()) == own
    compared = json.loads(tree.run("-c", COMPARE_TOY))
    assert {(name, workload) for name, workload, _ in compared} == {
        (name, workload) for name in added for workload in ("tiny", "part_of_a_cta")
    }
    assert all(difference < 1e-8 for *_, difference in compared)
    doctor, recorded = json.loads(tree.run("-c", LISTED))
    assert (
        next(row["found"] for row in doctor if row["check"] == "toy") == "toy 1.0" == f"toy {recorded['toy']}"
    )

    # The plan's barriers synchronise the roles: with one arrival missing they deadlock.
    module = tree.root / "generated" / next(r["file"] for r in tree.manifest() if r["backend"] == "toy")
    text = module.read_text()
    assert text.count("arrive(threads)") == 1
    module.write_text(text.replace("arrive(threads)", "arrive(threads - 1)"))
    assert "wait for one another" in tree.run("-c", COMPARE_TOY, succeeds=False)
