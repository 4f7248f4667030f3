"""Leaves of the exact top-k selection in CuTe DSL: each has a text (dsl_kernels/device/text), which asks for this."""

from cutlass import Int32

from ...device.cutedsl.scalars import ceildiv

__all__ = ["ceildiv", "past16"]


def past16(place):
    return (Int32(place.toint()) & 15) // (place.dtype.width // 8)
