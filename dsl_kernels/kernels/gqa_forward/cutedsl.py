"""CuTe DSL's functions for the leaves of grouped-query attention. Every leaf has a text."""

from ...device.cutedsl.scalars import ceildiv

__all__ = ["ceildiv"]
