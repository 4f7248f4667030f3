"""What `@checked` derives from a signature, and the errors of the other checks of user input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dsl_kernels import arguments
from dsl_kernels.arguments import checked
from dsl_kernels.errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError
from dsl_kernels.problems.layouts import pack_fp8_tokens, pack_index_keys
from dsl_kernels_lab import arguments as lab_arguments
from dsl_kernels_lab.layouts import unpack_index_keys


@checked
def takes(
    count: int = 0, share: float = 0.0, flag: bool = False, name: str | None = None, path: str | Path = "",
    names: Sequence[str] = (), each: Iterable[int] = (), sizes: Mapping[str, int] | None = None,
    tensor: torch.Tensor | None = None, call: Callable[[], int] | None = None,
    pair: tuple[int, str] = (0, ""),
    anything: Any = None, *more: int,
) -> int:  # fmt: skip
    return count


@checked
@dataclass(frozen=True)
class Record:
    count: int
    name: str = ""


ACCEPTED = {
    "count": (0, -1, 2**70, np.int64(3)), "share": (1, 2.5, np.float32(1)), "flag": (True,),
    "name": (None, "x"),
    "path": ("x", Path("x")), "names": ([], ["x"], ("x", "y")), "each": ([1], {1}, range(3), iter("ab")),
    "sizes": (None, {}, {"x": 1}), "tensor": (None, torch.zeros(2)), "call": (None, len), "pair": ((1, "x"),),
    "anything": (None, [], object()),
}  # fmt: skip
REFUSED = {
    "count": (True, "64", 1.0, None), "share": ("1", True, None, 1j), "flag": (0, 1, None),
    "name": (1, b"x", ["x"]),
    "path": (None, 1, "a\0b", "n" * 300, "\ud800"), "names": ("x", [1], {"x"}, np.array(["x"])),
    "each": ("x", 1, [1, "x"], torch.zeros(2)),
    "sizes": ([], {1: 1}, {"x": "1"}), "tensor": ([1], np.zeros(2), torch.eye(2).to_sparse()), "call": (1,),
    "pair": ((1,), [1, "x"], ("x", 1)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in ACCEPTED.items() for v in values])
def test_what_a_signature_names_is_taken(name: str, value: object) -> None:
    takes(**{name: value})


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in REFUSED.items() for v in values])
def test_the_rest_is_refused_by_the_name_of_the_argument(name: str, value: object) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        takes(**{name: value})
    assert caught.value.subject == name and caught.value.expected and caught.value.got and caught.value.fix


def test_arguments_by_position_are_checked_too() -> None:
    with pytest.raises(ArgumentTypeError, match="share"):
        takes(1, "2")
    with pytest.raises(ArgumentTypeError, match="more"):
        takes(0, 0.0, False, None, "", (), (), None, None, None, (0, ""), None, 1, "2")


def test_the_fields_of_a_dataclass_are_checked() -> None:
    assert Record(3, name="x") == Record(count=3, name="x")
    with pytest.raises(ArgumentTypeError, match="count: expected an integer; got '3' \\(str\\)"):
        Record("3")


def test_a_wrong_number_of_arguments_stays_pythons_error() -> None:
    with pytest.raises(TypeError) as caught:
        Record()
    assert not isinstance(caught.value, ArgumentTypeError)


def test_any_value_can_be_named() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    itself: list[Any] = []
    itself.append(itself)
    shown = [
        arguments.shown(v) for v in (None, "x" * 999, 10**9999, itself, Silent(), torch.eye(2).to_sparse())
    ]
    assert all(len(text) < 100 for text in shown)
    assert shown[0] == "None" and "33" in shown[2] and shown[4] == "a Silent" and "sparse" in shown[5]


def test_ranges_and_names() -> None:
    for value in (-1, 11, float("nan")):
        with pytest.raises(InvalidArgumentError, match="0 to 10"):
            arguments.require_range("x", value, 0, 10)
    with pytest.raises(UnknownNameError, match="did you mean cuda"):
        arguments.require_known("executor", "cudo", ["cuda", "emulator"], "executor")
    with pytest.raises(ArgumentTypeError):
        arguments.require_known("executor", [], ["cuda"], "executor")
    with pytest.raises(InvalidArgumentError, match="device"):
        lab_arguments.require_device("device", "meta")
    with pytest.raises(InvalidArgumentError, match="free"):
        lab_arguments.require_memory("x", 2**60, torch.device("cpu"), "less")
    with pytest.raises(ArgumentTypeError, match="JSON"):
        lab_arguments.as_json("x", {"x": object()})


def test_packing_takes_any_layout_and_no_rows_but_nothing_expanded() -> None:
    keys = torch.randn(128, 64, 2)
    assert torch.equal(
        pack_index_keys(keys.permute(2, 1, 0)), pack_index_keys(keys.permute(2, 1, 0).contiguous())
    )
    assert unpack_index_keys(pack_index_keys(torch.zeros(0, 64, 128)))[0].shape == (0, 64, 128)
    assert pack_fp8_tokens(torch.zeros(0, 512), torch.zeros(0, 64)).shape == (0, 656)
    with pytest.raises(InvalidArgumentError, match="expanded"):
        pack_fp8_tokens(torch.zeros(1, 512).expand(2**31, 512), torch.zeros(1, 64).expand(2**31, 64))
    with pytest.raises(ArgumentTypeError, match="dtype"):
        pack_index_keys(torch.zeros(2, 64, 128, dtype=torch.int64))
