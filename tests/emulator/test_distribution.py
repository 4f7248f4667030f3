"""The emulator as a distribution of its own: what it is made of imports numpy alone, and its wheel runs by itself."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsl_kernels.emulator import build

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
else:
    raise SystemExit("an access out of bounds was not seen")
import ptx_emulator.emulator.script  # what it checks programs with is imported where they use it
print(ptx_emulator.emulator.build.PREBUILT.is_file(), "dsl_kernels" in sys.modules, "torch" in sys.modules)
"""


def test_its_core_has_the_flags_of_the_librarys():
    (options,) = re.findall(r"target_compile_options\(core PRIVATE ([^)]*)\)", LIST)
    assert tuple(options.split()) == build.FLAGS


def test_what_it_is_made_of_imports_numpy_alone(tmp_path):
    package = tmp_path / "ptx_emulator"
    ignore = shutil.ignore_patterns("*.cpp", "*.hpp", "*.h", "__pycache__")
    shutil.copytree(ROOT / "dsl_kernels" / "emulator", package / "emulator", ignore=ignore)
    for name in re.findall(r'"\$\{LIBRARY\}/([\w/]+\.(?:py|h))"', LIST):
        (package / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "dsl_kernels" / name, package / name)
    shutil.copy(SOURCE / "__init__.py", package)
    shutil.copy(build.library_path(), package / "emulator" / build.PREBUILT.name)
    absent = "import sys\nsys.modules.update(dict.fromkeys(('dsl_kernels', 'torch', 'filelock', 'platformdirs')))\n"
    program = absent + PROGRAM.replace('"dsl_kernels" in sys.modules, "torch" in sys.modules', "")
    done = subprocess.run(
        [sys.executable, "-c", program, SCALE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.split() == ["True"], done.stderr


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
    built = pip("wheel", "--no-deps", "-w", str(tmp_path), str(SOURCE))
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("ptx_emulator-*-py3-none-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    installed = pip("--python", str(python), "install", "--find-links", str(tmp_path / "there"), str(wheel))
    assert installed.returncode == 0, installed.stderr
    # No compiler, no cache and nothing of this environment.
    env = {"PATH": "", "HOME": str(tmp_path / "nowhere"), "LANG": os.environ.get("LANG", "C")}
    listed = "from importlib.metadata import distributions\nprint(*sorted(d.name for d in distributions()))\n"
    done = subprocess.run(
        [python, "-c", listed + PROGRAM, SCALE],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["numpy ptx-emulator", "True False False"]
