"""Packages for setuptools: generated/ travels in the wheel as dsl_kernels.generated; the rest is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

setup(packages=[*find_namespace_packages(include=["dsl_kernels*"]), "dsl_kernels.generated"])
