"""Unpack the kernels of a vLLM wheel as a small package `vllm`: python scripts/lean_vllm.py WHEEL FOLDER.

With FOLDER in PYTHONPATH, `bench --record` and benchmarks/topk_exactness.py find vLLM's top-k, DeepSelect,
FlashMLA, DeepGEMM and FlashAttention 3 without the engine and its dependencies, beside any torch whose stable
ABI these libraries accept. Engine modules that the kept files import are replaced by empty ones, so the rest
of vLLM does not run from FOLDER.
"""

from __future__ import annotations

import fnmatch
import re
import zipfile
from pathlib import Path
from typing import Annotated

import typer

KEPT = (
    "vllm/_C_stable_libtorch.*", "vllm/_deepselect_C.*", "vllm/_flashmla_C.*", "vllm/third_party/flashmla/*",
    "vllm/third_party/deep_gemm/*", "vllm/vllm_flash_attn/*.py", "vllm/vllm_flash_attn/_vllm_fa3_C.*",
    "vllm/model_executor/layers/indexer_topk.py", "vllm-*.dist-info/METADATA",
)  # fmt: skip
WITHOUT = tuple(f"vllm/vllm_flash_attn/{each}/*" for each in ("cute", "layers", "ops"))

CUSTOM_OPS = '''"""Registers `torch.ops._C`."""

from pathlib import Path

import torch

(library,) = Path(__file__).parent.glob("_C_stable_libtorch*.so")
torch.ops.load_library(str(library))
'''
PLATFORM = """import torch


class current_platform:
    @staticmethod
    def has_device_capability(capability):
        major, minor = torch.cuda.get_device_capability()
        return major * 10 + minor >= capability

    @staticmethod
    def is_device_capability_family(family):
        return torch.cuda.get_device_capability()[0] == family // 10
"""
STOOD_IN = {
    "vllm/_custom_ops.py": CUSTOM_OPS,
    "vllm/platforms.py": PLATFORM,
    "vllm/config.py": "get_current_vllm_config = None\n",
    "vllm/utils/flashinfer.py": "has_flashinfer = None\n",
    "vllm/v1/worker/workspace.py": "current_workspace_manager = None\n",
}
"""Replacements for engine modules that the kept files import, with the names that they import."""


def unpack(wheel: Path, folder: Path) -> list[str]:
    """Write the small package; returns the files that came from the wheel.

    Raises:
        typer.BadParameter: the file is not a wheel of vLLM for CUDA.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if _is_kept(name)]
            if not any(re.match(r"vllm/_C_stable_libtorch.*\.so$", name) for name in names):
                raise typer.BadParameter(
                    f"{wheel}: expected a wheel of vLLM for CUDA, which holds vllm/_C_stable_libtorch*.so"
                )
            archive.extractall(folder, names)
    except (OSError, zipfile.BadZipFile) as error:
        raise typer.BadParameter(f"{wheel}: {error}") from error
    for name, text in STOOD_IN.items():
        _write(folder / name, text)
    for path in sorted((folder / "vllm").rglob("*.py")):
        for parent in path.relative_to(folder).parents[:-1]:
            if not (folder / parent / "__init__.py").exists():
                _write(folder / parent / "__init__.py", "")
    return names


def _is_kept(name: str) -> bool:
    kept, without = (any(fnmatch.fnmatch(name, each) for each in of) for of in (KEPT, WITHOUT))
    return kept and not without


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main(
    wheel: Annotated[
        Path, typer.Argument(help="A wheel of vLLM for CUDA, as `pip download --no-deps vllm` leaves it.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where to write the package `vllm`.")],
) -> None:
    """Unpack the kernels of a wheel."""
    names = unpack(wheel, folder)
    typer.echo(f"{len(names)} files; run with PYTHONPATH={folder}")


if __name__ == "__main__":
    typer.run(main)
