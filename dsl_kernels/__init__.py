"""Sparse-attention kernels, declared once and lowered to several DSLs and architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import dsa, ops, registry
    from .prepare import warmup
    from .runtime.bundle import use as use_bundle

__all__ = ["__version__", "dsa", "ops", "registry", "use_bundle", "warmup"]


def __getattr__(name: str) -> Any:
    """Import public modules when they are first used: `import dsl_kernels` itself loads nothing."""
    import importlib

    if name in ("dsa", "ops", "registry"):
        return importlib.import_module(f"{__name__}.{name}")
    if name == "warmup":
        return importlib.import_module(f"{__name__}.prepare").warmup
    if name == "use_bundle":
        return importlib.import_module(f"{__name__}.runtime.bundle").use
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
