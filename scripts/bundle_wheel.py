"""A wheel of compiled kernels: a bundle as a package, for a machine that has the base wheel and no compiler.

    python scripts/bundle_wheel.py BUNDLE [FOLDER]   # BUNDLE as `make aot` writes it; build/wheels by default

The wheel of sm_90a is `dsl_kernels_sm90a`. It requires the base wheel of the same version, whose sources its
kernels were built from. `dsl_kernels_sm90a.PATH` is the bundle:

    dsl_kernels.use_bundle(dsl_kernels_sm90a.PATH)
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from dsl_kernels import __version__  # noqa: E402
from dsl_kernels.errors import DslKernelError  # noqa: E402
from dsl_kernels.runtime import bundle  # noqa: E402

PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"
description = "Compiled kernels of dsl-kernels {version} for {arch}"
requires-python = ">=3.11"
license = "Apache-2.0"
license-files = ["LICENSE"]
dependencies = ["dsl-kernels=={version}"]

[tool.setuptools]
packages = ["{package}"]

[tool.setuptools.package-data]
"{package}" = ["bundle/**/*"]
"""
MODULE = '''"""Compiled kernels of dsl-kernels for {arch}: `dsl_kernels.use_bundle(PATH)`."""

from pathlib import Path

PATH = Path(__file__).resolve().parent / "bundle"
'''


def build(held: Path, target: Path) -> Path:
    """The wheel of a bundle.

    Raises:
        DslKernelError: there is no bundle, or a file of it is missing, damaged or of other sources.
        CalledProcessError: pip does not build the wheel.
    """
    found = bundle.open_bundle(held)
    arch = found.arch
    package = f"dsl_kernels_{arch.replace('_', '')}"
    with tempfile.TemporaryDirectory(prefix="bundle_wheel_") as folder:
        project = Path(folder) / "project"
        shutil.copytree(held, project / package / "bundle")
        said = {"name": package.replace("_", "-"), "package": package, "version": __version__, "arch": arch}
        (project / package / "__init__.py").write_text(MODULE.format(**said))
        (project / "pyproject.toml").write_text(PROJECT.format(**said))
        shutil.copy(ROOT / "LICENSE", project)
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
        made = Path(folder) / "wheel"
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", made, project], check=True)
        (wheel,) = made.glob("*.whl")
        target.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, target))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument(
        "folder", type=Path, nargs="?", default=ROOT / "build" / "wheels", help="where the wheel goes"
    )
    options = parser.parse_args()
    try:
        print(build(options.bundle, options.folder))
    except (DslKernelError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
