"""Pytest support: ``pytest_plugins = ["dsl_kernels.emulator.pytest_plugin"]`` in a conftest.

The fixture ``emulate`` runs a kernel under several interleavings and checks it after each::

    def test_scale(emulate):
        x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        emulate(PTX, 1, 64, [x, y], verify=lambda: np.testing.assert_array_equal(y, 2 * x))

``--emulator-interleavings N`` and ``--emulator-seed S`` choose how many interleavings and from which seed; a failure names
the interleaving, which replays with ``emulate(..., interleaving=Interleaving(...))``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from .arguments import Struct, TensorMap, as_array
from .interleaving import Interleaving, interleavings
from .launch import launch
from .raw import RawArguments
from .report import Report


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("emulator")
    group.addoption(
        "--emulator-interleavings", type=int, default=3, help="interleavings that emulate() tries (default 3)"
    )
    group.addoption(
        "--emulator-seed", type=int, default=0, help="first seed of the emulator's interleavings (default 0)"
    )


def _arrays(args: Sequence[Any] | RawArguments) -> Iterator[Any]:
    if isinstance(args, RawArguments):
        args = [region.memory for region in args.memory if not isinstance(region.memory, tuple)]
    for a in args:
        if isinstance(a, TensorMap):
            yield from _arrays([a.array])
        elif isinstance(a, Struct):
            yield from _arrays(a.fields)
        elif as_array(a, "") is not None:
            yield a


@pytest.fixture
def emulate(request: pytest.FixtureRequest) -> Callable[..., list[Report]]:
    """Run a launch under several interleavings; inputs are restored before each, ``verify`` is called after each."""
    count = request.config.getoption("--emulator-interleavings")
    seed = request.config.getoption("--emulator-seed")

    def run(
        ptx: str,
        grid: Sequence[int] | int,
        block: Sequence[int] | int | None = None,
        args: Sequence[Any] | RawArguments = (),
        *,
        verify: Callable[[], object] | None = None,
        interleaving: Interleaving | None = None,
        **options: Any,
    ) -> list[Report]:
        arrays = list(_arrays(args))
        saved = [a.copy() if hasattr(a, "copy") else a.clone() for a in arrays]
        reports = []
        for s in [interleaving] if interleaving else interleavings(count, seed):
            for a, before in zip(arrays, saved, strict=True):
                a[...] = before
            reports.append(launch(ptx, grid, block, args, interleaving=s, **options))
            if verify:
                try:
                    verify()
                except Exception as e:
                    e.add_note(f"under {s}")
                    raise
        return reports

    return run
