"""Leaves of grouped-query attention in CuTe DSL: each has a text (dsl_kernels/device/text)."""

from ...device.cutedsl.scalars import ceildiv

__all__ = ["ceildiv"]
