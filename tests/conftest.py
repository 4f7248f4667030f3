"""Markers for what a test needs, and skips that name what is missing."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any
from unittest import mock

import pytest
import sampling


@lru_cache(maxsize=1)
def _capability() -> tuple[int, int] | None:
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def pytest_configure() -> None:
    """One thread per process: with several, small tensors take longer to synchronise than to compute."""
    import torch

    torch.set_num_threads(1)
    # Tests must not read tables that the user of this machine tuned.
    os.environ["DSL_KERNELS_TUNED_DIR"] = os.devnull


@pytest.fixture(autouse=True)
def _texts_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that patches what programs call gets freshly recorded texts, which no other test sees."""
    if "monkeypatch" in request.fixturenames:
        with mock.patch("dsl_kernels.tile.program._texts", {}):
            yield
    else:
        yield


@pytest.fixture(scope="module")
def few_sms() -> Iterator[None]:
    """GPUs of eight SMs, as idle CTAs cost the interpreter as much time as busy ones."""
    from dsl_kernels import ops
    from dsl_kernels.arch import GPUS

    small = {name: gpu.with_sms(8) for name, gpu in GPUS.items()}
    with mock.patch.dict(GPUS, small):
        ops.clear()
        yield
    ops.clear()


@pytest.fixture
def in_threads() -> Callable[[int, Callable[[int], Any]], list[Any]]:
    """Run work(i) in threads that switch every few bytecodes; returns their results or exceptions."""

    def run(count: int, work: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * count
        together = threading.Barrier(count)

        def body(i: int) -> None:
            together.wait()
            try:
                results[i] = work(i)
            except BaseException as error:
                results[i] = error

        threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        return results

    return run


def pytest_report_header() -> str:
    if sampling.ALL:
        return "every case of every test (TEST_ALL=1)"
    return f"sampled cases of large tests, drawn by TEST_SEED={sampling.SEED}; all of them with TEST_ALL=1"


def _deselect_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep `most` cases of each test that is marked `sample(most)`, unless the command line names cases."""
    if sampling.ALL or config.option.keyword or any("::" in str(path) for path in config.args):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for name, of_test in cases.items():
        most = of_test[0].get_closest_marker("sample").args[0]
        left_out |= set(of_test) - set(sampling.sample(of_test, most, name))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _deselect_cases(config, items)
    for item in items:
        if item.get_closest_marker("sm90") and _capability() != (9, 0):
            item.add_marker(
                pytest.mark.skip(
                    reason=f"needs a Hopper GPU (compute capability 9.0), found {_capability() or 'no GPU'}"
                )
            )
        if item.get_closest_marker("sm100") and _capability() != (10, 0):
            item.add_marker(
                pytest.mark.skip(
                    reason=f"needs a Blackwell GPU (compute capability 10.0), found "
                    f"{_capability() or 'no GPU'}"
                )
            )
