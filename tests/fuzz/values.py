"""Values that no argument should accept unchecked, and a generator that draws them."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Hostile:
    """An object that raises when it is shown, compared, hashed or counted."""

    __hash__ = None

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


def _itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


PLAIN: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: False, lambda: "", lambda: "64", lambda: "x", lambda: "sparse_mla",
    lambda: "cpu",
    lambda: "cuda:7", lambda: "meta", lambda: "a\0b", lambda: "\udcff", lambda: "é" * 3, lambda: "n" * 5000,
    lambda: "../" * 40, lambda: "sm_100a", lambda: "fp8", lambda: "prefill", lambda: "a // 0",
    lambda: "1 << 99", lambda: "(" * 300,
    lambda: "-1", lambda: "1e400", lambda: "{}", lambda: "9" * 5000, lambda: "~nobody/x", lambda: ",=,",
    lambda: "ſparse_mla",
    lambda: "/dev/null/x", lambda: "/proc/self/mem", lambda: b"", lambda: b"sm_90a", lambda: 3.5, lambda: 1.0,
    lambda: math.nan, lambda: math.inf, lambda: -math.inf, lambda: -1, lambda: 0, lambda: 1, lambda: 64,
    lambda: 2**31,
    lambda: 2**31 - 1, lambda: 2, lambda: 3, lambda: 127, lambda: 2**32, lambda: 2**63, lambda: -(2**63) - 1,
    lambda: 10**30, lambda: 10**5000, lambda: 1j, lambda: [],
    lambda: {}, lambda: (), lambda: set(), lambda: object(), lambda: Hostile(), lambda: _itself(),
    lambda: ["sparse_mla"],
    lambda: [None], lambda: [1, 2], lambda: {"a": 1}, lambda: {"a": None}, lambda: {None: 1},
    lambda: {"t": 2**40},
    lambda: (i for i in range(3)), lambda: range(3), lambda: lambda *a, **k: None, lambda: Path("none"),
    lambda: Path("."), lambda: Path("n" * 300), lambda: np.int64(7), lambda: np.float32(2),
    lambda: np.zeros(3), lambda: np.str_("x"),
    lambda: np.array("x", dtype=object), lambda: slice(None), lambda: NotImplemented, lambda: Ellipsis,
)  # fmt: skip


def _quantised() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.zeros(4, 128), 0.1, 0, torch.qint8)


TENSORS: tuple[Callable[[], Any], ...] = (
    lambda: torch.zeros(()), lambda: torch.zeros(0), lambda: torch.zeros(0, 128),
    lambda: torch.zeros(3, 0, 128),
    lambda: torch.zeros(2, 64, 128), lambda: torch.zeros(5, 512), lambda: torch.zeros(5, 64),
    lambda: torch.zeros(4, 656, dtype=torch.uint8),
    lambda: torch.zeros(2, 64, 1, 132, dtype=torch.uint8), lambda: torch.zeros(2, 64, 128).to_sparse(),
    lambda: torch.eye(4).to_sparse_csr(),
    lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    lambda: torch.nested.nested_tensor([torch.zeros(2, 8), torch.zeros(3, 8)], layout=torch.jagged),
    _quantised, lambda: torch.zeros(2, 64, 128, device="meta"),
    lambda: torch.zeros(2, 64, 128, dtype=torch.complex64),
    lambda: torch.zeros(2, 64, 128, dtype=torch.bool), lambda: torch.zeros(2, 64, 128, dtype=torch.int64),
    lambda: torch.zeros(2, 64, 128, dtype=torch.float8_e4m3fn),
    lambda: torch.zeros(2, 64, 128, dtype=torch.float16),
    lambda: torch.zeros(1).expand(2**31), lambda: torch.zeros(1, 1, 128).expand(2**25, 64, 128),
    lambda: torch.zeros(1, 656, dtype=torch.uint8).expand(2**31, 656),
    lambda: torch.zeros(1, 512).expand(2**31, 512),
    lambda: torch.zeros(1, 64, 1, 132, dtype=torch.uint8).expand(2**31, 64, 1, 132),
    lambda: torch.zeros(128, 64, 2).permute(2, 1, 0), lambda: torch.zeros(512, 5).T,
    lambda: torch.zeros(2, 64, 256)[..., ::2],
    lambda: torch.zeros(2, 64, 128, requires_grad=True), lambda: torch.full((2, 64, 128), math.nan),
    lambda: torch.nn.Parameter(torch.zeros(5, 512)), lambda: torch.zeros(5, 512, dtype=torch.bfloat16),
    lambda: torch.device("cpu"), lambda: torch.float32, lambda: torch.Generator(),
)  # fmt: skip


@cache
def _makers(kind: type) -> tuple[Callable[[], Any], ...]:
    return tuple(make for make in (*PLAIN, *TENSORS) if type(_made(make)) is kind)


def _made(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():  # sparse, nested and quantised tensors warn on use
        warnings.simplefilter("ignore")
        return make()


def draw(generator: random.Random, kind: type = object) -> Any:
    """A hostile value, of the given type if there are any."""
    among = PLAIN if generator.random() < 0.65 else TENSORS
    return _made(generator.choice(_makers(kind) or among))


def spelled(value: Any) -> str:
    """A value for a label."""
    if isinstance(value, torch.Tensor):
        shape = "nested" if value.is_nested else tuple(value.shape)
        return f"{value.dtype} {shape} {value.layout} {value.device}"
    if isinstance(value, str | bytes | int | float | None) and not (
        isinstance(value, int) and value > 10**40
    ):
        return repr(value)[:40]
    return type(value).__name__
