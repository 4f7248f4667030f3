"""The emulator writes what a GPU wrote for the probes, recorded as digests: bit for bit, on every machine."""

import json
from collections import defaultdict

import pytest

from .hardware import RECORDED, digest, identity, outputs, run_emulated
from .probes import probes

GROUPS = defaultdict(list)
for _p in probes():
    if _p.tolerance is None:
        GROUPS[_p.group].append(_p)
RESULTS = json.loads(RECORDED.read_text())["probes"]


@pytest.mark.parametrize("group", GROUPS)
def test_the_emulator_agrees_with_the_recording(group):
    """A probe that has changed since needs a new recording: see docs/emulator_evidence.md."""
    for p in GROUPS[group]:
        kept = RESULTS.get(p.name)
        if kept is None:
            assert p.optional, f"{p.name} was not recorded"
            continue
        assert identity(p) == kept["identity"], f"{p.name} has changed since it was recorded"
        assert run_emulated(p) is None, p.name
        assert digest(outputs(p)) == kept["digest"], p.name
