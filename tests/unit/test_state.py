"""Attributes of a State that functions of a body share, and the names that `inline` and `named` give."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dsl_kernels.arch import get_arch
from dsl_kernels.errors import DeclarationError, UnknownNameError
from dsl_kernels.tile.frontend import Int32, Names, State, inline, named, recorded
from dsl_kernels.tile.lang import Role, Schedule
from dsl_kernels.tile.text import Assign, Recorder, Variable, View


class Pair(State):
    low: Int32
    high: Int32


class Shared(State):
    number: Int32
    pair: Pair


def recorder(role: str | None) -> Recorder:
    schedule = Schedule(
        roles=(Role("one", 4), Role("other", 4)), buffers=(), pipelines=(), mmas=(), grid=("1",)
    )
    return Recorder(SimpleNamespace(), schedule, get_arch("sm_90a"), role)


@recorded
def start(m: Recorder) -> Shared:
    s = Shared(m)
    s.number = 1
    s.pair = Pair(m)
    s.pair.low = named("low_left", 2)
    s.pair.high = 3
    return s


@recorded
def role(m: Recorder, s: Shared) -> None:
    count: Int32 = named("count_of_all", s.number)
    count += 1
    s.pair.low += count
    s.pair.high = 4


def test_a_variable_has_the_name_that_named_gives_it() -> None:
    m = recorder(None)
    s = start(m)
    declared = [(v.name, v.initial) for v in m.statements if isinstance(v, Variable)]
    assert declared == [("number", 1), ("low_left", 2), ("high", 3)]
    role(m, s)
    declared = [(v.name, v.initial) for v in m.statements if isinstance(v, Variable)]
    assert declared[3:] == [("count_of_all", s.number)]


def test_a_state_within_another_is_handed_on_with_it() -> None:
    first, second = recorder(None), recorder("one")
    s = start(first)
    statements = list(first.statements)
    role(second, s.handed(second))
    assert first.statements == statements
    assert [v.name for v in second.statements if isinstance(v, Assign)] == [
        "count_of_all",
        "low_left",
        "high",
    ]
    assert s.pair.m is first


@recorded
def several(m: Recorder) -> None:
    _first, _second = inline(m.dim("a") + 1), 2


def test_inline_among_several_targets_is_refused() -> None:
    with pytest.raises(DeclarationError, match="inline in an assignment that names nothing"):
        several(recorder("one"))


class Declared(Names):
    ctas: Int32
    acc: View


class Both(State, Declared):
    number: Int32


def test_a_state_has_what_its_kernel_declares() -> None:
    m = recorder(None)
    s = Both(m, number=1)
    assert (s.ctas.op, s.ctas.args, s.number.args) == ("name", ("ctas",), ("number",))
    with pytest.raises(DeclarationError, match=r"Both.ctas: expected one of number; got ctas"):
        s.ctas = 2
    with pytest.raises(UnknownNameError, match="buffer acc"):
        s.acc  # noqa: B018
    with pytest.raises(AttributeError):
        s.other  # noqa: B018
