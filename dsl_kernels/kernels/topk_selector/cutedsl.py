"""CuTe DSL's functions for the leaves of the exact top-k selection, all of which have a text."""

from cutlass import Int32

from ...device.cutedsl.scalars import ceildiv

__all__ = ["ceildiv", "past16"]


def past16(place):
    return (Int32(place.toint()) & 15) // (place.dtype.width // 8)
