"""A probe: a kernel that contains one leaf, sets up its arguments before it, and dumps them afterwards.

The text of a probe is recorded, printed and framed like any kernel's. Around the call are leaves of the probe
itself, which copy each on-chip argument from an operand and back to one. Registers and swizzled shared memory
are dumped in their physical order, one row per thread: a `places` table maps each of them to its element of
the tile, so that the interpreter, where a register buffer is one tile, gives the same operands. TileLang's
fragments need no such table, as TileLang distributes them itself and copies them whole.
"""

from __future__ import annotations

import hashlib
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from codegen import render as rendering
from codegen.sweep import Instance, frame, leaf_modules
from dsl_kernels import problems, programs
from dsl_kernels.arch import ArchSpec, get_arch
from dsl_kernels.dtypes import DTYPES
from dsl_kernels.executors import Emulator
from dsl_kernels.problems.base import OperandSpec
from dsl_kernels.runtime.artifact import Operand
from dsl_kernels.tile.cta import TORCH_DTYPES
from dsl_kernels.tile.interpreter import Interpreter
from dsl_kernels.tile.lang import START, Body, Buffer, Mma, Pipeline, Role, Schedule, Space
from dsl_kernels.tile.program import TileProgram
from dsl_kernels.tile.text import Leaf, Out, Parameter, Recorder, TearDown, Text, View, name
from dsl_kernels.variants import Variant

NAMES = {torch_dtype: text for text, torch_dtype in TORCH_DTYPES.items() if text != "uint32"}
ROLE = "probe"
CUTE_TYPES = {
    "float32": "Float32",
    "int32": "Int32",
    "uint32": "cutlass.Uint32",
    "int64": "Int64",
    "bfloat16": "cutlass.BFloat16",
    "float16": "cutlass.Float16",
}
LANDS = {
    # The waits that the barrier plan would emit after a leaf that only issues.
    "cp_async":
        ("T.ptx_commit_group()\nT.ptx_wait_group(0)",
         "cute.arch.cp_async_commit_group()\ncute.arch.cp_async_wait_group(0)"),
    "tmem": (
        'T.call_extern("handle", "tl::fence_view_async_tmem_load")\nT.call_extern("handle", '
        '"tl::fence_view_async_tmem_store")',
        "cute.arch.fence_view_async_tmem_load()\ncute.arch.fence_view_async_tmem_store()",
    ),
}  # fmt: skip


Case = Callable[["Probe"], None]
# The cases of each leaf, by label.
CASES: dict[Leaf, dict[str, Case]] = {}


def case(leaf: Leaf, **choices: tuple[Any, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a test case of a leaf, run with each combination of `choices`."""

    def declare(body: Callable[..., None]) -> Callable[..., None]:
        cases = CASES.setdefault(leaf, {})
        for values in product(*choices.values()):
            cases["_".join(map(str, values))] = partial(body, **dict(zip(choices, values, strict=True)))
        return body

    return declare


def _leaf(
    title: str, parameters: Sequence[str], meaning: Callable[..., Any], sets: type | None = None
) -> Leaf:
    return Leaf(title, tuple(Parameter(p, sets if p == "to" else None) for p in parameters), meaning, "")


def _source(decorator: str, title: str, parameters: str, lines: str) -> str:
    return f"{decorator}\ndef {title}({parameters}):\n{textwrap.indent(lines, '    ')}\n\n\n"


@dataclass
class Argument:
    """An argument of the leaf: its value in the text, and how it is read from an operand and written to one.

    Attributes:
        spell: its value in the text.
        values: the operands and scalars before the launch.
        begin, end: what the body does for it before and after the call.
        leaves: sources in TileLang and in CuTe DSL of the probe's own leaves that `begin` and `end` call.
        ignored, folded: for an operand, elements without a meaning, and what is compared instead of it.
    """

    title: str
    spell: Callable[[Recorder], Any]
    buffers: tuple[Buffer, ...] = ()
    operands: tuple[Operand, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    begin: Callable[[Recorder], None] | None = None
    end: Callable[[Recorder], None] | None = None
    leaves: dict[str, tuple[str, str]] = field(default_factory=dict)
    ignored: dict[str, torch.Tensor] = field(default_factory=dict)
    folded: dict[str, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)


class Probe:
    """The arguments of a case's leaf, and the kernel made from them.

    A case sets what it needs, declares the arguments and ends with `call`.

    Attributes:
        threads: per CTA, in one role that calls the leaf.
        cluster: CTAs, which form one cluster.
        lands: an asynchronous effect of the leaf that the probe waits for: "cp_async" or "tmem".
        pipelines, mmas: context that the leaf needs.
        before, after: what the body does directly before and after the call.
        relative, absolute: tolerance for floats: |got - expected| <= absolute + relative * |expected|.
        exact: titles of arguments that must nevertheless agree bit for bit.
    """

    def __init__(self, op: str, leaf: Leaf, dsl: str, arch: str) -> None:
        self.op, self.leaf, self.dsl, self.arch = op, leaf, dsl, arch
        self.threads, self.cluster, self.lands = 32, 1, ""
        self.pipelines: tuple[Pipeline, ...] = ()
        self.mmas: tuple[Mma, ...] = ()
        self.held: list[Argument] = []
        self.arguments: tuple[Any, ...] = ()
        self.before: Callable[[Recorder], None] | None = None
        self.after: Callable[[Recorder], None] | None = None
        self.relative, self.absolute = 0.0, 0.0
        self.exact: tuple[str, ...] = ()
        self.peers: dict[str, str] = {}
        self.generator = torch.Generator().manual_seed(11)
        self.thread, self.lane, self.warp, self.rank = (
            lambda m: m.thread, lambda m: m.lane, lambda m: m.warp,
            lambda m: m.block(1) if self.cluster > 1 else 0,
        )  # fmt: skip

    @property
    def warps(self) -> int:
        return self.threads // 32

    @property
    def cute(self) -> bool:
        return self.dsl == "cutedsl"

    @property
    def blackwell(self) -> bool:
        return self.arch == "sm_100a"

    @property
    def own_registers(self) -> bool:
        """Whether TileLang's leaves name each thread's registers, so that there are no fragments."""
        modules = leaf_modules(self.dsl, self.op, get_arch(self.arch).tag.removesuffix("a"))
        return any("OWN_REGISTERS" in names for _, _, names in modules)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def uniform(self, *shape: int) -> torch.Tensor:
        """In [0.5, 1.5)."""
        return torch.rand(shape, generator=self.generator) + 0.5

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator, dtype=dtype)

    def _add(self, argument: Argument) -> Callable[[Recorder], Any]:
        self.held.append(argument)
        return argument.spell

    def operand(
        self, title: str, value: torch.Tensor, *, out: bool = False, strided: bool = False, peers: str = ""
    ) -> Callable[[Recorder], Any]:
        """Global memory, contiguous, or with the strides of `value` if `strided` is set.

        `peers` names the operand of the distances at which other ranks hold theirs, in the same allocation.
        """
        if peers:
            self.peers[title] = peers
        shape = tuple(value.shape)
        names = tuple(f"{title}_stride_{axis}" for axis in range(len(shape) - 1)) if strided else ()
        strides = (*names, 1) if strided else None
        spec = Operand.tensor(title, NAMES[value.dtype], *shape, strides=strides, written=out)
        return self._add(
            Argument(
                title,
                lambda m: replace(m.operand(title), strides=names, dtype=spec.dtype, peers=peers),
                operands=(spec,),
                values={title: value},
            )
        )

    def dim(self, title: str, value: int) -> Callable[[Recorder], Any]:
        """An integer of the call."""
        return self._add(
            Argument(
                title,
                lambda m: m.dim(title),
                operands=(Operand.scalar(title, "int32"),),
                values={title: value},
            )
        )

    def scalar(self, title: str, value: float) -> Callable[[Recorder], Any]:
        return self._add(
            Argument(
                title,
                lambda m: m.scalar(title),
                operands=(Operand.scalar(title, "float32"),),
                values={title: value},
            )
        )

    def _copied(
        self,
        argument: Argument,
        size: tuple[int, ...],
        dtype: torch.dtype,
        taken: torch.Tensor | None,
        give: bool,
        put: Callable[[Any, torch.Tensor], Any],
        get: Callable[[Any, torch.Tensor], None],
        lines: Callable[[str, str], tuple[str, str]],
        parameters: tuple[str, str],
        spell: Callable[[Recorder], Any],
        sets: type | None = None,
    ) -> Argument:
        """Copy an argument from `<title>_in` before the call and to `<title>_out` after it, [cluster, *size]
        each.

        Args:
            put, get: both copies in torch, between the buffer (or the value) and a CTA's part of the operand.
            lines: ("take" or "give", operand) -> body in TileLang and in CuTe DSL.
            parameters: the parameters of both leaves, in the DSLs.
        """
        title = argument.title
        for way, present in (("take", taken is not None), ("give", give)):
            if not present:
                continue
            operand = f"{title}_{'in' if way == 'take' else 'out'}"
            value = taken if way == "take" else _poison((self.cluster, *size), dtype)
            argument.operands += (Operand.tensor(operand, NAMES[dtype], *value.shape, written=way == "give"),)
            argument.values[operand] = value
            tile, cute = lines(way, operand)
            inner = (
                parameters[0]
                if sets is None or way == "give"
                else parameters[0].replace("to", "to: T.Ref", 1)
            )
            cute_parameters = parameters[1] if sets is None or way == "give" else ""
            head = (
                f"{inner}, {operand}, rank, thread",
                ", ".join(x for x in (cute_parameters, operand, "rank", "thread") if x),
            )
            argument.leaves[f"{way}_{title}"] = (
                _source("@T.macro", f"{way}_{title}", head[0], tile),
                _source("@cute.jit", f"{way}_{title}", head[1], cute),
            )
            if way == "take":
                meaning = (
                    (lambda source, rank, thread: put(None, source[rank]))
                    if sets
                    else (lambda to, source, rank, thread: put(to, source[rank]))
                )
            else:
                meaning = lambda to, target, rank, thread: get(to, target[rank])  # noqa: E731
            copier = _leaf(
                f"{way}_{title}",
                ("to", "operand", "rank", "thread"),
                meaning,
                sets if way == "take" else None,
            )

            def say(m: Recorder, copier: Leaf = copier, operand: str = operand) -> None:
                copier(m, spell(m), m.operand(operand), self.rank(m), m.thread)

            if way == "take":
                argument.begin = say
            else:
                argument.end = say
        return argument

    def var(
        self,
        title: str,
        value: Any,
        *,
        dtype: str = "int32",
        out: bool = False,
        each: str = "cta",
        grid: bool = False,
    ) -> Callable[[Recorder], Any]:
        """A scalar variable.

        Args:
            value: initial value: a number, or with `each` ("lane", "warp" or "thread") a tensor over them;
                None: unset.
            each: "bits" is a 32-bit word, equal in all lanes; `value` then has a boolean per lane.
            grid: torch has a value per thread as [warps, 32].
            out: compare it as well.
        """

        def spread(value: Any) -> torch.Tensor:
            """Broadcast to every thread, [threads]."""
            value = torch.as_tensor(value)
            if dtype == "float32":
                return value.reshape(-1).expand(self.threads).clone()
            if each == "bits" and value.numel() == 32:
                value = (value.long() << torch.arange(32)).sum()
            if value.numel() == 1:
                value = value.reshape(1).expand(self.threads)
            elif value.numel() == self.warps and each == "warp":
                value = value.repeat_interleave(32)
            elif value.numel() == 32 and each == "lane":
                value = value.repeat(self.warps)
            return _signed(value.reshape(-1).long() & 0xFFFFFFFF, torch.int32)

        def put(_: Any, source: torch.Tensor) -> Any:
            if dtype == "float32":
                return source.clone() if each == "thread" else float(source[0])
            source = source.long() & 0xFFFFFFFF if dtype == "uint32" else source.clone()
            if each == "lane":
                return source[:32]
            if each == "warp":
                return source[::32]
            if each == "thread":
                return source.view(self.warps, 32) if grid else source
            return bool(source[0]) if dtype == "bool" else int(source[0])

        def get(value: Any, target: torch.Tensor) -> None:
            target.copy_(spread(value))

        def lines(way: str, operand: str) -> tuple[str, str]:
            at = f"{operand}[rank * {self.threads} + thread]"
            if dtype == "float32":
                there = f"{operand}[rank, thread]"
                return (
                    (f"{there} = to", f"{at} = to")
                    if way == "give"
                    else (f"to = {there}  # noqa: F841", f"return {at}")
                )
            if way == "give":
                kept = "T.if_then_else(to, 1, 0)" if dtype == "bool" else 'T.cast(to, "int32")'
                return f"{operand}[rank, thread] = {kept}", f"{at} = Int32(to)"
            read = f"{operand}[rank, thread]"
            tile = f"to = {read} != 0" if dtype == "bool" else f'to = T.cast({read}, "{dtype}")'
            cute = f"{at} != 0" if dtype == "bool" else f"{at}.to({CUTE_TYPES[dtype]})"
            return tile + "  # noqa: F841", f"return {cute}"

        values = value if isinstance(value, list) else [value] * self.cluster
        taken = None if value is None else torch.stack([spread(v) for v in values])
        argument = Argument(title, lambda m: name(title, dtype))
        kept = torch.float32 if dtype == "float32" else torch.int32
        self._copied(
            argument, (self.threads,), kept, taken, out, put, get, lines, ("to", "to"), argument.spell, Out
        )
        take = argument.begin

        def begin(m: Recorder) -> None:
            m.var(title, {"bool": False, "float32": 0.0}.get(dtype, 0), dtype)
            if take is not None:
                take(m)

        argument.begin = begin
        return self._add(argument)

    def own(
        self, title: str, each: int, value: torch.Tensor | None = None, *, dtype: str = "", out: bool = True
    ) -> Callable[[Recorder], Any]:
        """`each` private registers per thread, as a text leaf takes them; `value` is [threads, each]."""
        shape = (self.threads, each)
        return self.registers(
            title, shape, value, dtype=dtype, places=straight(*shape), private=True, out=out
        )

    def registers(
        self,
        title: str,
        shape: tuple[int, ...],
        value: torch.Tensor | None = None,
        *,
        dtype: str = "",
        places: torch.Tensor | None = None,
        out: bool = True,
        private: bool = False,
        bits: torch.dtype | None = None,
        partial: str = "",
        by_row: bool = False,
        by_product: bool = False,
    ) -> Callable[[Recorder], Any]:
        """A register buffer.

        Args:
            value: its initial content, `shape`; None: unset.
            dtype: that of the value by default, float32 without a value.
            places: [threads, per_thread], the element of the tile in each register; -1 for a meaningless one.
            private: each thread's own registers in TileLang too, not a fragment. For a text leaf `shape` is
                (threads, each), as the schedule declares it.
            bits: the type as which torch views the tile if its elements are not values of `dtype`.
            partial: "sum" or "amax": each thread has a partial result for its elements, `value` is
                [threads, per_thread], and the elements are the combined parts.
            by_row: a fragment of TileLang with a row per thread, as in tensor memory.
            by_product: a fragment of TileLang in the layout of a product of 64 rows, for a leaf that assumes
                it.
        """
        dtype = dtype or _dtype_of(value)
        whole = not self.cute and not private and not self.own_registers
        per_thread = None if places is None else places.shape[1]
        buffer = Buffer(
            title, Space.REGISTER, shape, dtype, role=ROLE, per_thread=per_thread, private=private
        )
        kept = torch.int32 if dtype == "uint32" else TORCH_DTYPES[dtype]

        def flat(tile: torch.Tensor) -> torch.Tensor:
            return tile.view(bits or tile.dtype).view(-1)

        def together(parts: torch.Tensor) -> torch.Tensor:
            found = (
                torch.zeros(math.prod(shape))
                if partial == "sum"
                else torch.full((math.prod(shape),), -math.inf)
            )
            return found.scatter_reduce(0, places.flatten(), parts.flatten(), partial)

        def put(tile: torch.Tensor, source: torch.Tensor) -> None:
            if whole:
                tile.copy_(source)
                return
            if partial:
                tile.view(-1).copy_(together(source))
                return
            seen, chosen = flat(tile), places >= 0
            got = source[chosen]
            seen[places[chosen]] = (
                got.long() & 0xFFFFFFFF if seen.dtype == torch.int64 else got.to(seen.dtype)
            )

        def get(tile: torch.Tensor, target: torch.Tensor) -> None:
            if whole:
                target.copy_(tile)
                return
            if partial:
                holders = torch.full((math.prod(shape),), self.threads * per_thread).scatter_reduce(
                    0, places.flatten(), torch.arange(places.numel()), "amin"
                )
                target.fill_(0.0 if partial == "sum" else -math.inf).view(-1)[holders] = tile.view(-1)
                return
            got = flat(tile)[places.clamp(min=0)]
            target.copy_(torch.where(places >= 0, _signed(got, target.dtype), target))

        def lines(way: str, operand: str) -> tuple[str, str]:
            if whole:
                part = f"{operand}[rank, {', '.join(f'0:{extent}' for extent in shape)}]"
                copy = f"T.copy({part}, to)" if way == "take" else f"T.copy(to, {part})"
                if by_row and way == "take":
                    copy = (
                        f"for r in T.Parallel({shape[0]}):\n    for c in T.serial({shape[1]}):\n"
                        f"        to[r, c] = {operand}[rank, r, c]"
                    )
                dealt = (
                    "i, j"
                    if by_row
                    else "i // 16 * 32 + i % 8 * 4 + j % 8 // 2, j // 8 * 4 + i // 8 % 2 * 2 + j % 2"
                )
                if (by_row or by_product) and way == "take":
                    layout = f"T.Fragment({shape}, forward_fn=lambda i, j: ({dealt}))"
                    copy = f"T.annotate_layout({{to: {layout}}})\n{copy}"
                return copy, "pass"
            at = f"{operand}[(rank * {self.threads} + thread) * {per_thread} + i]"
            if way == "take":
                tile = f'to[i] = T.cast({operand}[rank, thread, i], "{dtype}")'
                cute = f"to[i] = {at}.to({CUTE_TYPES[dtype]})"
            else:
                tile = f'{operand}[rank, thread, i] = T.cast(to[i], "{NAMES[kept]}")'
                cute = f"{at} = to[i].to({CUTE_TYPES[NAMES[kept]]})"
            return (
                f"for i in T.unroll({per_thread}):\n    {tile}",
                f"for i in cutlass.range_constexpr({per_thread}):\n    {cute}",
            )

        size = tuple(shape) if whole else (self.threads, per_thread)
        taken = None
        if value is not None:
            values = value if isinstance(value, list) else [value] * self.cluster
            if whole:
                values = [together(v).view(shape) for v in values] if partial else values
                taken = torch.stack([v.to(kept) for v in values])
            elif partial:
                taken = torch.stack(values)
            else:
                taken = torch.stack([_signed(flat(v)[places.clamp(min=0)], kept) for v in values])
        argument = Argument(title, lambda m: m.buffer(title), buffers=(buffer,))
        self._copied(argument, size, kept, taken, out, put, get, lines, ("to", "to"), argument.spell)
        if partial and not whole:
            argument.folded[f"{title}_out"] = lambda parts: torch.stack([together(part) for part in parts])
        elif not whole:
            argument.ignored[f"{title}_out"] = places < 0
        return self._add(argument)

    def shared(
        self,
        title: str,
        shape: tuple[int, ...],
        value: Any = None,
        *,
        dtype: str = "",
        swizzle: int = 0,
        out: bool = False,
        slot: bool = False,
        places: torch.Tensor | None = None,
        cluster: bool = False,
        stages: int = 1,
        ordered: bool = True,
        ignored: torch.Tensor | None = None,
    ) -> Callable[[Recorder], Any]:
        """A shared buffer.

        Args:
            value: its initial content, `shape`, or one per CTA.
            dtype: that of the value by default, float32 without a value.
            swizzle: bytes of the panels' rows; CuTe DSL dumps them in physical order.
            slot: pass the second of two stages.
            places: in CuTe DSL, the element at each place of the buffer if that is not row-major.
            cluster: the leaf takes the buffers of all CTAs.
            ordered: False if the order of the non-zero elements is undefined.
            ignored: `shape`, elements without a meaning.
        """
        count, width, dtype = math.prod(shape), shape[-1], dtype or _dtype_of(value)
        if swizzle and places is None:
            places = swizzled(shape[0], width, swizzle, DTYPES[dtype].bytes)
        places = places if self.cute else None
        buffer = Buffer(title, Space.SHARED, shape, dtype, 2 if slot else stages, swizzle)
        # A number of 8 bits goes as its byte.
        byte = dtype == "float8_e4m3"
        kept = torch.uint8 if byte else TORCH_DTYPES[dtype]

        def laid(tile: torch.Tensor) -> torch.Tensor:
            flat = tile.reshape(-1).view(kept)
            return flat if places is None else flat[places]

        def put(tile: torch.Tensor, source: torch.Tensor) -> None:
            if places is None:
                tile.view(-1).view(kept).copy_(source)
            else:
                tile.view(-1).view(kept)[places] = source

        def get(tile: torch.Tensor, target: torch.Tensor) -> None:
            target.copy_(laid(tile))

        def lines(way: str, operand: str) -> tuple[str, str]:
            at, rest = [], count
            for extent in shape:
                rest //= extent
                at.append(f"at // {rest} % {extent}")
            own = f"to[{'slot, ' if slot else ''}{', '.join(at)}]"
            there, to = f"{operand}[rank, at]", "to"
            pair = (own, there) if way == "take" else (there, own)
            if byte:
                as_type = dtype if way == "take" else "uint8"
                pair = pair[0], f'T.reinterpret({pair[1]}, "{as_type}")'
                to = "cute.recast_ptr(to, dtype=cutlass.Uint8)"
            tile = f"at = i * {self.threads} + thread\nif at < {count}:\n    {pair[0]} = {pair[1]}"
            base = f"{operand}[rank * {count} + i]"
            cute = f"{to}[i] = {base}" if way == "take" else f"{base} = {to}[i]"
            return (
                f"for i in T.serial({-(-count // self.threads)}):\n{textwrap.indent(tile, '    ')}",
                f"for i in cutlass.range(thread, {count}, {self.threads}, unroll=1):\n    {cute}",
            )

        def view(m: Recorder) -> View:
            return m.buffer(title, 1) if slot else m.buffer(title)

        taken = None
        if value is not None:
            values = value if isinstance(value, list) else [value] * self.cluster
            taken = torch.stack([laid(v) for v in values])
        spell = (lambda m: m.cluster(title)) if cluster else view
        argument = Argument(title, spell, buffers=(buffer,))
        self._copied(
            argument, (count,), kept, taken, out, put, get, lines, ("to, slot" if slot else "to", "to"), view
        )
        if not ordered:
            argument.folded[f"{title}_out"] = lambda given: torch.cat(
                [given.sort(dim=-1).values, (given != 0).to(kept)], dim=-1
            )
        if ignored is not None:
            argument.ignored[f"{title}_out"] = laid(ignored)
        return self._add(argument)

    def tensor(self, title: str, shape: tuple[int, int], value: torch.Tensor, *,
               out: bool = False) -> Callable[[Recorder], Any]:  # fmt: skip
        """Tensor memory, the second of two slots; of 64 rows, each warp's lower lanes have sixteen."""
        rows, width = shape
        held = 16
        buffer = Buffer(title, Space.TENSOR, shape, "float32", 2)
        lanes = torch.arange(rows) if rows == 128 else torch.arange(64) // 16 * 32 + torch.arange(64) % 16
        raw = torch.zeros(128, width)
        raw[lanes] = value

        def put(tile: torch.Tensor, source: torch.Tensor) -> None:
            tile.copy_(source[lanes])

        def get(tile: torch.Tensor, target: torch.Tensor) -> None:
            target[lanes] = tile

        def lines(way: str, operand: str) -> tuple[str, str]:
            own = f"to[slot, :, part * {held} : part * {held} + {held}]"
            there = f"{operand}[rank, 0:128, part * {held} : part * {held} + {held}]"
            steps = [f"T.copy({there}, held)", f"T.copy(held, {own})"]
            if way == "give":
                steps = [f"T.copy({own}, held)", f"T.copy(held, {there})"]
            head = [f'held = T.alloc_fragment((128, {held}), "float32")']
            if rows == 64:
                # As the leaf reads them: by address, without a layout.
                head = [f'held = T.alloc_local(({held},), "float32")']
                steps = [
                    f"for i in T.unroll({held}):\n    held[i] = {operand}[rank, thread, part * {held} + i]",
                    f'T.call_extern("handle", "tl::tcgen05_st_32dp32bNx<{held}, false>", to[32 * (thread // '
                    f"32), slot * {width} + part * {held}], 0, T.address_of(held[0]))",
                ]
            elif way == "take":
                # A product would declare this layout.
                head.append(f"T.annotate_layout({{to: lambda s, i, j: [i, s * {width} + j]}})")
            tile = "\n".join([*head, f"for part in T.unroll({width // held}):"]) + "\n"
            steps = ["\n".join(steps)]
            kind = "St" if way == "take" else "Ld"
            walk = [
                f"held = cute.make_rmem_tensor({held}, Float32)",
                f"for part in cutlass.range_constexpr({width // held}):",
                f"    columns = cute.make_tensor(cute.make_ptr(Float32, to.toint() + part * {held}, "
                f"cute.AddressSpace.tmem, assumed_align=64), cute.make_layout((128, {held}), "
                f"stride=(65536, 1)))",
                f"    atom = cute.make_copy_atom(tcgen05_.{kind}32x32bOp(tcgen05_.Repetition({held})), "
                f"Float32)",
                "    copy = tcgen05_.make_tmem_copy(atom, columns).get_slice(thread)",
            ]
            at = f"{operand}[(rank * 128 + thread) * {width} + part * {held} + i]"
            if way == "take":
                walk += [
                    f"    for i in cutlass.range_constexpr({held}):",
                    f"        held[i] = {at}",
                    "    cute.copy(copy, cute.make_tensor(held.iterator, copy.partition_S(columns).shape), "
                    "copy.partition_D(columns))",
                    "cute.arch.fence_view_async_tmem_store()",
                ]
            else:
                walk += [
                    "    cute.copy(copy, copy.partition_S(columns), cute.make_tensor(held.iterator, "
                    "copy.partition_D(columns).shape))",
                    "    cute.arch.fence_view_async_tmem_load()",
                    f"    for i in cutlass.range_constexpr({held}):",
                    f"        {at} = held[i]",
                ]
            return tile + textwrap.indent("\n".join(steps), "    "), "\n".join(walk)

        argument = Argument(title, lambda m: m.buffer(title, 1), buffers=(buffer,))
        self._copied(
            argument,
            (128, width),
            torch.float32,
            raw[None],
            out,
            put,
            get,
            lines,
            ("to, slot", "to"),
            argument.spell,
        )
        if out and rows == 64:
            ignored = torch.ones(128, width, dtype=torch.bool)
            ignored[lanes] = False
            argument.ignored[f"{title}_out"] = ignored
        self.lands = "tmem"
        return self._add(argument)

    def call(self, *arguments: Any) -> None:
        """Set the leaf's arguments: handles of the above, numbers, or functions of the recorder."""
        self.arguments = arguments

    @property
    def id(self) -> str:
        return f"leaf_{self.op}_{self.leaf.name}__{self.dsl}_{self.arch.replace('_', '')}"

    def _body(self, m: Recorder) -> None:
        for argument in self.held:
            if argument.begin is not None:
                argument.begin(m)
        m.meet()
        if self.cluster > 1:
            m.cluster_arrive()
            m.cluster_wait()
        if self.before is not None:
            self.before(m)
        self.leaf(m, *(a(m) if callable(a) else a for a in self.arguments))
        if self.lands:
            _leaf("land", (), lambda: None)(m)
        if self.after is not None:
            self.after(m)
        m.meet()
        if self.cluster > 1:
            m.cluster_arrive()
            m.cluster_wait()
        for argument in self.held:
            if argument.end is not None:
                argument.end(m)

    def schedule(self) -> Schedule:
        clustered = self.cluster > 1
        buffers = tuple(b for argument in self.held for b in argument.buffers)
        if not any(b.space is Space.SHARED for b in buffers):
            buffers += (Buffer("unused", Space.SHARED, (4,), "int32"),)
        return Schedule(
            roles=(Role(ROLE, self.warps, doc=f"calls {self.leaf.name}"),),
            buffers=buffers,
            pipelines=self.pipelines,
            mmas=self.mmas,
            grid=("1", str(self.cluster)) if clustered else ("1",),
            axes=("grid_x", "rank") if clustered else ("grid_x",),
            cluster=(1, self.cluster, 1),
            group=(1,) if clustered else (),
            named_barriers={pipe.meets: (ROLE,) for pipe in self.pipelines if pipe.meets},
        )

    def program(self) -> TileProgram:
        def start(m: Recorder) -> None:
            m.barriers_stand()

        bodies: dict[str, Body] = {START: start, ROLE: self._body}
        operands = tuple(o for argument in self.held for o in argument.operands)

        class Framed(TileProgram):
            """The probe as codegen and the interpreter see it."""

            def operands(_, knobs: Any) -> tuple[Operand, ...]:
                return operands

            def declared_operands(_, knobs: Any) -> tuple[OperandSpec, ...]:
                return tuple(OperandSpec(title, ("n",), "int32", peers=d) for title, d in self.peers.items())

            def text(_, knobs: Any, arch: ArchSpec) -> Text:
                """Unchecked against the schedule, as a leaf alone may leave some of its context unused."""

                def record(role: str | None) -> tuple[Any, ...]:
                    recorder = Recorder(SimpleNamespace(**knobs), self.schedule(), arch, role)
                    bodies[role or START](recorder)
                    return tuple(recorder.statements)

                end = (TearDown(),) if self.schedule().tmem_columns() else ()
                return Text(record(None), {ROLE: record(ROLE)}, end)

            def variant_id(_, backend: str, arch: ArchSpec, knobs: Any) -> str:
                return self.id

        return Framed(
            self.op, problems.get(self.op), (), lambda k, arch: self.schedule(), lambda k, arch: bodies
        )

    def text(self) -> str:
        """The text of the module to compile."""
        sources = [pair[self.cute] for argument in self.held for pair in argument.leaves.values()]
        names = {key for argument in self.held for key in argument.leaves}
        if self.lands:
            decorator = "@cute.jit" if self.cute else "@T.macro"
            sources.append(_source(decorator, "land", "", LANDS[self.lands][self.cute]))
            names.add("land")
        real = rendering.leaf_modules

        def with_own(*which: Any) -> tuple[Any, ...]:
            return (*real(*which), ("own", "own", frozenset(names)))

        instance = Instance(self.program(), self.dsl, get_arch(self.arch), {}, frame(self.dsl))
        with mock.patch.object(rendering, "leaf_modules", with_own):
            text = rendering.render(instance)
        # The probe's own leaves are inlined into the module, so that the cache's key covers them.
        text = text.replace(f"from dsl_kernels.device.{self.dsl} import own\n", "").replace("own.", "")
        text = re.sub(r"(from dsl_kernels\.device\.\w+ import .*?)(?:, own\b|\bown, )", r"\1", text, count=1)
        first = "\nLAUNCH" if self.cute else "\nPASS_CONFIGS"
        text = text.replace(first, f"\n\n{''.join(sources)}{first}", 1)
        if self.lands == "tmem":
            # TileLang includes this header for copies and products that it lowers, but not for extern calls.
            text = text.replace(
                "import_source(", "import_source('#include <tl_templates/cuda/copy_sm100.h>\\n' + "
            )
        if self.cute:
            # A frame without barriers lacks these imports.
            needs = (
                "from cutlass.cute.nvgpu import cpasync, tcgen05 as tcgen05_, warpgroup\n"
                "from dsl_kernels.device.cutedsl import wgmma\n"
            )
            text = text.replace("import cutlass.cute as cute\n", f"import cutlass.cute as cute\n{needs}", 1)
        return text

    def values(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Operands before a launch, and the dims."""
        operands, dims = {}, {}
        for argument in self.held:
            for key, value in argument.values.items():
                operands[key] = _as_it_lies(value) if isinstance(value, torch.Tensor) else value
            for spec in argument.operands:
                if spec.strides:
                    named = zip(spec.strides, argument.values[spec.name].stride(), strict=True)
                    dims |= {name: stride for name, stride in named if name.isidentifier()}
        return operands, dims

    def run(self, folder: Path) -> list[str]:
        """Describe the differences between the interpreter and the emulator."""
        program, arch = self.program(), get_arch(self.arch)
        # Cases with equal texts share a kernel.
        text = self.text()
        title = f"{self.id}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        path = folder / f"{title}.py"
        if not path.exists():
            path.write_text(text.replace(self.id, title))
        variant = Variant(title, self.op, self.dsl, self.arch, {}, path)
        expected, dims = self.values()
        Interpreter(seed=5).launch(program, {}, arch, expected, dims)
        got, _ = self.values()
        original = programs.get
        with mock.patch.object(programs, "get", lambda op: program if op == self.op else original(op)):
            Emulator().prepare(variant)(got, dims)
        ignored = {key: mask for argument in self.held for key, mask in argument.ignored.items()}
        folded = {key: fold for argument in self.held for key, fold in argument.folded.items()}
        failures = []
        if not any(spec.written for argument in self.held for spec in argument.operands):
            failures.append("the case compares nothing that the leaf writes")
        for key, value in expected.items():
            if isinstance(value, torch.Tensor):
                fold = folded.get(key, lambda same: same)
                failures += self._differences(key, fold(got[key]), fold(value), ignored.get(key))
        return failures

    def _differences(self, key: str, got: torch.Tensor, expected: torch.Tensor, ignored: Any) -> list[str]:
        if expected.dtype.is_floating_point and expected.element_size() > 1:
            a, b = got.double(), expected.double()
            near = key.removesuffix("_out") not in self.exact
            close = torch.isclose(a, b, rtol=self.relative * near, atol=self.absolute * near, equal_nan=True)
        else:
            close = got == expected
        if ignored is not None:
            close = close | ignored
        if bool(close.all()):
            return []
        at = tuple(torch.nonzero(~close)[0].tolist())
        return [
            f"{key}{list(at)}: {got[at].item()} where torch has {expected[at].item()} "
            f"({int((~close).sum())} of {close.numel()} differ)"
        ]


def spread(p: Probe, title: str, value: torch.Tensor, *, out: bool = False, gap: int = 16) -> Any:
    """An operand with gaps between its rows and its second-to-last axis outermost."""
    inner = value if value.dim() == 2 else value.transpose(0, 1)
    wide = torch.full((*inner.shape[:-1], inner.shape[-1] + gap), 7, dtype=value.dtype)
    view = wide[..., : inner.shape[-1]].copy_(inner)
    return p.operand(title, view if value.dim() == 2 else view.transpose(0, 1), out=out, strided=True)


def _as_it_lies(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, and the same content between its rows."""
    memory = value.as_strided((value.untyped_storage().nbytes() // value.element_size(),), (1,), 0)
    return memory.clone().as_strided(value.shape, value.stride(), value.storage_offset())


def _dtype_of(value: Any) -> str:
    """The dtype of a buffer's initial content, or float32."""
    first = value[0] if isinstance(value, list) else value
    return "float32" if first is None else NAMES[first.dtype]


def _signed(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As an operand: unsigned words, 64-bit integers in torch, become the int32 of the same bits."""
    if values.dtype == torch.int64 and dtype == torch.int32:
        values = (values + (1 << 31) & 0xFFFFFFFF) - (1 << 31)
    return values.to(dtype)


def _poison(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan") if dtype.is_floating_point else -77, dtype=dtype)


def swizzled(rows: int, columns: int, span: int, element_bytes: int) -> torch.Tensor:
    """The element of a [rows, columns] matrix at each place of its swizzled panels with rows of `span` bytes.

    Bits 4 to 6 of a byte address are XORed with bits 7 to 9, as many as the 16-byte pieces of a row need.
    """
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    byte = column * element_bytes
    address = byte // span * (rows * span) + row * span + byte % span
    address = address ^ ((address >> 7 & (span // 16 - 1)) << 4)
    places = torch.empty(rows * columns, dtype=torch.int64)
    places[address.flatten() // element_bytes] = torch.arange(rows * columns)
    return places


# Places of a thread's registers within a tile


def straight(threads: int, each: int) -> torch.Tensor:
    """Each thread has a row."""
    return torch.arange(threads * each).view(threads, each)


def alike(threads: int, count: int) -> torch.Tensor:
    """Every thread has all elements."""
    return torch.arange(count).expand(threads, count)
