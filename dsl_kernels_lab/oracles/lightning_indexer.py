"""What decides whether scores are right, as the problem declares it."""

from __future__ import annotations

from dsl_kernels.kernels.lightning_indexer.problem import PROBLEM

ORACLE = PROBLEM
