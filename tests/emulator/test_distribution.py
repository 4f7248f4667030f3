"""The emulator as a distribution of its own: its files import only numpy, and its wheel runs by itself."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dsl_kernels
from ptx_emulator import EmulatorError, PtxEmulatorError, build, errors

from .kernels import simple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "distributions" / "ptx_emulator"
LIST = (SOURCE / "CMakeLists.txt").read_text()

SCALE = simple(
    "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1;\n"
    "ld.global.f32 %f1, [%d2]; add.f32 %f1, %f1, %f1; st.global.f32 [%d2], %f1;"
)
PROGRAM = """
import sys
import numpy as np
import ptx_emulator
from ptx_emulator import EmulatorError, interleavings, launch_each

x = np.arange(32, dtype=np.float32)
for report in launch_each(sys.argv[1], 1, 32, [x], interleavings=interleavings(3)):
    assert report.ok and np.array_equal(x, 2 * np.arange(32)), x
try:
    ptx_emulator.launch(sys.argv[1], 1, 64, [x])
except EmulatorError as error:
    assert error.finding.code == "out-of-bounds-global", error
    assert isinstance(error, ptx_emulator.PtxEmulatorError)
else:
    raise SystemExit("an access out of bounds was not seen")
import ptx_emulator.script  # what it checks programs with is imported where they use it
from ptx_emulator.command import main
assert main(["run", sys.argv[2], "zeros:float32:32", "--block", "32", "--interleavings", "1"]) == 0
print(ptx_emulator.build.PREBUILT.is_file(), "dsl_kernels" in sys.modules, "torch" in sys.modules)
"""


def test_its_core_has_the_flags_of_the_librarys():
    (options,) = re.findall(r"target_compile_options\(core PRIVATE ([^)]*)\)", LIST)
    assert tuple(options.split()) == build.FLAGS


def test_its_version_is_the_librarys():
    settings = tomllib.loads((SOURCE / "pyproject.toml").read_text())
    assert settings["project"]["version"] == dsl_kernels.__version__


def test_its_base_error_is_that_of_every_error_of_the_package():
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(found) > 8 and all(issubclass(kind, PtxEmulatorError) for kind in found)
    with pytest.raises(EmulatorError) as raised:
        raise pickle.loads(pickle.dumps(EmulatorError("a message")))
    assert raised.value.code == "EMULATOR"


def test_the_package_imports_numpy_alone(tmp_path):
    (tmp_path / "k.ptx").write_text(SCALE)
    package = tmp_path / "ptx_emulator"
    ignore = shutil.ignore_patterns("*.cpp", "*.hpp", "__pycache__")
    shutil.copytree(build.SOURCES.parent, package, ignore=ignore)
    shutil.copy(build.library_path(), package / build.PREBUILT.name)
    absent = (
        "import sys\nsys.modules.update(dict.fromkeys(('dsl_kernels', 'torch', 'filelock', "
        "'platformdirs')))\n"
    )
    program = absent + PROGRAM.replace('"dsl_kernels" in sys.modules, "torch" in sys.modules', "")
    done = subprocess.run(
        [sys.executable, "-c", program, SCALE, "k.ptx"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1].strip() == "True", done.stderr
    help_ = [sys.executable, "-m", "ptx_emulator", "run", "--help"]
    done = subprocess.run(help_, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "usage: ptx-emulator run" in done.stdout, done.stderr


@pytest.mark.slow
def test_its_wheel_runs_where_there_is_numpy_alone(tmp_path):
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("needs a C++ compiler")

    def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    wanted = ["scikit-build-core>=0.10", "numpy>=2"]
    if pip("download", "--no-deps", "-d", str(tmp_path / "there"), *wanted).returncode:
        pytest.skip("pip finds no scikit-build-core or no numpy: there is no network, or no pip")
    # The sdist is built from the checkout, the wheel from the sdist alone.
    assert not pip("install", "--target", str(tmp_path / "backend"), wanted[0]).returncode
    made = "import sys; sys.path[:0] = sys.argv[1:3]; import backend; print(backend.build_sdist(sys.argv[3]))"
    command = [sys.executable, "-c", made, SOURCE, tmp_path / "backend", tmp_path]
    subprocess.run(command, cwd=SOURCE, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("ptx_emulator-*.tar.gz")
    built = pip("wheel", "--no-deps", "-w", str(tmp_path), str(sdist))
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("ptx_emulator-*-py3-none-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    installed = pip("--python", str(python), "install", "--find-links", str(tmp_path / "there"), str(wheel))
    assert installed.returncode == 0, installed.stderr
    (tmp_path / "k.ptx").write_text(SCALE)
    # No compiler, no cache and nothing of this environment.
    env = {"PATH": "", "HOME": str(tmp_path / "nowhere"), "LANG": os.environ.get("LANG", "C")}
    listed = "from importlib.metadata import distributions\nprint(*sorted(d.name for d in distributions()))\n"
    done = subprocess.run(
        [python, "-c", listed + PROGRAM, SCALE, "k.ptx"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert (first, last) == ("numpy ptx-emulator", "True False False")
    command = [
        tmp_path / "venv" / "bin" / "ptx-emulator",
        "run",
        "k.ptx",
        "zeros:float32:32",
        "--block",
        "64",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "out-of-bounds-global" in done.stdout, done.stderr
    subprocess.run([python, SOURCE / "smoke.py"], cwd=tmp_path, env=env, check=True)
