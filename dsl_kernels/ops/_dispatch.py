"""Tells plain calls from those that torch's dispatcher has to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import InvalidArgumentError

is_compiling = torch.compiler.is_compiling
dispatch_modes = torch._C._len_torch_dispatch_stack
function_modes = torch._C._len_torch_function_stack
transform = torch._C._functorch.peek_interpreter_stack
AT_ONCE = "is_compiling() or dispatch_modes() or function_modes() or transform() is not None"
"""Tested before `watched` is called, as that call would cost every op a tenth of a microsecond."""


class Unaddressed(InvalidArgumentError):
    """An operand whose address cannot be read: a fake, distributed or otherwise wrapped tensor."""


def watched() -> bool:
    """Whether a call has to pass torch's dispatcher: a graph is traced, or a mode is active.

    A default device is a mode too, but does not count: the ops make tensors with an explicit device.

    Raises:
        InvalidArgumentError: the call is within a transform of `torch.func`.
    """
    if is_compiling() or dispatch_modes():
        return True
    if transform() is not None:
        raise InvalidArgumentError(
            "the call",
            expected="no transform of torch.func around it: an op has no derivative and no batching rule",
            got=f"a call within torch.func.{transform().key().name.lower()}",
            fix="call the op outside of the transform; batches are a dimension of its operands",
        )
    count = function_modes()
    return bool(count) and any(
        not isinstance(torch._C._get_function_stack_at(i), DeviceContext) for i in range(count)
    )


def dispatched(value: object) -> bool:
    """Whether a value is a tensor of a class that defines operations itself (`__torch_dispatch__`)."""
    return (
        isinstance(value, torch.Tensor)
        and type(value).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
    )


@contextmanager
def of_its_own() -> Iterator[None]:
    """Make tensors as in a process without modes: kept tensors must not be of the caller's kind."""
    with torch.inference_mode(False), torch._C.DisableTorchFunction(), _disable_current_modes():
        yield
