"""What an id tensor asks of memory: counted, not measured, before a kernel is blamed for its gather."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsl_kernels._discover import later
from dsl_kernels.arguments import integer, require_known, shown
from dsl_kernels.errors import ArgumentTypeError, ArtifactError, InvalidArgumentError, ToolchainError

from .model import SCHEMA

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())


@dataclass(frozen=True)
class IdData:
    """Figures of ids [rows, k]; negative ids are padding.

    Attributes:
        valid: share of the ids that name a token.
        distinct: different tokens among all valid ids.
        reuse: valid ids per distinct token; at 1 no token is asked for twice, so no cache can help.
        repeated: share of the valid ids that repeat another of their row.
        ascending: share of adjacent pairs of valid ids that ascend: 1 in sorted rows, 1/2 in random ones.
        run: mean length of runs of consecutive tokens in order.
        pages: mean number of different pages that a row touches.
        page_tokens: mean number of a row's distinct tokens on each page that it touches; a page has `page`
            tokens.
        shared_next: share of a row's tokens that the next row asks for too.
        unique_bytes, read_bytes: bytes of the distinct tokens, and of all valid ids.
        shortest, longest: fewest and most valid ids in a row.
    """

    rows: int
    k: int
    valid: float
    distinct: int
    reuse: float
    repeated: float
    ascending: float
    run: float
    pages: float
    page_tokens: float
    page: int
    shared_next: float
    row_bytes: int
    unique_bytes: int
    read_bytes: int
    shortest: int
    longest: int
    schema: int = SCHEMA


def describe_ids(ids: torch.Tensor, page: int = 64, row_bytes: int = 1152) -> IdData:
    """Count what ids [rows, k] of any integer dtype ask for.

    Args:
        page: tokens in a page.
        row_bytes: bytes of a token's row; 1152 is bf16 with rope, 656 the fp8 row.

    Raises:
        ArgumentTypeError: `ids` is not a tensor of integers.
        InvalidArgumentError: it does not have two axes, or is empty.
    """
    page, row_bytes = integer("page", page, 1), integer("row_bytes", row_bytes, 1)
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or ids.is_complex():
        raise ArgumentTypeError("ids", expected="a tensor of integers", got=shown(ids), fix="pass token ids")
    if ids.dim() != 2 or not ids.numel():
        raise InvalidArgumentError(
            "ids",
            expected="[rows, k] with an id at least",
            got=f"shape {tuple(ids.shape)}",
            fix="reshape them",
        )
    ids = ids.detach().cpu().long()
    named = ids >= 0
    counts = named.sum(1)
    chosen = [row[keep] for row, keep in zip(ids, named, strict=True)]
    valid = int(counts.sum())
    sets = [row.unique() for row in chosen]
    distinct = int(ids[named].unique().numel())
    steps = [row.diff() for row in chosen]
    pairs = sum(step.numel() for step in steps)
    ascending = sum(int((step > 0).sum()) for step in steps)
    broken = sum(int((step != 1).sum()) for step in steps) + sum(row.numel() > 0 for row in chosen)
    pages = [(own // page).unique().numel() for own in sets]
    both = sum(int(torch.isin(a, b).sum()) for a, b in pairwise(sets))
    first = sum(own.numel() for own in sets[:-1])
    some = [count for count in pages if count]
    return IdData(
        rows=ids.shape[0],
        k=ids.shape[1],
        valid=valid / ids.numel(),
        distinct=distinct,
        reuse=valid / distinct if distinct else 0.0,
        repeated=1 - sum(own.numel() for own in sets) / valid if valid else 0.0,
        ascending=ascending / pairs if pairs else 1.0,
        run=valid / broken if broken else 0.0,
        pages=sum(some) / len(some) if some else 0.0,
        page_tokens=sum(own.numel() for own in sets) / sum(some) if some else 0.0,
        page=page,
        shared_next=both / first if first else 0.0,
        row_bytes=row_bytes,
        unique_bytes=distinct * row_bytes,
        read_bytes=valid * row_bytes,
        shortest=int(counts.min()),
        longest=int(counts.max()),
    )


def read_ids(path: Path, name: str | None = None) -> torch.Tensor:
    """Ids in a safetensors or .npy file.

    Args:
        name: the tensor in a safetensors file; by default its only tensor of integers with two axes.

    Raises:
        ArtifactError: no such file, a damaged one, or one of another format.
        InvalidArgumentError: the file has no such tensor, or several candidates.
        ToolchainError: safetensors is not installed.
    """
    if path.suffix == ".npy":
        import numpy

        try:
            return torch.from_numpy(numpy.load(path, allow_pickle=False))
        except (OSError, ValueError, TypeError) as error:
            raise ArtifactError(
                str(path), expected="ids in a .npy file", got=str(error)[:200], fix="write it with numpy.save"
            ) from error
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ToolchainError(
            "safetensors",
            expected="it",
            got="not installed",
            fix="pip install safetensors, or pass a .npy file",
        ) from None
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            tensors: dict[str, Any] = {
                str(key): file.get_tensor(key) for key in ([name] if name in names else names)
            }
    except (OSError, SafetensorError) as error:
        raise ArtifactError(
            str(path),
            expected="a safetensors file",
            got=str(error)[:200],
            fix="write it with safetensors.torch",
        ) from error
    if name is not None:
        require_known("--tensor", name, tensors, "tensor")
        return tensors[name]
    ids = [key for key, value in tensors.items() if value.dim() == 2 and not value.is_floating_point()]
    if len(ids) != 1:
        raise InvalidArgumentError(
            "--tensor",
            expected="one tensor of integers with two axes",
            got=", ".join(ids) or "none",
            fix="name it",
        )
    return tensors[ids[0]]
