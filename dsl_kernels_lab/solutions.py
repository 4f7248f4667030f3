"""Solutions for flashinfer-bench and for FlashInfer's `trace_apply`: our ops under their definitions' names.

Both take the same JSON: a Solution names the definition that it implements and contains one source file,
which calls a function of `dsl_kernels.integrations.flashinfer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsl_kernels import __version__
from dsl_kernels.errors import UnknownNameError
from dsl_kernels.integrations import flashinfer

# Definitions of flashinfer-bench that our ops implement.
PUBLISHED = (
    "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64",
    "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps1",
    "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64",
)


# Pattern of definitions' names, the function that implements them, and whether outputs are arguments.
_FAMILIES: tuple[tuple[str, Callable[..., Any], bool], ...] = (
    (r"dsa_sparse_attention_h(8|16|32|64|128)_ckv512_kpe64_topk\d+_ps\d+", flashinfer.sparse_attention, True),
    (r"dsa_topk_indexer_fp8_h(32|64)_d128_topk\d+_ps64", flashinfer.topk_indexer, True),
    (r"top_k_varlen_n\d+_k\d+", flashinfer.top_k_varlen, False),
)


def solution(definition: str) -> dict[str, Any]:
    """The Solution of a definition, in the JSON of flashinfer-bench and FlashInfer.

    Args:
        definition: such as `dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64`.

    Raises:
        UnknownNameError: no op of ours implements it.
    """
    family = next((family for family in _FAMILIES if re.fullmatch(family[0], definition)), None)
    if family is None:
        raise UnknownNameError(
            "definition",
            expected=" or ".join(pattern for pattern, _, _ in _FAMILIES),
            got=definition,
            fix="name a definition of one of these families",
        )
    _, function, into = family
    summary = (function.__doc__ or "").splitlines()[0]
    return {
        "name": f"dsl_kernels_{definition}",
        "definition": definition,
        "author": "dsl_kernels",
        "description": f"{summary} Exact and deterministic; dsl_kernels {__version__}.",
        "spec": {
            "language": "python",
            "target_hardware": ["NVIDIA_H100", "NVIDIA_H200", "NVIDIA_B200"],
            "entry_point": "main.py::run",
            "dependencies": ["dsl-kernels"],
            "destination_passing_style": into,
        },
        "sources": [
            {"path": "main.py", "content": f"from {flashinfer.__name__} import {function.__name__} as run\n"}
        ],
    }


def write_solutions(folder: Path, definitions: tuple[str, ...] = PUBLISHED) -> list[Path]:
    """Write Solutions to `folder/solutions/<definition>.json`, the layout of `FLASHINFER_TRACE_APPLY_PATH`.

    Returns:
        The written files.

    Raises:
        UnknownNameError: no op of ours implements a definition; then nothing is written.
        OSError: the folder cannot be written.
    """
    made = {definition: json.dumps(solution(definition), indent=2) + "\n" for definition in definitions}
    target = folder / "solutions"
    target.mkdir(parents=True, exist_ok=True)
    files = [target / f"{definition}.json" for definition in made]
    for file, text in zip(files, made.values(), strict=True):
        file.write_text(text)
    return files
