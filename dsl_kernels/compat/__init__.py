"""Other libraries' functions over the ops of this one, with their signatures and meaning.

Each module says in its docstring what of its library it serves, argument by argument, and refuses the rest by a typed
error. `patch` puts the functions in the place of a library's own, for code that imports it by name.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import sys
from types import ModuleType

from ..arguments import require_known

LIBRARIES = {
    "flash_mla": "flash_mla",
    "deep_gemm": "deep_gemm",
    "vllm_topk": "torch.ops._C",
    "sgl_topk": "sgl_kernel",
}
"""Modules of this package, and the module (or namespace of torch's ops) whose functions each has."""


def patch(*names: str, max_logits: bool = True) -> dict[str, ModuleType]:
    """Put the functions of modules of this package in the place of their libraries'; where a library is not installed, a module.

    Args:
        names: names of `LIBRARIES`; all of them by default.
        max_logits: whether FlashMLA's prefill works out the largest logits, which takes about as long again; False for an engine
            that drops them, and then finds None.

    Returns:
        The libraries' modules by name, as they are now.

    Raises:
        UnknownNameError: a name that is not among these; lists the near misses.
    """
    found: dict[str, ModuleType] = {}
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
        found[library] = theirs
    return found
