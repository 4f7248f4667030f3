"""Optimisations of a compile worker do not change what it compiles."""

from __future__ import annotations

import gc
import inspect
import sys
from types import FrameType, ModuleType

import pytest

from dsl_kernels.runtime import speed

OP = "cutlass._mlir_helpers.op"


def here() -> FrameType:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back


def test_a_place_is_looked_up_once_and_no_two_places_are_mixed_up(monkeypatch):
    asked = []

    def found(frame: FrameType) -> int:
        asked.append(frame.f_lineno)
        return frame.f_lineno

    remembered = speed._by_place(found)
    lines = [(remembered(here()), remembered(here())) for _ in range(3)]
    assert len(asked) == 2 and len(set(lines)) == 1
    monkeypatch.setattr(speed, "_PLACES", 2)
    assert remembered(here()) == asked[-1] and len(asked) == 3


def test_cute_dsl_gets_the_location_that_it_finds_itself(monkeypatch):
    op = pytest.importorskip(OP)
    own, framework = op._fast_frameinfo, op._is_framework_module
    monkeypatch.setattr(op, "_fast_frameinfo", own)
    monkeypatch.setattr(op, "_is_framework_module", framework)
    speed.remember_places()
    assert op._fast_frameinfo is not own, "this version of the DSL is as slow as before"
    assert op._is_framework_module is not framework, "this version of the DSL is as slow as before"

    def both() -> tuple[object, object]:
        frame = inspect.currentframe().f_back
        return op._fast_frameinfo(frame), own(frame)

    # On one line, so that only the columns distinguish the calls.
    pairs = [pair for _ in range(2) for pair in (both(), both())]
    assert all(one == other and one.positions == other.positions for one, other in pairs)
    assert len({one.positions for one, _ in pairs}) == 2
    assert [op._is_framework_module(name) for name in ("cutlass.cute", "cutlassy", "")] == [
        framework(name) for name in ("cutlass.cute", "cutlassy", "")
    ]


def test_a_dsl_that_asks_in_another_way_is_left_alone(monkeypatch):
    op = ModuleType(OP)
    op._fast_frameinfo = own = lambda frame, depth: None
    monkeypatch.setitem(sys.modules, "cutlass", ModuleType("cutlass"))
    monkeypatch.setitem(sys.modules, "cutlass._mlir_helpers", ModuleType("cutlass._mlir_helpers"))
    monkeypatch.setitem(sys.modules, OP, op)
    speed.remember_places()
    assert op._fast_frameinfo is own and not hasattr(op, "_is_framework_module")
    monkeypatch.setitem(sys.modules, OP, None)
    speed.remember_places()


def test_a_backend_whose_dsl_is_missing_is_left_to_its_jobs(monkeypatch):
    monkeypatch.setitem(sys.modules, "tilelang", None)
    monkeypatch.setattr(speed, "remember_places", lambda: pytest.fail("nothing of CuTe DSL is there"))
    speed.prepare.cache_clear()
    try:
        speed.prepare("tilelang")
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
        speed.prepare.cache_clear()
