"""The library beside the emulator's package: its errors, and the tables that both have."""

from __future__ import annotations

import pickle

import pytest

from dsl_kernels import arch, dtypes
from dsl_kernels.emulated import as_library_error, library_errors
from dsl_kernels.errors import DslKernelError
from ptx_emulator import PtxEmulatorError, arguments, errors
from ptx_emulator.script import device
from ptx_emulator.script.errors import UnsupportedCall

PARTS = {"expected": "a", "got": "b", "fix": "c"}
ERRORS = (
    errors.EmulatorError("[race] warp 2 stores what warp 1 stored"),
    errors.LaunchError("a launch", fix="another"),
    errors.BuildError("no compiler"),
    errors.CacheError("a folder", code="CACHE_UNTRUSTED", **PARTS),
    errors.UnsupportedArchError("arch", **PARTS),
    UnsupportedCall("a call", fix="leave it out"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_emulators_errors_are_the_librarys_where_it_runs_the_emulator(error: PtxEmulatorError) -> None:
    error = pickle.loads(pickle.dumps(error))
    kind, text = type(error), str(error)
    assert not issubclass(kind, DslKernelError)
    with pytest.raises(DslKernelError) as caught, library_errors():
        raise error
    again = pickle.loads(pickle.dumps(caught.value))
    for one in (caught.value, again, as_library_error(again)):
        assert (
            isinstance(one, kind) and isinstance(one, DslKernelError) and type(one).__name__ == kind.__name__
        )
        assert str(one) == text and (one.code, one.fix) == (error.code, error.fix)
        assert str(one.at("k.py:3")).startswith("k.py:3: error[")
    assert caught.value is error


@pytest.mark.parametrize("error", [ValueError("a value"), DslKernelError("x", **PARTS)], ids=type)
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    kind = type(error)
    with pytest.raises(kind) as caught, library_errors():
        raise error
    assert type(caught.value) is kind


def test_both_packages_say_the_same_of_an_architecture() -> None:
    assert device.ARCHS.keys() == arch.ARCHS.keys()
    for name, row in device.ARCHS.items():
        assert {key: getattr(arch.ARCHS[name], key) for key in vars(row)} == vars(row)
    assert arch.RESERVED_SMEM == device.SMEM_RESERVED


def test_both_packages_name_element_types_alike() -> None:
    assert {dtype.torch_name: dtype.ptx for dtype in dtypes.DTYPES.values()} == arguments._TYPES
