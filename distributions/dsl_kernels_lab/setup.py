"""Packages for setuptools: the sources are in the root of the checkout, or beside this file in an sdist."""

import re
import shutil
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
NAME, VERSION = "dsl_kernels_lab", "dsl_kernels/__init__.py"
ROOT = HERE if (HERE / NAME).is_dir() else HERE.parents[1]


class Sdist(sdist):
    """An sdist that holds the sources, and the file that has the version."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, [name for name in files if not name.startswith("..")])
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / NAME, Path(base_dir, NAME), ignore=ignored, dirs_exist_ok=True)
        Path(base_dir, VERSION).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / VERSION, Path(base_dir, VERSION))


version = re.search(r'^__version__ = "(.+)"$', (ROOT / VERSION).read_text(), re.MULTILINE)[1]
setup(
    version=version,
    install_requires=[f"dsl-kernels=={version}"],
    packages=find_namespace_packages(str(ROOT), include=[NAME, f"{NAME}.*"]),
    package_dir={NAME: NAME if ROOT == HERE else f"../../{NAME}"},
    cmdclass={"sdist": Sdist},
)
