"""Other libraries' functions, with their signatures and meaning, on top of this library's ops.

Each module's docstring says what it serves of its library, argument by argument; the rest is refused with a
typed error. `patch` replaces a library's functions, for code that imports the library by name.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import sys
from types import ModuleType

from ..arguments import require_known

# The module, or namespace of torch's ops, whose functions each module of this package has.
LIBRARIES = {
    "flash_mla": "flash_mla",
    "deep_gemm": "deep_gemm",
    "vllm_topk": "torch.ops._C",
    "sgl_topk": "sgl_kernel",
}


def patch(*names: str, max_logits: bool = True) -> dict[str, ModuleType]:
    """Replace the functions of other libraries with those of this package; a missing library is made.

    Args:
        names: names of `LIBRARIES`; all of them by default.
        max_logits: whether FlashMLA's prefill also computes the largest logits, which doubles its time. With
            False it returns None for them, for an engine that drops them anyway.

    Returns:
        The patched modules by the names of their libraries.

    Raises:
        UnknownNameError: a name not in `LIBRARIES`; the error lists similar ones.
    """
    patched: dict[str, ModuleType] = {}
    for name in names or LIBRARIES:
        require_known("module of dsl_kernels.compat", name, LIBRARIES, "module")
        ours, library = importlib.import_module(f"{__name__}.{name}"), LIBRARIES[name]
        try:
            theirs = pkgutil.resolve_name(library)
        except ImportError:
            theirs = sys.modules[library] = ModuleType(library, ours.__doc__)
        for name_of_function in ours.__all__:
            function = getattr(ours, name_of_function)
            if not max_logits and "max_logits" in inspect.signature(function).parameters:
                function = functools.partial(function, max_logits=False)
            setattr(theirs, name_of_function, function)
        patched[library] = theirs
    return patched
