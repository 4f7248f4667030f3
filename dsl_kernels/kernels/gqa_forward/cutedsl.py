"""CuTe DSL's functions for the leaves of grouped-query attention. Every leaf has a text."""

import cutlass.cute as cute

from ...device.cutedsl.scalars import ceildiv

__all__ = ["ceildiv", "keep_order"]


def keep_order():
    """An event that nothing counts: ptxas moves arithmetic past a wait for products, but not past this."""
    cute.arch.inline_ptx("pmevent 0;")
