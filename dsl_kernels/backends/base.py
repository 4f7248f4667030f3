"""What a backend is: one DSL that turns a generated module into PTX, a cubin and a launch description."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dsl_kernels.runtime.artifact import Artifact


class Backend(Protocol):
    """Lowers and compiles the generated modules of one DSL, on a machine that may have no GPU."""

    name: str

    def versions(self) -> dict[str, str]:
        """Versions that an artifact depends on (the DSL, the vendor's compiler); part of its cache key."""
        ...

    def sources(self) -> list[Path]:
        """Files besides the generated module that its text may import; part of the cache key."""
        ...

    def flags(self, arch: str, *, lineinfo: bool = True) -> list[str]:
        """Compiler flags that change the result, without paths of this machine; part of the cache key."""
        ...

    def compile_module(self, path: Path, arch: str, out_dir: Path, *, lineinfo: bool = True) -> Artifact:
        """Compile `path` and leave kernel.ptx, kernel.cubin, meta.json and build.json in `out_dir`."""
        ...
