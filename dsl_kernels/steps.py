"""A DSA step as data: its sizes, its inputs (drawn or read from a workload file), its run and its check.

A workload file is a safetensors file whose tensors carry the argument names of `dsl_kernels.dsa.decode` or
`prefill`. Tensors it lacks are drawn at random: `seq_lens` and `block_table` alone are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from . import dsa, ops, registry
from .errors import InvalidArgumentError, ToolchainError, UnknownNameError, did_you_mean
from .problems.base import Comparison
from .problems.layouts import (
    FP8_TOKEN_BYTES,
    INDEX_DIM,
    LATENT_DIM,
    ROPE_DIM,
    pack_fp8_tokens,
    pack_index_keys,
    unpack_index_keys,
)
from .problems.lightning_indexer import PAGE
from .problems.sparse_mla import DATASET_SM_SCALE

KINDS = ("decode", "prefill")
HEADS = (8, 16, 32, 64, 128)
INDEX_HEADS = (32, 64)
CACHES = ("bf16", "joined", "fp8")
FORMAT = "dsl_kernels.step"

ARGUMENTS = {
    "decode": (
        "q_index",
        "k_index_cache",
        "weights",
        "seq_lens",
        "block_table",
        "q_nope",
        "q_pe",
        "kv",
        "kpe",
        "attn_sink",
    ),
    "prefill": (
        "q_index",
        "k_index",
        "k_index_scales",
        "weights",
        "k_start",
        "k_end",
        "q_nope",
        "q_pe",
        "kv",
        "kpe",
        "attn_sink",
    ),
}
# What a workload file must hold: the rest follows from it or is drawn.
REQUIRED = {"decode": ("seq_lens", "block_table"), "prefill": ("k_start", "k_end")}


@dataclass(frozen=True)
class StepSize:
    """Sizes of a step.

    Attributes:
        batch: sequences of a decode step.
        rows: query rows of a prefill step.
        context: tokens of the longest sequence, or keys of a prefill step.
        kv: "bf16" (two tensors), "joined" (one 576-wide row) or "fp8" (656-byte tokens).
        next_n: queries a sequence.
        pages: pages of the cache; 0 gives as many as the sequences need.
        ragged: halve the length from sequence to sequence and end with a padded row of length 0.
    """

    kind: str = "decode"
    batch: int = 1
    rows: int = 64
    context: int = 4096
    heads: int = 16
    index_heads: int = 64
    topk: int = 2048
    kv: str = "bf16"
    next_n: int = 1
    pages: int = 0
    ragged: bool = False

    def validate(self) -> StepSize:
        """This size, if every field is one that the step accepts.

        Raises:
            InvalidArgumentError: names the field.
        """
        for name, known in (("kind", KINDS), ("heads", HEADS), ("index_heads", INDEX_HEADS), ("kv", CACHES)):
            value = getattr(self, name)
            if value not in known:
                raise _bad(name, "one of " + ", ".join(map(str, known)), repr(value), "pass one of these")
        for name, low, high in (
            ("batch", 1, 1 << 16),
            ("rows", 1, 1 << 20),
            ("context", 1, 1 << 24),
            ("next_n", 1, 8),
        ):
            if not low <= getattr(self, name) <= high:
                raise _bad(name, f"{low} to {high}", str(getattr(self, name)), "choose a size in that range")
        if self.topk % 64 or not 64 <= self.topk <= 2048:
            raise _bad(
                "topk", "a multiple of 64 from 64 to 2048", str(self.topk), "round it up; spare slots are -1"
            )
        if self.kind == "decode" and self.pages and self.pages < self.pages_per_sequence:
            raise _bad(
                "pages",
                f"at least the {self.pages_per_sequence} pages of one sequence",
                str(self.pages),
                "raise it, or pass 0",
            )
        if self.kind == "prefill" and self.rows > self.context:
            raise _bad("rows", f"at most the {self.context} keys", str(self.rows), "raise --context")
        return self

    @property
    def pages_per_sequence(self) -> int:
        return -(-self.context // PAGE)

    @property
    def queries(self) -> int:
        """Rows of the step: what attention calls t."""
        return self.batch * self.next_n if self.kind == "decode" else self.rows

    def describe(self) -> str:
        many = f"b={self.batch} next_n={self.next_n}" if self.kind == "decode" else f"rows={self.rows}"
        shape = f"context={self.context}{' ragged' if self.ragged else ''} topk={self.topk}"
        return f"{many} {shape} heads={self.heads} index_heads={self.index_heads} kv={self.kv}"


SIZES: dict[str, StepSize] = {
    "demo": StepSize(batch=3, context=1200, topk=256, ragged=True),
    "tiny": StepSize(batch=2, context=130, topk=64, heads=8, index_heads=32),
    "mtp": StepSize(batch=4, context=8192, next_n=3),
    "contest": StepSize(batch=8, context=2880, pages=11923, ragged=True),
    "serving": StepSize(batch=16, context=32768),
    "long": StepSize(batch=64, context=131072),
}
PREFILL_SIZES: dict[str, StepSize] = {
    "demo": StepSize("prefill", rows=6, context=700, topk=256),
    "tiny": StepSize("prefill", rows=3, context=130, topk=64, heads=8, index_heads=32),
    "serving": StepSize("prefill", rows=4096, context=32768),
}


def named_size(kind: str, name: str) -> StepSize:
    """A size by name.

    Raises:
        UnknownNameError: there is no such size of this kind.
    """
    known = SIZES if kind == "decode" else PREFILL_SIZES
    if name not in known:
        raise UnknownNameError(
            f"size of a {kind} step",
            expected="a known size",
            got=repr(name),
            fix=did_you_mean(name, list(known)),
        )
    return known[name]


@dataclass(frozen=True)
class StepInputs:
    """Tensors by argument name and the scalars of one step."""

    kind: str
    tensors: Mapping[str, torch.Tensor]
    topk: int
    sm_scale: float = DATASET_SM_SCALE
    lse_base: str = "2"

    def run(self, **options: Any) -> dsa.StepOutput:
        """The step through `dsa.decode` or `dsa.prefill`; options are theirs, such as executor."""
        step: Any = dsa.decode if self.kind == "decode" else dsa.prefill
        return step(**self.tensors, sm_scale=self.sm_scale, topk=self.topk, lse_base=self.lse_base, **options)

    @property
    def form(self) -> str:
        return "fp8" if self.tensors["kv"].shape[-1] == FP8_TOKEN_BYTES else "bf16"

    def cache_rows(self) -> dict[str, torch.Tensor]:
        """The attention cache as the operands of the sparse_mla problem."""
        kv = self.tensors["kv"].reshape(-1, self.tensors["kv"].shape[-1])
        if self.form == "fp8":
            return {"kv_cache": kv.view(torch.uint8)}
        kpe = self.tensors.get("kpe")
        if kpe is None:
            return {"ckv": kv[:, :LATENT_DIM], "kpe": kv[:, LATENT_DIM:]}
        return {"ckv": kv, "kpe": kpe.reshape(-1, ROPE_DIM)}

    def size(self) -> StepSize:
        """The sizes that these tensors have."""
        t = self.tensors
        shared: dict[str, Any] = {
            "heads": t["q_nope"].shape[1],
            "index_heads": t["q_index"].shape[-2],
            "topk": self.topk,
        }
        kv = "fp8" if self.form == "fp8" else "bf16" if "kpe" in t else "joined"
        if self.kind == "prefill":
            return StepSize(
                "prefill", rows=t["q_index"].shape[0], context=t["k_index"].shape[0], kv=kv, **shared
            )
        b, next_n = t["seq_lens"].shape
        lens = t["seq_lens"]
        longest = int(lens.max()) if lens.numel() else 0
        return StepSize(
            "decode", batch=b, next_n=next_n, context=longest, kv=kv, pages=t["k_index_cache"].shape[0],
            ragged=bool((lens.amax(dim=1) < longest).any()), **shared,
        )  # fmt: skip


def draw(
    size: StepSize,
    *,
    device: str | torch.device = "cpu",
    seed: int = 0,
    sets: int = 1,
    given: Mapping[str, torch.Tensor] | None = None,
) -> list[StepInputs]:
    """Random inputs of a size: `sets` of them, which share the caches and differ in queries and pages.

    Args:
        given: tensors to use as they are instead of drawing them.
    """
    size.validate()
    place = torch.device(device)
    generator = torch.Generator(place).manual_seed(seed)
    held = dict(given or {})
    make = _decode_caches if size.kind == "decode" else _prefill_caches
    caches = {**make(size, place, generator, held), **held}
    found = []
    for _ in range(sets):
        queries = _decode_queries if size.kind == "decode" else _prefill_queries
        tensors = {**caches, **queries(size, place, generator), **held}
        found.append(
            StepInputs(
                size.kind,
                {name: tensors[name] for name in ARGUMENTS[size.kind] if name in tensors},
                size.topk,
            )
        )
    return found


def _decode_caches(
    size: StepSize, device: torch.device, generator: torch.Generator, held: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    pages = size.pages or size.batch * size.pages_per_sequence + 1
    made = {}
    if "k_index_cache" not in held:
        made["k_index_cache"] = _index_cache(pages, device, generator)
    if "kv" not in held:
        made |= {
            name: rows.view(pages, PAGE, -1)
            for name, rows in _latent_cache(size.kv, pages * PAGE, device, generator).items()
        }
    return made


def _index_cache(pages: int, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    cache = torch.empty(pages, PAGE, 1, INDEX_DIM + 4, dtype=torch.uint8, device=device)
    for first in range(0, pages, 4096):
        count = min(4096, pages - first)
        cache[first : first + count] = pack_index_keys(
            torch.randn(count, PAGE, INDEX_DIM, generator=generator, device=device, dtype=torch.float32)
        )
    return cache


def _latent_cache(
    kv: str, n: int, device: torch.device, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    def normal(count: int, width: int) -> torch.Tensor:
        return torch.randn(count, width, generator=generator, device=device, dtype=torch.bfloat16)

    if kv == "joined":
        return {"kv": normal(n, LATENT_DIM + ROPE_DIM)}
    if kv == "bf16":
        return {"kv": normal(n, LATENT_DIM), "kpe": normal(n, ROPE_DIM)}
    tokens = torch.empty(n, FP8_TOKEN_BYTES, dtype=torch.uint8, device=device)
    for first in range(0, n, 1 << 18):
        count = min(1 << 18, n - first)
        tokens[first : first + count] = pack_fp8_tokens(normal(count, LATENT_DIM), normal(count, ROPE_DIM))
    return {"kv": tokens}


def _attention_queries(
    size: StepSize, device: torch.device, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    rows, bf16 = size.queries, torch.bfloat16
    return {
        "q_nope": torch.randn(rows, size.heads, LATENT_DIM, generator=generator, device=device, dtype=bf16),
        "q_pe": torch.randn(rows, size.heads, ROPE_DIM, generator=generator, device=device, dtype=bf16),
    }


def _index_queries(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    q = torch.randn(*shape, INDEX_DIM, generator=generator, device=device, dtype=torch.float32).clamp(-2, 2)
    return {
        "q_index": q.to(torch.float8_e4m3fn),
        "weights": torch.randn(*shape, generator=generator, device=device, dtype=torch.float32),
    }


def _decode_queries(
    size: StepSize, device: torch.device, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    b, each = size.batch, size.pages_per_sequence
    pool = size.pages or b * each + 1
    if pool >= b * each:
        table = torch.randperm(pool, generator=generator, device=device)[: b * each].view(b, each)
    else:
        table = torch.stack(
            [torch.randperm(pool, generator=generator, device=device)[:each] for _ in range(b)]
        )
    longest = torch.full((b,), size.context, dtype=torch.int64, device=device)
    if size.ragged and b > 1:
        longest = longest >> torch.arange(b, device=device).clamp(max=31)
        longest[-1] = 0
    lens = (longest[:, None] - size.next_n + 1 + torch.arange(size.next_n, device=device)).clamp(min=0)
    lens = torch.where(longest[:, None] == 0, 0, lens)
    return {
        **_index_queries((b, size.next_n, size.index_heads), device, generator),
        **_attention_queries(size, device, generator),
        "seq_lens": lens.to(torch.int32),
        "block_table": table.to(torch.int32),
    }


def _prefill_caches(
    size: StepSize, device: torch.device, generator: torch.Generator, held: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    n, made = size.context, {}
    if "k_index" not in held:
        keys, scales = unpack_index_keys(_index_cache(-(-n // PAGE), device, generator))
        made["k_index"] = keys.reshape(-1, INDEX_DIM)[:n].contiguous()
        made["k_index_scales"] = scales.reshape(-1)[:n].contiguous()
    if "kv" not in held:
        made |= _latent_cache(size.kv, n, device, generator)
    return made


def _prefill_queries(
    size: StepSize, device: torch.device, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    ends = size.context - size.rows + 1 + torch.arange(size.rows, device=device)
    return {
        **_index_queries((size.rows, size.index_heads), device, generator),
        **_attention_queries(size, device, generator),
        "k_start": torch.zeros(size.rows, dtype=torch.int32, device=device),
        "k_end": ends.to(torch.int32),
    }


def save(inputs: StepInputs, path: str | Path) -> None:
    """Write a step as a workload file."""
    metadata = {
        "format": FORMAT, "kind": inputs.kind, "topk": str(inputs.topk), "sm_scale": repr(inputs.sm_scale),
        "lse_base": inputs.lse_base,
    }  # fmt: skip
    held = {name: tensor.contiguous().cpu() for name, tensor in inputs.tensors.items()}
    _safetensors().torch.save_file(held, str(path), metadata=metadata)


def load(
    path: str | Path, size: StepSize, *, device: str | torch.device = "cpu", seed: int = 0
) -> StepInputs:
    """The step of a workload file, with what the file lacks drawn at `size`.

    Raises:
        InvalidArgumentError: no such file, not safetensors, another kind of step, or a tensor is missing.
        UnknownNameError: a tensor that no argument of the step has.
    """
    tensors, metadata = _read(Path(path))
    kind = metadata.get("kind") or (
        "decode" if "seq_lens" in tensors else "prefill" if "k_start" in tensors else size.kind
    )
    if kind != size.kind:
        raise _bad(str(path), f"a {size.kind} step", f"a {kind} step", f"use `run {kind} --workload`")
    for name in tensors:
        if name not in ARGUMENTS[kind]:
            raise UnknownNameError(
                f"tensor {name} of {path}",
                expected=f"an argument of dsa.{kind}",
                got=repr(name),
                fix=did_you_mean(name, list(ARGUMENTS[kind])),
            )
    if missing := [name for name in REQUIRED[kind] if name not in tensors]:
        raise _bad(
            str(path),
            "the tensors " + ", ".join(REQUIRED[kind]),
            f"no {', '.join(missing)}",
            "add them to the file",
        )
    held = {name: tensor.to(device) for name, tensor in tensors.items()}
    if held.get("seq_lens") is not None and held["seq_lens"].dim() == 1:
        held["seq_lens"] = held["seq_lens"][:, None].contiguous()
    topk = int(metadata.get("topk", size.topk))
    inputs = draw(replace(_size_of(size, held), topk=topk), device=device, seed=seed, given=held)[0]
    scale = float(metadata.get("sm_scale", DATASET_SM_SCALE))
    return replace(inputs, sm_scale=scale, lse_base=metadata.get("lse_base", "2"))


def _size_of(size: StepSize, held: Mapping[str, torch.Tensor]) -> StepSize:
    """`size` with the fields that the tensors of a file fix."""
    facts: dict[str, Any] = {}
    if size.kind == "decode":
        lens, table = held["seq_lens"], held["block_table"]
        facts = {
            "batch": lens.shape[0],
            "next_n": lens.shape[1],
            "context": max(1, int(lens.max())),
            "ragged": False,
        }
        used = torch.arange(table.shape[1], device=table.device) < -(-lens.amax(dim=1, keepdim=True) // PAGE)
        needed = int(table[used].max()) + 1 if bool(used.any()) else 1
        facts["pages"] = max(size.pages, needed, -(-facts["context"] // PAGE))
    else:
        facts = {"rows": held["k_start"].shape[0]}
        facts["context"] = (
            held["k_index"].shape[0] if "k_index" in held else max(int(held["k_end"].max()), facts["rows"])
        )
    for name, field, axis in (("q_nope", "heads", 1), ("q_index", "index_heads", -2)):
        if name in held:
            facts[field] = held[name].shape[axis]
    return replace(size, **facts)


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    library = _safetensors()
    if not path.is_file():
        raise _bad(str(path), "a workload file (safetensors)", "no such file", "check the path")
    try:
        with library.safe_open(str(path), "pt") as file:
            return {name: file.get_tensor(name) for name in list(file.keys())}, file.metadata() or {}
    except library.SafetensorError as error:
        raise _bad(
            str(path),
            "a safetensors file",
            str(error),
            "write it with dsl_kernels.steps.save or safetensors.torch",
        ) from None


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ToolchainError(
            "safetensors",
            expected="the package that reads workload files",
            got=str(error),
            fix="`pip install safetensors`",
        ) from None
    return safetensors


def used() -> list[registry.Selection]:
    """What the ops selected since `ops.clear()`, each variant once, in the order of their first calls."""
    chosen: dict[str, registry.Selection] = {}
    for pick in ops.selections():
        chosen.setdefault(pick.variant.id, pick)
    return list(chosen.values())


def run_checked(
    inputs: StepInputs, *, sample: int = 4, **options: Any
) -> tuple[dsa.StepOutput, dict[str, Comparison]]:
    """Run a step, and compare each op on what it was given, and the chain as a whole, with the references.

    Args:
        sample: sequences (or prefill rows) that are compared, spread evenly from the first to the last.
    """
    from .step_check import check

    workspace = ops.Workspace()
    output = inputs.run(workspace=workspace, **options)
    return output, check(inputs, output, workspace, sample)


def _bad(subject: str, expected: str, got: str, fix: str) -> InvalidArgumentError:
    return InvalidArgumentError(subject, expected=expected, got=got, fix=fix)
