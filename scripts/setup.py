"""Create the virtual environment and install the locked dependencies; run with any Python 3.11 or 3.12.

torch is installed before TileLang, whose unpinned requirement would otherwise pull another build. Where nvcc is not
installed, the CUDA compiler comes from its Python wheels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        found = ".".join(map(str, sys.version_info[:3]))
        print(
            f"error: expected Python 3.11 or 3.12, got {found}. Fix: make PYTHON=python3.11 generate",
            file=sys.stderr,
        )
        return 1
    if shutil.which("c++") is None and shutil.which("g++") is None:
        print(
            "error: expected a C++ compiler (c++ or g++), found none. Fix: install g++ and run make again",
            file=sys.stderr,
        )
        return 1
    target = Path(sys.argv[1])
    if not (target / "bin" / "python").exists():
        venv.create(target, with_pip=True)
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lock = ROOT / "requirements.lock"
    torch = next(line for line in lock.read_text().splitlines() if line.startswith("torch=="))
    subprocess.run([*pip, torch], check=True)
    subprocess.run([*pip, "-r", str(lock)], check=True)
    if shutil.which("nvcc") is None and not os.environ.get("CUDA_HOME"):
        subprocess.run([*pip, "-r", str(ROOT / "requirements-toolkit.lock")], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
