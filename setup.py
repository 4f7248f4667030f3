"""Packages for setuptools: the wheel has the emulator too, and generated/ as dsl_kernels.generated."""

from setuptools import find_namespace_packages, setup

NAMES = ("dsl_kernels", "ptx_emulator")
found = find_namespace_packages(include=[pattern for name in NAMES for pattern in (name, f"{name}.*")])
setup(packages=[*found, "dsl_kernels.generated"])
