"""The CUDA driver's calls other than a launch, with typed errors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dsl_kernels.arch import get_arch
from dsl_kernels.errors import ExecutorUnavailableError, LaunchError


class Driver:
    """The initialised driver bindings, and the primary contexts that this process retains."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver as api
        except ImportError as error:
            raise _unavailable(
                "the package cuda-bindings", str(error), "`pip install cuda-bindings`"
            ) from error
        self.api = api
        try:
            self.check(api.cuInit(0), "cuInit")
            self.devices: int = self.check(api.cuDeviceGetCount(), "cuDeviceGetCount")
        except (RuntimeError, LaunchError) as error:
            raise _unavailable(
                "an NVIDIA driver and a GPU", str(error), "run on a machine with a GPU, or another executor"
            ) from error
        self._contexts: dict[int, Any] = {}

    def check(self, result: tuple[Any, ...], what: str) -> Any:
        if result[0]:
            raise LaunchError(
                what,
                expected="success",
                got=self.describe(result[0]),
                fix="see the CUDA driver's error; `doctor` checks it",
            )
        return result[1] if len(result) == 2 else None

    def describe(self, result: Any) -> str:
        _, text = self.api.cuGetErrorString(result)
        return f"{result.name} ({text.decode() if text else 'no description'})"

    def primary_context(self, device: int) -> Any:
        """The context that torch and the runtime share on `device`; retained for the life of the process."""
        if device not in self._contexts:
            handle = self.check(self.api.cuDeviceGet(device), f"device {device}")
            self._contexts[device] = self.check(
                self.api.cuDevicePrimaryCtxRetain(handle), f"context of device {device}"
            )
        return self._contexts[device]

    def enter_any_context(self) -> int:
        """Device of this thread's context; a thread without one gets that of device 0."""
        context = self.check(self.api.cuCtxGetCurrent(), "cuCtxGetCurrent")
        if not int(context):
            self.check(self.api.cuCtxSetCurrent(self.primary_context(0)), "cuCtxSetCurrent")
        return int(self.check(self.api.cuCtxGetDevice(), "cuCtxGetDevice"))

    def current(self, context: Any) -> _Current:
        return _Current(self, context)

    def require_arch(self, device: int, arch: str, variant: str) -> None:
        handle = self.check(self.api.cuDeviceGet(device), f"device {device}")
        kinds = self.api.CUdevice_attribute
        major, minor = (
            self.check(self.api.cuDeviceGetAttribute(kind, handle), "compute capability")
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        if get_arch(arch).compute_capability != (major, minor):
            raise _unavailable(
                f"a GPU of {arch} for {variant}",
                f"compute capability {major}.{minor}",
                "compile or select a variant for this GPU",
            )


class _Current:
    """Make a context current for a block, and restore the previous one afterwards."""

    def __init__(self, driver: Driver, context: Any) -> None:
        self._driver, self._context = driver, context

    def __enter__(self) -> None:
        self._driver.check(self._driver.api.cuCtxPushCurrent(self._context), "cuCtxPushCurrent")

    def __exit__(self, *_: object) -> None:
        self._driver.check(self._driver.api.cuCtxPopCurrent(), "cuCtxPopCurrent")


@lru_cache(maxsize=1)
def get_driver() -> Driver:
    """The driver of this process.

    Raises:
        ExecutorUnavailableError: no bindings, no driver or no GPU.
    """
    return Driver()


def capture_id(stream: int) -> int:
    """The id of the capture that `stream` takes part in, unique in the process.

    Raises:
        LaunchError: the driver does not answer.
    """
    driver = get_driver()
    status, *rest = driver.api.cuStreamGetCaptureInfo(stream)
    driver.check((status,), "cuStreamGetCaptureInfo")
    return int(rest[1])


def _unavailable(expected: str, got: str, fix: str) -> ExecutorUnavailableError:
    return ExecutorUnavailableError("executor cuda", expected=expected, got=got, fix=fix)
