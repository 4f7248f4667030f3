"""Packages for setuptools: the wheel has generated/ as dsl_kernels.generated; pyproject.toml has the rest."""

from setuptools import find_namespace_packages, setup

setup(packages=[*find_namespace_packages(include=["dsl_kernels", "dsl_kernels.*"]), "dsl_kernels.generated"])
