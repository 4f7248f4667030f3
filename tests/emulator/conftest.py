"""Optionally run the probes on a GPU instead of in the emulator: see hardware.py."""

import os

import pytest

PROBES = ("test_alu", "test_tma", "test_tensor_core")


@pytest.fixture(autouse=True)
def _hardware(request, monkeypatch):
    if os.environ.get("EMULATOR_TESTS_ON_HARDWARE") != "1":
        return
    module = request.module.__name__.rsplit(".", 1)[-1]
    if module not in PROBES or "report" in request.node.name or "checked" in request.node.name:
        pytest.skip("a test of the emulator's checks")
    from . import hardware

    monkeypatch.setattr(request.module, "launch", hardware.launch)
