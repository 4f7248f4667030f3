"""The build backend: scikit-build-core, and an sdist that holds the package."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = "ptx_emulator"


def build_sdist(sdist_directory: str, config_settings: dict | None = None) -> str:
    """An sdist of this folder with the package and the licence, so that a wheel builds without a checkout."""
    if (HERE / PACKAGE).is_dir():  # of an sdist
        return _build.build_sdist(sdist_directory, config_settings)
    target, here = os.path.abspath(sdist_directory), os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder) / HERE.name
        shutil.copytree(HERE, stage, ignore=shutil.ignore_patterns("__pycache__", "build", "dist"))
        shutil.copytree(ROOT / PACKAGE, stage / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(ROOT / "LICENSE", stage)
        os.chdir(stage)
        try:
            return _build.build_sdist(target, config_settings)
        finally:
            os.chdir(here)
