"""Pytest support: ``pytest_plugins = ["ptx_emulator.pytest_plugin"]`` in a conftest.

The fixture ``emulate`` runs a kernel under several interleavings and checks it after each::

    def test_scale(emulate):
        x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        emulate(PTX, 1, 64, [x, y], verify=lambda: np.testing.assert_array_equal(y, 2 * x))

``--emulator-interleavings N`` and ``--emulator-seed S`` choose the number of interleavings and their seed. A
failure names its interleaving, which replays with ``emulate(..., interleaving=Interleaving(...))``.

``pytest --emulate`` checks every launch that the tests make themselves, through CuTe DSL, TileLang, Triton,
torch's "cuda" or the driver's calls from Python, as ``ptx-emulator script`` does for a
program. A test fails at its first error. ``-p ptx_emulator.pytest_plugin`` loads the plugin where no
conftest does. The fixture ``emulated_device`` does the same for one test, on the architecture of the mark
``emulated_arch("sm_100a")`` or of ``--emulate-arch``. The plugin verifies kernels written for NVIDIA GPUs
before they run there: it is no platform to run them on, and nothing is translated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from .interleaving import Interleaving, interleavings
from .launch import launch_each
from .raw import RawArguments
from .report import Report

if TYPE_CHECKING:
    from .script import Session

_RUN: pytest.StashKey[tuple[ExitStack, Session]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("emulator")
    group.addoption(
        "--emulator-interleavings", type=int, default=3, help="interleavings that emulate() tries (default 3)"
    )
    group.addoption(
        "--emulator-seed", type=int, default=0, help="first seed of the emulator's interleavings (default 0)"
    )
    group.addoption(
        "--emulate",
        action="store_true",
        help="check every launch that the tests make, without a GPU and a driver",
    )
    group.addoption(
        "--emulate-arch", default="sm_90a", help="architecture that --emulate compiles for (default sm_90a)"
    )
    group.addoption(
        "--emulate-explain", default=None, help="folder for pages that explain the findings of --emulate"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "emulated_arch(name): architecture of the fixture emulated_device, such as sm_100a"
    )
    if not config.getoption("--emulate"):
        return
    # Start before the tests are imported: marks such as skipif(not torch.cuda.is_available()) evaluate at
    # import.
    stack = ExitStack()
    config.stash[_RUN] = (stack, stack.enter_context(_emulated(config, config.getoption("--emulate-arch"))))


def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(_RUN, None)
    if run is not None:
        run[0].close()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    run = config.stash.get(_RUN, None)
    if run is not None and run[1].launches:
        from .script.text import PURPOSE

        wrong = sum(not record.ok for record in run[1].launches)
        terminalreporter.section("emulator")
        terminalreporter.write_line(PURPOSE)
        terminalreporter.write_line(f"{len(run[1].launches)} launches were checked, {wrong} failed")
        for note, times in run[1].notes.items():
            terminalreporter.write_line(f"note: {note} ({times} times)")


def _emulated(config: pytest.Config, arch: str) -> Any:
    from .script import emulated

    return emulated(
        arch,
        interleavings=config.getoption("--emulator-interleavings"),
        seed=config.getoption("--emulator-seed"),
        explain=config.getoption("--emulate-explain"),
    )


@pytest.fixture
def emulated_device(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Check the test's own launches; gives the session, whose ``launches`` hold the findings."""
    run = request.config.stash.get(_RUN, None)
    mark = request.node.get_closest_marker("emulated_arch")
    arch = mark.args[0] if mark else request.config.getoption("--emulate-arch")
    if run is not None:
        if run[1].device.arch.name != arch:
            pytest.skip(f"for {arch}, and --emulate runs for {run[1].device.arch.name}")
        yield run[1]
        return
    with _emulated(request.config, arch) as session:
        yield session


@pytest.fixture
def emulate(request: pytest.FixtureRequest) -> Callable[..., list[Report]]:
    """Run a launch under several interleavings, each from the same inputs, and call ``verify`` after each."""
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
        chosen = [interleaving] if interleaving else interleavings(count, seed)
        reports = []
        for report in launch_each(ptx, grid, block, args, interleavings=chosen, **options):
            reports.append(report)
            if verify:
                try:
                    verify()
                except Exception as e:
                    e.add_note(f"under {report.interleaving}")
                    raise
        return reports

    return run
