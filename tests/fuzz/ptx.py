"""Fuzzing of the emulator: mutants of hand-written and of compiled PTX end in a report or in a typed error.

Hand-written programs are those of the emulator's own tests. Compiled ones come from the artifact cache, if
they are there, with the operands of a tiny workload. Every mutant may execute a few thousand instructions.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import ptx_emulator as emulator
from dsl_kernels import variants
from dsl_kernels.executors import Emulator
from dsl_kernels.runtime import cache
from dsl_kernels_lab.verification import trial
from ptx_emulator import Interleaving, InternalError

from . import Counts

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.emulator.kernels import PROGRAMS  # noqa: E402
from tests.emulator.test_grid import (  # noqa: E402
    ASYNC_RING,
    GRID_BARRIER,
    LAST_ARRIVER,
    RING,
    run_merge,
    run_ring,
)

INSTRUCTIONS = 20_000
VARIANTS = (
    "topk_selector__cutedsl_sm90a__g8_t512_r8_c1",
    "sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl2_sl2",
    "lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0",
    "sparse_mla__tilelang_sm100a__h16_bf16_bt64_cl1_gather4",
)
INTERLEAVINGS = (
    Interleaving.lockstep(),
    Interleaving.random(1),
    Interleaving.adversarial(2, 0, "late"),
    Interleaving.random(3, resident=2),
)
TOKEN = re.compile(r"[\w%$@!.:]+|[^\s\w]")
NUMBER = re.compile(r"(?<![\w%$.])-?\d+")
REGISTER = re.compile(r"(%[a-z]+)\d+\b")
MODIFIER = re.compile(r"(?<=[a-z0-9])\.[a-z]\w*(?:::\w+)*")
OPCODE = re.compile(r"(?<=[\s;])[a-z]\w*(?:\.[\w:]+)+(?=\s)")
NUMBERS = (
    "0", "1", "-1", "2", "3", "7", "31", "32", "33", "64", "255", "256", "4096", "65535", "65536", "1048576",
    "2147483647", "2147483648",
    "-2147483648", "4294967295", "4294967296", "9223372036854775807", "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616", "9" * 30, "0x7fffffff", "0xffffffffffffffff", "010", "0b1", "0f7FC00000",
    "0d7FF0000000000000", "1e9", "1.5",
)  # fmt: skip
PIECES = (
    "", " ", ";", ",", "{", "}", "{}", "[", "]", "(", ")", "<", ">", "|", "!", "@", "_", ":", "+", "-", "//",
    "/*", "*/", "\n", "\"",
    "%r1", "%rd1", "%f1", "%p1", "%d1", "%h1", "%tid.x", "%clock", ".v4", ".v2", ".b8", ".pred", ".b128",
    ".shared", ".local",
    ".cta_group::2", ".x4", ".trans", ".noinc", "ret", "exit", "bra", "trap", ".reg .b32 %x<9>;",
    ".shared .b8 x[64];", "\u00e9", "\0",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A program: its text, and a function that runs a text with its operands."""

    name: str
    ptx: str
    run: Callable[[str, Interleaving, str], Any]


def fuzz_ptx(count: int, seed: int) -> Counts:
    """Run `count` mutants; each may take a second of CPU time to parse and run."""
    counts = Counts()
    for label, attempt in mutants(count, seed):
        counts.call(label, attempt)
    return counts


def mutants(count: int, seed: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Labels and runs; a label contains the seed and number that give the mutant again."""
    known = sources()
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        source = rng.choice(known)
        ptx, done = source.ptx, []
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            change = rng.choice(CHANGES)
            ptx = change(rng, ptx)
            done.append(change.__name__)
        interleaving, check = rng.choice(INTERLEAVINGS), rng.choice(("raise", "report"))
        yield (
            f"mutant {number} of seed {seed}, {source.name}, {' '.join(done)}",
            lambda source=source, ptx=ptx, interleaving=interleaving, check=check: attempt(
                source, ptx, interleaving, check
            ),
        )


def attempt(source: Source, ptx: str, interleaving: Interleaving, check: str) -> object:
    """Run a mutant; an internal failure of the emulator is a defect although its error is typed."""
    try:
        return source.run(ptx, interleaving, check)
    except InternalError as error:
        raise AssertionError(f"the emulator failed: {error}") from error


@lru_cache(maxsize=1)
def sources() -> tuple[Source, ...]:
    written = {
        **PROGRAMS,
        "ring": (RING, run_ring),
        "async ring": (ASYNC_RING, run_ring),
        "merge": (LAST_ARRIVER, run_merge),
        "grid": (GRID_BARRIER, run_merge),
    }
    return (*(_written(name, *program) for name, program in written.items()), *_compiled())


def _written(name: str, ptx: str, run: Callable[..., Any]) -> Source:
    return Source(
        name,
        ptx,
        lambda text, interleaving, check: run(text, interleaving, check, instruction_limit=INSTRUCTIONS),
    )


def _compiled() -> Iterator[Source]:
    """The variants in the cache, with the recorded launch of their smallest workload."""
    for name in VARIANTS:
        variant = variants.get(name)
        if cache.lookup(variant) is None:
            continue
        with mock.patch.object(emulator, "launch", wraps=emulator.launch) as recorded:
            workload = trial.workloads(variant, "tiny", "edge")[0]
            trial.run(variant, workload, Emulator(), example=trial.cached_example(variant.op, workload))
        launched = recorded.call_args_list[0]
        ptx, grid, block, _ = launched.args

        def run(
            text: str, interleaving: Interleaving, check: str, launched=launched, rest=(grid, block)
        ) -> Any:
            options = {**launched.kwargs, "interleaving": interleaving, "check": check, "entry": None}
            return emulator.launch(
                text, *rest, _copied(launched.args[3]), instruction_limit=INSTRUCTIONS, **options
            )

        yield Source(name, ptx, run)


def _copied(args: list[Any]) -> list[Any]:
    """Copies of operands, which a mutant may write."""
    from dataclasses import replace

    return [
        replace(arg, array=arg.array.clone())
        if isinstance(arg, emulator.TensorMap)
        else arg.clone()
        if hasattr(arg, "clone")
        else arg
        for arg in args
    ]


def _token(rng: random.Random, ptx: str) -> re.Match[str] | None:
    return TOKEN.search(ptx, rng.randrange(len(ptx) + 1)) or TOKEN.search(ptx)


def _line(rng: random.Random, ptx: str) -> tuple[int, int]:
    at = rng.randrange(len(ptx) + 1)
    start = ptx.rfind("\n", 0, at) + 1
    end = ptx.find("\n", at)
    return start, len(ptx) if end < 0 else end + 1


def _put(ptx: str, match: re.Match[str] | None, text: str) -> str:
    return ptx if match is None else ptx[: match.start()] + text + ptx[match.end() :]


def drop_token(rng: random.Random, ptx: str) -> str:
    return _put(ptx, _token(rng, ptx), "")


def repeat_token(rng: random.Random, ptx: str) -> str:
    token = _token(rng, ptx)
    return _put(ptx, token, f"{token[0]}{rng.choice(('', ' ', ', ', '.'))}{token[0]}" if token else "")


def swap_tokens(rng: random.Random, ptx: str) -> str:
    a, b = sorted((m for m in (_token(rng, ptx), _token(rng, ptx)) if m), key=lambda m: m.start()) or (
        None,
        None,
    )
    if a is None or b is None or a.end() > b.start():
        return ptx
    return ptx[: a.start()] + b[0] + ptx[a.end() : b.start()] + a[0] + ptx[b.end() :]


def copy_token(rng: random.Random, ptx: str) -> str:
    other = _token(rng, ptx)
    return _put(ptx, _token(rng, ptx), other[0] if other else "")


def put_piece(rng: random.Random, ptx: str) -> str:
    token = _token(rng, ptx)
    piece = rng.choice(PIECES)
    return _put(ptx, token, piece if rng.random() < 0.5 or not token else f"{token[0]}{piece}")


def change_number(rng: random.Random, ptx: str) -> str:
    match = NUMBER.search(ptx, rng.randrange(len(ptx) + 1)) or NUMBER.search(ptx)
    if not match:
        return ptx
    near = (
        str(int(match[0]) + rng.choice((-16, -8, -4, -1, 1, 2, 4, 8, 16, 1 << 20)))
        if len(match[0]) < 20
        else "0"
    )
    return _put(ptx, match, rng.choice((near, rng.choice(NUMBERS))))


def change_register(rng: random.Random, ptx: str) -> str:
    """Another register of the same kind, usually a declared one: %r7 becomes %r12."""
    match = REGISTER.search(ptx, rng.randrange(len(ptx) + 1))
    if not match:
        return ptx
    other = rng.choice((0, 1, 2, 3, 5, 12, 40, 63, rng.randrange(400), 99999))
    return _put(ptx, match, f"{match[1]}{other}")


def change_modifier(rng: random.Random, ptx: str) -> str:
    """Replace a modifier of an opcode by one of another instruction."""
    match = MODIFIER.search(ptx, rng.randrange(len(ptx) + 1))
    other = MODIFIER.search(ptx, rng.randrange(len(ptx) + 1))
    return _put(ptx, match, other[0]) if match and other else ptx


def change_opcode(rng: random.Random, ptx: str) -> str:
    """Give an instruction the opcode of another one."""
    match = OPCODE.search(ptx, rng.randrange(len(ptx) + 1))
    other = OPCODE.search(ptx, rng.randrange(len(ptx) + 1))
    return _put(ptx, match, other[0]) if match and other else ptx


def drop_line(rng: random.Random, ptx: str) -> str:
    start, end = _line(rng, ptx)
    return ptx[:start] + ptx[end:]


def repeat_line(rng: random.Random, ptx: str) -> str:
    start, end = _line(rng, ptx)
    return ptx[:end] + ptx[start:end] * rng.choice((1, 2, 40)) + ptx[end:]


def move_line(rng: random.Random, ptx: str) -> str:
    start, end = _line(rng, ptx)
    rest = ptx[:start] + ptx[end:]
    at, _ = _line(rng, rest)
    return rest[:at] + ptx[start:end] + rest[at:]


def flip_bytes(rng: random.Random, ptx: str) -> str:
    raw = bytearray(ptx.encode("latin-1", "replace"))
    for _ in range(rng.choice((1, 2, 8))):
        if raw:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return raw.decode("latin-1")


def truncate(rng: random.Random, ptx: str) -> str:
    cut = rng.randrange(len(ptx) + 1)
    return rng.choice((ptx[:cut], ptx[:cut] + "\n}\n", ptx[cut:]))


CHANGES = (
    drop_token, repeat_token, swap_tokens, copy_token, put_piece, flip_bytes, truncate,
    *(4 * (change_number, change_register, drop_line, repeat_line, move_line)),
    *(2 * (change_modifier, change_opcode)),
)  # fmt: skip
