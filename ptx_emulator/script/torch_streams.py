"""torch.cuda's streams, events and graphs while a program is checked: work runs in the order of issue."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, ClassVar

from .errors import UnsupportedCall
from .memory import Snapshot
from .session import Graph, Session

ELAPSED_MS = 1.0  # the answer of every event: no times are measured


class State:
    """The streams of one check; ``current`` holds the current ones, innermost last."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.numbers = itertools.count(1)
        self.current: list[Any] = []


class _Bound:
    """Base of classes whose instances know the check that they belong to; `bound` makes these classes."""

    state: ClassVar[State]


class Stream(_Bound):
    """Replaces ``torch.cuda.Stream``."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.cuda_stream = next(self.state.numbers) << 4
        self.device_index, self.priority = 0, priority

    @property
    def device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def synchronize(self) -> None:
        """Everything issued before is done already."""

    def wait_stream(self, stream: Any) -> None:
        graph = self.state.session.capturing(stream.cuda_stream)
        if graph is not None:
            self.state.session.join_capture(self.cuda_stream, graph)

    def wait_event(self, event: Any) -> None:
        if event.graph is not None:
            self.state.session.join_capture(self.cuda_stream, event.graph)

    def record_event(self, event: Any = None) -> Any:
        event = event or bound(Event, self.state)()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def __enter__(self) -> Any:
        self.state.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.state.current.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return self.cuda_stream


class Event(_Bound):
    """Replaces ``torch.cuda.Event``; it records no time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.graph: Graph | None = None
        self.cuda_event = next(self.state.numbers) << 4

    def record(self, stream: Any = None) -> None:
        self.graph = self.state.session.capturing((stream or self.state.current[-1]).cuda_stream)

    def wait(self, stream: Any = None) -> None:
        (stream or self.state.current[-1]).wait_event(self)

    def synchronize(self) -> None:
        """Everything issued before is done already."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        self.state.session.note("times are not measured: every event says 1 ms")
        return ELAPSED_MS


class Current(_Bound):
    """``torch.cuda.stream(s)``."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        if self.stream is not None:
            self.state.current.append(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.state.current.pop()


class CUDAGraph(_Bound):
    """A graph of the work that its capture issued. The capture itself leaves memory unchanged."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.graph: Graph | None = None

    def capture_begin(self, *_: Any, **__: Any) -> None:
        session = self.state.session
        self._before = Snapshot(session.memory.regions())
        session.join_capture(self.state.current[-1].cuda_stream, session.begin_capture(0))

    def capture_end(self) -> None:
        self.graph = self.state.session.end_capture(0)
        self._before.restore()

    def replay(self) -> None:
        if self.graph is None:
            raise UnsupportedCall(
                "CUDAGraph.replay", got="a graph that was not captured", fix="capture it first"
            )
        self.graph.run()

    def reset(self) -> None:
        self.graph = None

    def pool(self) -> tuple[int, int]:
        return 0, 0


class Capture(_Bound):
    """``torch.cuda.graph(g)``."""

    def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, **_: Any) -> None:
        self.cuda_graph, self.stream = cuda_graph, stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.state.current.append(self.stream)
        self.cuda_graph.capture_begin()

    def __exit__(self, *_: object) -> None:
        self.cuda_graph.capture_end()
        if self.stream is not None:
            self.state.current.pop()


class OneDevice:
    """``torch.cuda.device`` and ``device_of``: there is only one device."""

    def __init__(self, *_: Any) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        """Nothing to select."""

    def __exit__(self, *_: object) -> None:
        """Nothing to restore."""


def bound(kind: type, state: State) -> Any:
    return type(kind.__name__, (kind,), {"state": state})


def classes(session: Session) -> SimpleNamespace:
    """The classes for one check."""
    state = State(session)
    made = {kind.__name__: bound(kind, state) for kind in (Stream, Event, Current, CUDAGraph, Capture)}
    default = made["Stream"]()
    default.cuda_stream = 0
    state.current.append(default)
    return SimpleNamespace(**made, OneDevice=OneDevice, current=state.current)
