"""A DSA step as data: its sizes, and its inputs, drawn at random or read from a workload file.

A workload file is a safetensors file whose tensors have the argument names of `dsl_kernels.dsa.decode` or
`prefill`. Tensors that the file lacks are drawn at random: `seq_lens` and `block_table` alone are enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dsl_kernels import dsa, ops, registry
from dsl_kernels.arguments import checked, require_known, require_range, shown
from dsl_kernels.errors import ArgumentTypeError, CacheError, InvalidArgumentError, ToolchainError
from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels.kernels.sparse_mla.forms import split_cache
from dsl_kernels.problems.layouts import FP8_TOKEN_BYTES, INDEX_DIM, LATENT_DIM, ROPE_DIM

from ..arguments import SEEDS, require_device, require_memory
from ..layouts import BYTE_DTYPES
from ..oracles.sparse_mla import DATASET_SM_SCALE
from .drawing import decode_caches, decode_queries, prefill_caches, prefill_queries

KINDS = ("decode", "prefill")
INDEX_HEADS = (8, 16, 24, 32, 64)
CACHES = ("bf16", "joined", "fp8")
FORMAT = "dsl_kernels.step"
MOST_KEYS = 1 << 24
MOST_PAGES = 1 << 24

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
# Tensors that a workload file must have; the others are drawn to fit them.
REQUIRED = {"decode": ("seq_lens", "block_table"), "prefill": ("k_start", "k_end")}
OPTIONAL = ("kpe", "attn_sink")
INDEX_CACHE = {"decode": "k_index_cache", "prefill": "k_index"}
MOST_SETS = 1 << 10
_BYTES = tuple(getattr(torch, name) for name in BYTE_DTYPES)
# Dtypes, ranks and last extents of each argument, as far as a step's sizes follow from them; the ops check
# the rest.
TAKEN: dict[str, tuple[tuple[torch.dtype, ...], tuple[int, ...], tuple[int, ...]]] = {
    "q_index": ((torch.float8_e4m3fn,), (3, 4), (INDEX_DIM,)),
    "k_index_cache": (_BYTES, (2, 3, 4), ()),
    "k_index": ((torch.float8_e4m3fn,), (2,), (INDEX_DIM,)),
    "k_index_scales": ((torch.float32,), (1,), ()),
    "weights": ((torch.float32,), (2, 3), ()),
    "seq_lens": ((torch.int32,), (2,), ()),
    "block_table": ((torch.int32,), (2,), ()),
    "k_start": ((torch.int32,), (1,), ()),
    "k_end": ((torch.int32,), (1,), ()),
    "q_nope": ((torch.bfloat16,), (3,), (LATENT_DIM,)),
    "q_pe": ((torch.bfloat16,), (3,), (ROPE_DIM,)),
    "kv": ((torch.bfloat16, *_BYTES), (2, 3, 4), (LATENT_DIM, LATENT_DIM + ROPE_DIM, FP8_TOKEN_BYTES)),
    "kpe": ((torch.bfloat16,), (2, 3, 4), (ROPE_DIM,)),
    "attn_sink": ((torch.float32,), (1,), ()),
}


@checked
@dataclass(frozen=True)
class StepSize:
    """Sizes of a step.

    Attributes:
        kind: "decode" or "prefill".
        batch: sequences of a decode step.
        rows: query rows of a prefill step.
        context: tokens of the longest sequence, or keys of a prefill step.
        heads: heads of attention.
        index_heads: heads of the indexer: 8, 16, 24, 32 or 64.
        topk: tokens to select, 1 to 2048.
        kv: the cache: "bf16" (two tensors), "joined" (rows of 576 values) or "fp8" (656-byte tokens).
        next_n: queries of each sequence, 1 to 8.
        pages: pages of a decode step's cache; 0 means as many as the sequences need, and one more.
        ragged: halve the length from one sequence to the next, and end with a padded row of length 0.
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
        """Check every field, and return this size.

        Raises:
            InvalidArgumentError: names the field.
        """
        for name, known in (("kind", KINDS), ("index_heads", INDEX_HEADS), ("kv", CACHES)):
            value = getattr(self, name)
            if value not in known:
                raise _bad(name, "one of " + ", ".join(map(str, known)), shown(value), "pass one of these")
        for name, low, high in (
            ("batch", 1, 1 << 16),
            ("heads", 1, 128),
            ("rows", 1, 1 << 20),
            ("context", 1, MOST_KEYS),
            ("next_n", 1, 8),
            ("pages", 0, MOST_PAGES),
            ("topk", 1, 2048),
        ):
            require_range(name, getattr(self, name), low, high)
        if self.kind == "decode" and self.pages and self.pages < self.pages_per_sequence:
            raise _bad(
                "pages",
                f"at least the {self.pages_per_sequence} pages of one sequence",
                str(self.pages),
                "pass more pages, or 0 for as many as needed",
            )
        if self.kind == "prefill" and self.rows > self.context:
            raise _bad(
                "rows",
                f"at most the {self.context} keys",
                str(self.rows),
                "pass fewer rows or a longer context",
            )
        return self

    def bytes(self, sets: int = 1, *, cache: bool = True, index_cache: bool = True) -> int:
        """Bytes of `sets` sets of inputs; `cache` and `index_cache` count the shared caches too."""
        row = FP8_TOKEN_BYTES if self.kv == "fp8" else 2 * (LATENT_DIM + ROPE_DIM)
        decode = self.kind == "decode"
        tokens = PAGE * self.pool if decode else self.context
        query = 2 * self.heads * (LATENT_DIM + ROPE_DIM) + self.index_heads * (INDEX_DIM + 4)
        return tokens * (row * cache + (INDEX_DIM + 4) * index_cache) + sets * self.queries * query

    @property
    def pool(self) -> int:
        """Pages of a decode step's caches."""
        return self.pages or self.batch * self.pages_per_sequence + 1

    @property
    def pages_per_sequence(self) -> int:
        """Pages of 64 tokens that the longest sequence needs."""
        return -(-self.context // PAGE)

    @property
    def queries(self) -> int:
        """Query rows of the step."""
        return self.batch * self.next_n if self.kind == "decode" else self.rows

    def describe(self) -> str:
        """The sizes in one line, for errors and tables."""
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


@checked
def named_size(kind: str, name: str) -> StepSize:
    """A size by name.

    Raises:
        UnknownNameError: there is no such kind of step, or no such size of this kind.
    """
    require_known("kind", kind, KINDS, "kind of step")
    known = SIZES if kind == "decode" else PREFILL_SIZES
    require_known(f"size of a {kind} step", name, known, "size")
    return known[name]


@checked
@dataclass(frozen=True)
class StepInputs:
    """The inputs of one step.

    Attributes:
        kind: "decode" or "prefill".
        tensors: tensors by argument name of `dsa.decode` or `dsa.prefill`.
        topk, sm_scale, lse_base: the step's scalars.

    Raises:
        InvalidArgumentError, ArgumentTypeError: a tensor is missing, or has another dtype or rank.
        UnknownNameError: `kind` is no kind of step, or a tensor is no argument of the step.
    """

    kind: str
    tensors: Mapping[str, torch.Tensor]
    topk: int
    sm_scale: float = DATASET_SM_SCALE
    lse_base: str = "2"

    def __post_init__(self) -> None:
        require_known("kind", self.kind, KINDS, "kind of step")
        require_known("lse_base", self.lse_base, ("2", "e"), "base")
        _check_tensors(self.kind, self.tensors)
        for name in ARGUMENTS[self.kind]:
            if name not in self.tensors and name not in OPTIONAL:
                raise _bad(
                    name,
                    f"a tensor, as in every {self.kind} step",
                    "none",
                    "add it, or draw it with steps.draw",
                )

    def run(self, **options: Any) -> dsa.StepOutput:
        """Run the step by `dsa.decode` or `dsa.prefill`, with options of theirs such as `executor`."""
        step: Any = dsa.decode if self.kind == "decode" else dsa.prefill
        return step(**self.tensors, sm_scale=self.sm_scale, topk=self.topk, lse_base=self.lse_base, **options)

    @property
    def form(self) -> str:
        """The form of the sparse_mla problem: "fp8" or "bf16"."""
        return "fp8" if self.tensors["kv"].shape[-1] == FP8_TOKEN_BYTES else "bf16"

    def cache_rows(self) -> dict[str, torch.Tensor]:
        """The attention cache as the operands of the sparse_mla problem."""
        operands = split_cache(self.tensors["kv"], self.tensors.get("kpe"))[1]
        return {name: rows for name, rows in operands.items() if isinstance(rows, torch.Tensor)}

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
        lens, longest = t["seq_lens"], _most(t["seq_lens"])
        return StepSize(
            "decode", batch=b, next_n=next_n, context=longest, kv=kv, pages=t["k_index_cache"].shape[0],
            ragged=bool((lens.amax(dim=1) < longest).any()), **shared,
        )  # fmt: skip


def _check_tensors(kind: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Require that every tensor is an argument of the step, of a dtype and rank that the step takes."""
    for name, tensor in tensors.items():
        require_known(f"tensor of a {kind} step", name, ARGUMENTS[kind], f"argument of dsa.{kind}")
        dtypes, ranks, widths = TAKEN[name]
        if tensor.dtype not in dtypes:
            spelled = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise ArgumentTypeError(
                name, expected=f"dtype {spelled}", got=str(tensor.dtype), fix="convert it with .to(...)"
            )
        if tensor.dim() not in ranks or (widths and tensor.shape[-1] not in widths):
            width = f" with a last one of {' or '.join(map(str, widths))}" if widths else ""
            expected = f"{' or '.join(map(str, ranks))} dimensions{width}"
            raise _bad(name, expected, f"shape {tuple(tensor.shape)}", "reshape it with .view(...)")


def _check_values(kind: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Require that lengths, pages and windows stay within the tensors."""

    def between(name: str, values: torch.Tensor, high: int, what: str) -> None:
        if values.numel() and (int(values.min()) < 0 or int(values.max()) > high):
            got = f"{int(values.min())} to {int(values.max())}"
            raise _bad(name, f"{what} from 0 to {high}", got, "correct the values")

    # Every cache of the file has room for all keys; a cache that the file lacks is drawn with room for them.
    caches = [name for name in (INDEX_CACHE[kind], "kv") if name in tensors]
    if kind == "prefill":
        starts, ends = tensors["k_start"], tensors["k_end"]
        keys = min([MOST_KEYS, *(tensors[name].numel() // tensors[name].shape[-1] for name in caches)])
        if starts.shape != ends.shape:
            raise _bad(
                "k_end",
                f"shape {tuple(starts.shape)} like k_start",
                f"{tuple(ends.shape)}",
                "give each row a window",
            )
        between("k_end", ends, keys, "ends of windows")
        between("k_start", starts, _most(ends), "starts of windows")
        if bool((starts > ends).any()):
            raise _bad(
                "k_start", "starts at or before the ends of their rows", "one after it", "correct the values"
            )
        return
    lens, table = tensors["seq_lens"], tensors["block_table"]
    if lens.shape[0] != table.shape[0]:
        expected = f"a row for each of the {lens.shape[0]} sequences"
        raise _bad("block_table", expected, f"shape {tuple(table.shape)}", "make the tensors agree")
    between("seq_lens", lens, table.shape[1] * PAGE, "lengths within the block table")
    pages = min([MOST_PAGES, *(_pages(name, tensors[name]) for name in caches)])
    between("block_table", table[_used(lens, table)], pages - 1, "page ids")


def _pages(name: str, cache: torch.Tensor) -> int:
    """Pages of 64 tokens in a cache of a decode step."""
    return cache.shape[0] if name == "k_index_cache" else cache.numel() // cache.shape[-1] // PAGE


def _most(values: torch.Tensor) -> int:
    """The largest of some lengths, ends or ids; 0 if there are none."""
    return int(values.max()) if values.numel() else 0


def _used(lens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A mask of the block table's entries that the lengths reach."""
    longest = lens.amax(dim=1, keepdim=True) if lens.shape[1] else lens.new_zeros(lens.shape[0], 1)
    return torch.arange(table.shape[1], device=table.device) < -(-longest // PAGE)


@checked
def draw(
    size: StepSize,
    *,
    device: str | torch.device = "cpu",
    seed: int = 0,
    sets: int = 1,
    given: Mapping[str, torch.Tensor] | None = None,
) -> list[StepInputs]:
    """Draw random inputs: sets that share the caches and differ in queries and pages.

    If the cache has enough pages, no two sets share one, so that every set reads other bytes.

    Args:
        size: the sizes.
        device: where to draw them.
        seed: seed of the generator.
        sets: how many sets, 1 to 1024.
        given: tensors to use instead of drawing them.

    Raises:
        InvalidArgumentError, ArgumentTypeError: a size, the seed or `sets` is out of range, the device has
            too little free memory, or a given tensor has another dtype or rank.
        ExecutorUnavailableError: the device is a GPU that is not there.
    """
    size.validate()
    require_range("seed", seed, *SEEDS)
    require_range("sets", sets, 1, MOST_SETS)
    place = require_device("device", device)
    fixed = dict(given or {})
    _check_tensors(size.kind, fixed)
    wanted = size.bytes(sets, cache="kv" not in fixed, index_cache=INDEX_CACHE[size.kind] not in fixed)
    subject = f"sizes of the {size.kind} step ({size.describe()})"
    require_memory(subject, wanted, place, "choose a smaller batch, context or number of pages")
    generator = torch.Generator(place).manual_seed(int(seed))
    make = decode_caches if size.kind == "decode" else prefill_caches
    caches = {**make(size, place, generator, fixed), **fixed}
    steps = []
    order = torch.randperm(size.pool, generator=generator, device=place) if size.kind == "decode" else None
    for turn in range(sets):
        if order is None:
            queries = prefill_queries(size, place, generator)
        else:
            queries = decode_queries(size, place, generator, order, turn)
        tensors = {**caches, **queries, **fixed}
        steps.append(
            StepInputs(
                size.kind,
                {name: tensors[name] for name in ARGUMENTS[size.kind] if name in tensors},
                size.topk,
            )
        )
    return steps


@checked
def save(inputs: StepInputs, path: str | Path) -> None:
    """Write a step as a workload file.

    Raises:
        CacheError: the file cannot be written.
    """
    metadata = {
        "format": FORMAT, "kind": inputs.kind, "topk": str(inputs.topk), "sm_scale": repr(inputs.sm_scale),
        "lse_base": inputs.lse_base,
    }  # fmt: skip
    tensors = {name: tensor.contiguous().cpu() for name, tensor in inputs.tensors.items()}
    library = _safetensors()
    try:
        library.torch.save_file(tensors, str(path), metadata=metadata)
    except (OSError, library.SafetensorError) as error:
        raise CacheError(
            str(path),
            expected="a file that can be written",
            got=str(error),
            fix="check the folder and the space on it",
        ) from None


@checked
def load(
    path: str | Path, size: StepSize, *, device: str | torch.device = "cpu", seed: int = 0
) -> StepInputs:
    """Read the step of a workload file, and draw the tensors that the file lacks.

    Args:
        path: the file.
        size: sizes of the drawn tensors, where the file's do not fix them.
        device: where the inputs go.
        seed: seed of the drawn tensors.

    Raises:
        InvalidArgumentError: there is no such file, the file is not safetensors or has another kind of step,
            a tensor is missing or has another rank, or lengths, pages or windows are out of range.
        ArgumentTypeError: a tensor has another dtype.
        UnknownNameError: a tensor is no argument of the step.
        ToolchainError: the package safetensors is missing.
    """
    size.validate()
    tensors, metadata = _read(Path(path))
    kind = metadata.get("kind") or (
        "decode" if "seq_lens" in tensors else "prefill" if "k_start" in tensors else size.kind
    )
    if kind != size.kind:
        raise _bad(str(path), f"a {size.kind} step", f"a {kind} step", f"use `run {kind} --workload`")
    if missing := [name for name in REQUIRED[kind] if name not in tensors]:
        raise _bad(
            str(path),
            "the tensors " + ", ".join(REQUIRED[kind]),
            f"no {', '.join(missing)}",
            "add them to the file",
        )
    if "seq_lens" in tensors and tensors["seq_lens"].dim() == 1:
        tensors["seq_lens"] = tensors["seq_lens"][:, None].contiguous()
    _check_tensors(kind, tensors)
    _check_values(kind, tensors)
    topk = _number(path, metadata, "topk", int, size.topk)
    scale = _number(path, metadata, "sm_scale", float, DATASET_SM_SCALE)
    place = require_device("device", device)
    placed = {name: tensor.to(place) for name, tensor in tensors.items()}
    inputs = draw(replace(_size_of(size, placed), topk=topk), device=device, seed=seed, given=placed)[0]
    return replace(inputs, sm_scale=scale, lse_base=metadata.get("lse_base", "2"))


def _number(path: str | Path, metadata: Mapping[str, str], name: str, kind: type, default: Any) -> Any:
    """A finite number from a file's metadata."""
    text = metadata.get(name)
    try:
        value = default if text is None else kind(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _bad(
            f"{name} in the metadata of {path}",
            f"a finite {kind.__name__}",
            shown(text),
            "correct it, or leave it out",
        )
    return value


def _size_of(size: StepSize, tensors: Mapping[str, torch.Tensor]) -> StepSize:
    """`size` with the fields that a file's tensors fix."""
    facts: dict[str, Any] = {}
    if size.kind == "decode":
        lens, table = tensors["seq_lens"], tensors["block_table"]
        facts = {
            "batch": lens.shape[0],
            "next_n": lens.shape[1],
            "context": max(1, _most(lens)),
            "ragged": False,
        }
        used = _used(lens, table)
        needed = _most(table[used]) + 1
        facts["pages"] = max(size.pages, needed, -(-facts["context"] // PAGE))
    else:
        ends = tensors["k_end"]
        facts = {"rows": ends.shape[0]}
        facts["context"] = (
            tensors["k_index"].shape[0] if "k_index" in tensors else max(_most(ends), facts["rows"])
        )
    for name, field, axis in (("q_nope", "heads", 1), ("q_index", "index_heads", -2)):
        if name in tensors:
            facts[field] = tensors[name].shape[axis]
    return replace(size, **facts)


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    library = _safetensors()
    if not path.is_file():
        raise _bad(str(path), "a workload file (safetensors)", "no such file", "check the path")
    try:
        with library.safe_open(str(path), "pt") as file:
            return {name: file.get_tensor(name) for name in list(file.keys())}, file.metadata() or {}
    except (library.SafetensorError, OSError, ValueError) as error:
        raise _bad(
            str(path),
            "a safetensors file",
            str(error),
            "write it with dsl_kernels_lab.steps.save or safetensors.torch",
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
    """The selections of the ops since `ops.clear()`, each variant once, in the order of their first calls."""
    chosen: dict[str, registry.Selection] = {}
    for pick in ops.selections():
        chosen.setdefault(pick.variant.id, pick)
    return list(chosen.values())


def _bad(subject: str, expected: str, got: str, fix: str) -> InvalidArgumentError:
    return InvalidArgumentError(subject, expected=expected, got=got, fix=fix)
