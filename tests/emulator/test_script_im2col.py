"""cuTensorMapEncodeIm2col as a checked program calls it, by ctypes and by cuda.bindings."""

import ctypes

import numpy as np
import pytest

from ptx_emulator import Descriptor, LaunchError
from ptx_emulator.script import emulated

from .test_script import library


def im2col_arguments():
    """A map over images of 2 x 5 x 6 pixels of 64 channels, and the driver call's arguments except arrays."""
    x = np.arange(2 * 5 * 6 * 64, dtype=np.uint16).reshape(2, 5, 6, 64)
    dims, strides = tuple(reversed(x.shape)), tuple(reversed(x.strides))[1:]
    return x, (1, 4), (dims, strides, (-1, 0), (0, -1)), (8, 12), (1, 2, 1, 1)


def test_im2col_maps_of_the_drivers_call():
    x, (kind, rank), (dims, strides, lower, upper), (channels, pixels), steps = im2col_arguments()
    u64, u32, i32 = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int
    with emulated():
        cuda = library()
        holder = ctypes.create_string_buffer(256)
        at = -(-ctypes.addressof(holder) // 64) * 64
        arrays = [(u64 * 4)(*dims), (u64 * 3)(*strides), (i32 * 2)(*lower), (i32 * 2)(*upper)]
        call = [kind, rank, ctypes.c_void_p(x.ctypes.data), *arrays, channels, pixels, (u32 * 4)(*steps)]
        assert not cuda.cuTensorMapEncodeIm2col(at, *call, 0, 0, 0, 0)
        decoded = Descriptor.decode(ctypes.string_at(at, 128))
        assert decoded == Descriptor(
            x.ctypes.data, kind, dims, strides, (8, 12), steps, lower=lower, upper=upper
        )
        with pytest.raises(LaunchError, match="1 to 1024 pixels"):
            cuda.cuTensorMapEncodeIm2col(at, *call[:8], 1025, call[9], 0, 0, 0, 0)
        assert cuda.cuTensorMapEncodeIm2col(at, 1, 2, *call[2:], 0, 0, 0, 0) == 1


def test_im2col_maps_of_cuda_python():
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    x, (kind, rank), (dims, strides, lower, upper), (channels, pixels), steps = im2col_arguments()
    with emulated():
        call = [
            driver.CUtensorMapDataType(kind),
            rank,
            x.ctypes.data,
            dims,
            strides,
            lower,
            upper,
            channels,
            pixels,
            steps,
        ]
        modes = [
            driver.CUtensorMapInterleave(0),
            driver.CUtensorMapSwizzle(0),
            driver.CUtensorMapL2promotion(0),
            driver.CUtensorMapFloatOOBfill(0),
        ]
        error, made = driver.cuTensorMapEncodeIm2col(*call, *modes)
        assert int(error) == 0
        decoded = Descriptor.decode(ctypes.string_at(int(made.getPtr()), 128))
        assert (
            decoded is not None
            and decoded.lower == lower
            and decoded.box == (8, 12)
            and decoded.element_strides == steps
        )
