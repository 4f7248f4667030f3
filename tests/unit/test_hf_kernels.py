"""The library as a kernel for Hugging Face `kernels`: the validator's requirements; an independent copy."""

from __future__ import annotations

import ast
import base64
import json
import os
import subprocess
import sys
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dsl_kernels import ops
from dsl_kernels.cli import app
from dsl_kernels.errors import InvalidArgumentError
from dsl_kernels.problems.layouts import pack_index_keys
from dsl_kernels_lab import hf_kernels

# torch and the one package on which `kernels` lets a CUDA kernel depend, with what these or `kernels` itself
# install.
ALLOWED = {"torch", "cutlass", "cuda", "filelock", "packaging", "platformdirs"}

# Loads the kernel as `kernels` does, or by `kernels`, and computes results; nothing may import the library.
RUN = """
import importlib.util, sys, torch
folder, how, source, target = sys.argv[1:]

class Blocked:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "dsl_kernels":
            raise ImportError(f"the copy imports {name}")

sys.meta_path.insert(0, Blocked)
if how == "kernels":
    from pathlib import Path
    import kernels
    from kernels._rust import Digest, DigestAlgorithm, Metadata
    variant = Path(folder, "build", "torch-cuda")
    held = Metadata.read_from_file(variant / "metadata.json")
    held.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, variant))
    torch.version.cuda = torch.version.cuda or "13.0"  # so that it looks for kernels of CUDA
    kernel = kernels.get_local_kernel(Path(folder))
else:
    spec = importlib.util.spec_from_file_location(how, f"{folder}/build/torch-cuda/__init__.py")
    kernel = sys.modules[how] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernel)
given = torch.load(source)
torch.save({name: getattr(kernel, name)(*args, **named) for name, (args, named) in given.items()}, target)
print(*(name for name in dir(torch.ops) if name.startswith("_dsl_kernels")))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> hf_kernels.Exported:
    return hf_kernels.export(tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="module")
def imports(made: hf_kernels.Exported) -> dict[Path, list[ast.Import | ast.ImportFrom]]:
    """Every import of every module, at its top or in a function."""
    return {
        path: [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        for path in sorted(made.folder.rglob("*.py"))
    }


Imports = dict[Path, list[ast.Import | ast.ImportFrom]]


def test_metadata_says_what_the_kernel_is_and_hashes_each_file(made: hf_kernels.Exported) -> None:
    report = json.loads((made.folder / "metadata.json").read_text())
    assert made.folder.parts[-2:] == ("build", "torch-cuda")
    assert report["id"] == made.id and made.id.isidentifier() and made.id.startswith("_dsl_kernels_cuda_")
    assert report["name"].replace("-", "_") == "dsl_kernels" and report["license"] == "apache-2.0"
    assert isinstance(report["version"], int) and report["python-depends"] == ["nvidia-cutlass-dsl"]
    assert report["backend"] == {"type": "cuda", "archs": ["9.0a", "10.0a"]}
    files = {p.relative_to(made.folder).as_posix(): p for p in made.folder.rglob("*") if p.is_file()}
    del files["metadata.json"]
    assert report["digest"] == {
        "algorithm": "sha256",
        "files": {
            name: base64.b64encode(sha256(path.read_bytes()).digest()).decode()
            for name, path in sorted(files.items())
        },
    }
    assert (made.files, made.bytes) == (
        len(files) + 1,
        sum(path.stat().st_size for path in made.folder.rglob("*") if path.is_file()),
    )


def test_only_torch_and_cute_dsl_are_imported_from_outside(imports: Imports) -> None:
    outside: set[str] = set()
    for node in (node for nodes in imports.values() for node in nodes):
        if isinstance(node, ast.Import):
            outside |= {each.name.partition(".")[0] for each in node.names}
        elif not node.level:
            outside.add(str(node.module).partition(".")[0])
    assert outside - set(sys.stdlib_module_names) == ALLOWED


def test_relative_imports_find_their_modules(made: hf_kernels.Exported, imports: Imports) -> None:
    missing: set[str] = set()
    for path, nodes in imports.items():
        place = path.relative_to(made.folder).parts
        # Generated modules are imported directly below the package.
        package = ["generated"] if place[0] == "generated" else list(place[:-1])
        for node in nodes:
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            assert node.level <= len(package) + 1, path
            inside = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            target = made.folder.joinpath(*inside)
            if target.with_suffix(".py").exists():
                continue
            start = target / "__init__.py"
            defined = start.read_text() if start.exists() else ""
            names = [each.name for each in node.names]
            missing |= {
                name
                for name in names
                if not target.is_dir()
                or not ((target / f"{name}.py").exists() or (target / name).is_dir() or name in defined)
            }
    assert not missing


def test_every_generated_module_is_cute_dsl_and_hashed(made: hf_kernels.Exported) -> None:
    records = json.loads((made.folder / "generated" / "manifest.json").read_text())["variants"]
    assert {record["backend"] for record in records} == {"cutedsl"}
    assert {record["arch"] for record in records} == {"sm_90a", "sm_100a"}
    assert {"sparse_mla", "topk_selector", "lightning_indexer"} <= {record["op"] for record in records}
    for record in records:
        assert (
            sha256((made.folder / "generated" / record["file"]).read_bytes()).hexdigest() == record["sha256"]
        )


LENGTHS = torch.tensor([130, 7], dtype=torch.int32)


def inputs() -> dict[str, tuple[tuple[object, ...], dict[str, object]]]:
    torch.manual_seed(5)
    keys = pack_index_keys(torch.randn(4, 64, 128)).view(4, 64, 1, 132)
    table = torch.tensor([[2, 0, 3], [1, 0, 0]], dtype=torch.int32)
    q = torch.randn(2, 1, 64, 128).to(torch.float8_e4m3fn)
    ids = torch.stack([torch.randperm(200)[:70] for _ in range(2)]).int()
    ids[0, 40:] = -1
    mla = torch.randn(2, 16, 576).bfloat16(), None, torch.randn(200, 576).bfloat16(), ids
    return {
        "sparse_mla": (mla, {"sm_scale": 0.07}),
        "lightning_indexer": ((q, keys, torch.randn(2, 1, 64), LENGTHS, table), {}),
        "topk_selector": ((torch.randn(2, 300), torch.tensor([300, 5], dtype=torch.int32), 16), {}),
    }


def run(made: hf_kernels.Exported, how: str, tmp_path: Path) -> str:
    """Compare the copy's results with the library's; returns what the process printed."""
    given, source, target = inputs(), tmp_path / "in.pt", tmp_path / "out.pt"
    torch.save(given, source)
    root = made.folder.parents[1]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(root), how, str(source), str(target)], capture_output=True, text=True,
        env={**os.environ, "DSL_KERNELS_EXECUTOR": "interpreter", "HF_HUB_OFFLINE": "1"}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = torch.load(target)
    for name, (args, named) in given.items():
        expected = getattr(ops, name)(*args, **named, executor="interpreter")
        if name == "lightning_indexer":
            # Scores from a row's length on are undefined.
            for result in (results[name], expected):
                result[torch.arange(result.shape[-1]) >= LENGTHS[:, None, None]] = 0
        torch.testing.assert_close(results[name], expected, atol=1e-2, rtol=1e-2)
    return done.stdout


def test_the_copy_computes_without_the_library_under_another_name(
    made: hf_kernels.Exported, tmp_path: Path
) -> None:
    run(made, "elsewhere", tmp_path)


ASK = """
import importlib.util, sys, torch
sys.modules["ptx_emulator"] = None
spec = importlib.util.spec_from_file_location("elsewhere", sys.argv[1])
kernel = sys.modules["elsewhere"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
try:
    lengths = torch.tensor([300, 5], dtype=torch.int32)
    kernel.topk_selector(torch.randn(2, 300), lengths, 16, executor="emulator")
except Exception as error:
    print(type(error).__name__, error)
"""


def test_the_copy_says_that_it_came_without_the_emulator(made: hf_kernels.Exported) -> None:
    ask = [sys.executable, "-c", ASK, str(made.folder / "__init__.py")]
    output = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    assert output.startswith(
        "ExecutorUnavailableError error[EXECUTOR_UNAVAILABLE] executor 'emulator': expected"
    )
    assert "an exported copy" in output and "Fix: install dsl_kernels" in output


def test_kernels_accepts_and_loads_it(made: hf_kernels.Exported, tmp_path: Path) -> None:
    try:
        metadata.version("kernels")
    except metadata.PackageNotFoundError:
        pytest.skip("the package `kernels` is not installed: its metadata parser and loader are not asked")
    run(made, "kernels", tmp_path)


def test_the_older_layout_exports_the_same(made: hf_kernels.Exported) -> None:
    text = (made.folder / "dsl_kernels" / "__init__.py").read_text()
    assert f'"{made.id}"' in text
    module = str(made.folder / "dsl_kernels" / "__init__.py")
    run_it = f"import runpy; print(*runpy.run_path({module!r})['__all__'])"
    done = subprocess.run([sys.executable, "-c", run_it], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(ops.__all__)


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["export-kernel", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "expected: a file or folder" in " ".join(result.stderr.split()) and "file/build" in result.stderr


def test_the_command_writes_once(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export-kernel", str(tmp_path), "--json"])
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert Path(report["folder"], "__init__.py").exists() and report["bytes"] < 16 << 20
    with pytest.raises(InvalidArgumentError, match="torch-cuda"):
        hf_kernels.export(tmp_path)
