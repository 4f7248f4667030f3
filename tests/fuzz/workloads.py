"""Fuzzing of workload files: steps as `steps.save` writes them, with tensors, metadata or bytes altered."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from . import Counts
from .helpers import isolated

Content = tuple[dict[str, torch.Tensor], dict[str, str]]

METADATA = (
    "x", "", "-1", "0", "64.5", "nan", "inf", "1e400", "9" * 30, "²", "prefill", "decode", "train", "2", "e",
    "10", "None", "{}",
)  # fmt: skip
NUMBERS = (-(2**31), -1, 0, 1, 63, 64, 65, 129, 2**25, 2**31 - 1)
DTYPES = (
    torch.int32, torch.int64, torch.uint8, torch.int8, torch.bool, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


def _drop(content: Content, generator: random.Random) -> None:
    del content[0][generator.choice(list(content[0]))]


def _keep_two(content: Content, generator: random.Random) -> None:
    tensors = content[0]
    for name in generator.sample(list(tensors), max(0, len(tensors) - 3)):
        if name not in ("seq_lens", "block_table", "k_start", "k_end"):
            del tensors[name]


def _rename(content: Content, generator: random.Random) -> None:
    name = generator.choice(list(content[0]))
    content[0][generator.choice((name + "s", "x", "k_start", "seq_lens", "kpe", "é", "__metadata"))] = (
        content[0].pop(name)
    )


def _dtype(content: Content, generator: random.Random) -> None:
    name = generator.choice(list(content[0]))
    content[0][name] = content[0][name].float().to(generator.choice(DTYPES))


def _shape(content: Content, generator: random.Random) -> None:
    tensors, name = content[0], generator.choice(list(content[0]))
    tensor = tensors[name]
    change = generator.randrange(6)
    if change == 0:
        tensors[name] = tensor.flatten().clone()
    elif change == 1:
        tensors[name] = tensor[None].clone()
    elif change == 2:
        tensors[name] = tensor[:0].clone()
    elif change == 3:
        tensors[name] = torch.cat([tensor, tensor])
    elif change == 4 and tensor.shape[-1] > 1:
        tensors[name] = tensor[..., :-1].clone()
    else:
        tensors[name] = torch.zeros((), dtype=tensor.dtype)


def _values(content: Content, generator: random.Random) -> None:
    names = [n for n in ("seq_lens", "block_table", "k_start", "k_end") if n in content[0]]
    if not names:
        return
    tensor = content[0][generator.choice(names)]
    if tensor.numel() and tensor.dtype == torch.int32:
        flat = tensor.view(-1)
        flat[generator.randrange(len(flat))] = generator.choice(NUMBERS)


def _metadata(content: Content, generator: random.Random) -> None:
    content[1][generator.choice(("kind", "topk", "sm_scale", "lse_base", "format", "other"))] = (
        generator.choice(METADATA)
    )


def _bare(content: Content, generator: random.Random) -> None:
    content[1].clear()


EDITS: tuple[Callable[[Content, random.Random], None], ...] = (
    _drop, _keep_two, _rename, _dtype, _shape, _values, _metadata, _bare,
)  # fmt: skip


def _truncate(raw: bytearray, generator: random.Random) -> None:
    del raw[generator.choice((0, 4, 8, 9, 100, len(raw) // 2, max(0, len(raw) - 1))) :]


def _flip(raw: bytearray, generator: random.Random) -> None:
    # Mostly within the header: after it are numbers, of which any value is valid.
    end = len(raw) if generator.random() < 0.2 else min(len(raw), 1500)
    for _ in range(generator.randrange(1, 4)):
        raw[generator.randrange(end)] ^= 1 << generator.randrange(8)


def _header(raw: bytearray, generator: random.Random) -> None:
    raw[:8] = generator.choice((0, 1, 2, 10**6, 2**40, 2**63, 2**64 - 1)).to_bytes(8, "little")


def _other(raw: bytearray, generator: random.Random) -> None:
    raw[:] = generator.choice(
        (
            b"",
            b"{}",
            b"PK\3\4",
            b"\x02\0\0\0\0\0\0\0{}",
            b"\x04\0\0\0\0\0\0\0null",
            b"\0" * 100,
            b"\xff" * 100,
        )
    )


def _append(raw: bytearray, generator: random.Random) -> None:
    raw += b"more"


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _truncate,
    _flip,
    _flip,
    _flip,
    _header,
    _other,
    _append,
)


def fuzz_workloads(count: int, seed: int) -> Counts:
    """Load `count` altered files, and run every twenty-fifth that loads through the interpreter."""
    from dsl_kernels_lab import steps
    from dsl_kernels_lab.steps import check

    generator, counts = random.Random(seed), Counts()
    sizes = {
        "decode": steps.StepSize(batch=2, context=130, topk=64, heads=8, index_heads=32),
        "prefill": steps.StepSize("prefill", rows=3, context=130, topk=64, heads=8, index_heads=32),
    }
    drawn = {kind: steps.draw(size)[0] for kind, size in sizes.items()}
    with isolated() as folder:
        path = folder / "step.safetensors"
        for kind, inputs in drawn.items():
            steps.save(inputs, path)
            counts.call(f"{kind} as saved", steps.load, path, sizes[kind], expect=_same(inputs), limit_s=60)
        for turn in range(count - len(drawn)):
            kind = generator.choice(list(sizes))
            what = _altered(drawn[kind], path, generator)
            size = sizes[kind if generator.random() < 0.95 else "prefill"]
            loaded = counts.call(f"{turn} {kind}: {what}", _loaded, path, size, expect=_finite)
            if loaded is not None and turn % 25 == 0:
                counts.call(
                    f"{turn} {kind}, run: {what}",
                    check.run_checked,
                    loaded,
                    executor="interpreter",
                    limit_s=30,
                )
    return counts


def _altered(inputs: Any, path: Path, generator: random.Random) -> str:
    """Write the step with one to three changes of its content, or of its bytes; returns a description."""
    tensors = {name: tensor.clone() for name, tensor in inputs.tensors.items()}
    content = (tensors, {"kind": inputs.kind, "topk": str(inputs.topk), "sm_scale": repr(inputs.sm_scale)})
    damaged = generator.random() < 0.4
    edits = [] if damaged else generator.choices(EDITS, k=generator.choice((1, 1, 2, 3)))
    for edit in edits:
        if content[0]:
            edit(content, generator)
    save_file(content[0], path, metadata=content[1])
    if damaged:
        damage = generator.choice(DAMAGES)
        raw = bytearray(path.read_bytes())
        damage(raw, generator)
        path.write_bytes(raw)
        return damage.__name__
    return ", ".join(edit.__name__ for edit in edits)


def _same(inputs: Any) -> Callable[[Any], bool]:
    def right(loaded: Any) -> bool:
        tensors: Mapping[str, torch.Tensor] = loaded.tensors
        return tensors.keys() == inputs.tensors.keys() and all(
            torch.equal(tensors[n].view(torch.uint8), t.view(torch.uint8)) for n, t in inputs.tensors.items()
        )

    return right


def _loaded(path: Path, size: Any) -> Any:
    """A step whose sizes can be read."""
    from dsl_kernels_lab import steps

    inputs = steps.load(path, size)
    inputs.size().describe()
    return inputs


def _finite(loaded: Any) -> bool:
    return math.isfinite(loaded.sm_scale)
