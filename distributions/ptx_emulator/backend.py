"""The build backend: scikit-build-core, and an sdist that holds sources of the library."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parents[1] / "dsl_kernels"
# What CMakeLists.txt takes from the library, and the file that has the version.
TAKEN = (
    "__init__.py", "typed_error.py", "arguments.py", "dtypes.py", "arch.py", "py.typed", "emulator",
    "runtime/__init__.py", "runtime/toolkit.py",
)  # fmt: skip


def build_sdist(sdist_directory: str, config_settings: dict | None = None) -> str:
    """The sources of this folder and of the library, so that a wheel builds without a checkout."""
    if (HERE / "dsl_kernels").is_dir():  # of an sdist
        return _build.build_sdist(sdist_directory, config_settings)
    target, here = os.path.abspath(sdist_directory), os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder) / HERE.name
        shutil.copytree(HERE, stage, ignore=shutil.ignore_patterns("__pycache__", "build", "dist"))
        for name in TAKEN:
            to = stage / "dsl_kernels" / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if (LIBRARY / name).is_dir():
                shutil.copytree(LIBRARY / name, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(LIBRARY / name, to)
        shutil.copy2(LIBRARY.parent / "LICENSE", stage)
        settings = stage / "pyproject.toml"
        settings.write_text(settings.read_text().replace("../../dsl_kernels/", "dsl_kernels/"))
        os.chdir(stage)
        try:
            return _build.build_sdist(target, config_settings)
        finally:
            os.chdir(here)
