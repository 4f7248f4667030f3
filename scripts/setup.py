"""Create the virtual environment and install the locked dependencies; run with any Python 3.11 or 3.12.

Every package is installed by the hashes of its lock file. The lock files are complete, so pip resolves
nothing. Only torch may differ: PyPI's build and its CUDA libraries are checked by hashes too, but a build
that pip is set up to prefer (`2.13.0+cpu` from another index or folder) has no recorded hash and is installed
by version. If nvcc is not installed, the CUDA compiler comes from its Python wheels.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = (ROOT, ROOT / "distributions" / "dsl_kernels_lab")
"""The library and its laboratory, which are installed as they lie in the checkout."""


def main() -> int:
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        version = ".".join(map(str, sys.version_info[:3]))
        print(
            f"error: expected Python 3.11 or 3.12, got {version}. Fix: make PYTHON=python3.11 generate",
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
    try:
        install_torch(pip)
        install_locked(pip, "requirements.lock")
        if shutil.which("nvcc") is None and not os.environ.get("CUDA_HOME"):
            install_locked(pip, "requirements-toolkit.lock")
        editable = [word for path in PROJECTS for word in ("-e", str(path))]
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", *editable], check=True)
    except subprocess.CalledProcessError as error:
        print(
            f"error: expected pip to install, got exit status {error.returncode}. Fix: as pip says above, "
            f"delete {target} and run make again",
            file=sys.stderr,
        )
        return 1
    return 0


def install_torch(pip: list[str]) -> None:
    """Install the locked version of torch, by its hashes unless pip is set up to prefer another build."""
    lines = (ROOT / "requirements-torch.lock").read_text().splitlines()
    wanted = next(line.split()[0] for line in lines if line.startswith("torch=="))
    asked = [*pip, "--dry-run", "--no-deps", "--report", "-", wanted]
    report = json.loads(subprocess.run(asked, check=True, stdout=subprocess.PIPE).stdout)
    for item in report["install"]:
        version = item["metadata"]["version"]
        if "+" in version:
            print(f"torch {version} is the build that pip is set up to prefer: installed without a hash")
            subprocess.run([*pip, "--no-deps", f"torch=={version}"], check=True)
        else:
            install_locked(pip, "requirements-torch.lock")


def install_locked(pip: list[str], lock: str) -> None:
    """Install exactly what a lock file lists, each file checked by its hash."""
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(ROOT / lock)], check=True)


if __name__ == "__main__":
    sys.exit(main())
