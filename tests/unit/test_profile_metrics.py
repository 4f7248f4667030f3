"""Every requested counter exists on both chips, by the catalogues of names of NVIDIA's own library."""

from __future__ import annotations

import lzma
import re
from functools import lru_cache
from pathlib import Path

import pytest

from dsl_kernels_lab.profile import metrics

DATA = Path(__file__).parent / "data"
# The suffixes of each kind of metric.
SUFFIX = {
    "counter":
        re.compile(
            r"\.(sum|avg|min|max)"
            r"(\.(pct_of_peak_sustained_(active|elapsed)|per_cycle_(active|elapsed)|per_second))?$"
        ),
    "ratio": re.compile(r"\.(ratio|pct|max_rate)$"),
    "throughput": re.compile(r"\.(sum|avg|min|max)\.pct_of_peak_sustained_(active|elapsed)$"),
}  # fmt: skip


@lru_cache
def catalogue(chip: str) -> dict[str, str]:
    """The kind of each metric, by base name."""
    lines = lzma.decompress((DATA / f"metrics_{chip.lower()}.txt.xz").read_bytes()).decode().splitlines()
    return {name: kind for kind, name in (line.split(" ") for line in lines)}


@pytest.mark.parametrize("chip", ["GH100", "GB100"])
def test_every_counter_exists(chip: str) -> None:
    known = catalogue(chip)
    asked = metrics.counters(chip)
    assert len(asked) > 60
    for name in asked:
        base = name.split(".")[0]
        assert base in known, name
        assert SUFFIX[known[base]].match(name[len(base) :]), f"{name}: {known[base]}"


@pytest.mark.parametrize("chip", ["GH100", "GB100"])
def test_the_stall_reasons_of_a_chip_are_all_of_them(chip: str) -> None:
    pattern = re.compile(metrics.STALL.replace(".ratio", "").replace("{}", r"(\w+)") + "$")
    reasons = {match[1] for name in catalogue(chip) if (match := pattern.match(name))}
    assert reasons == set(metrics.stalls(chip))


def test_the_catalogues_tell_the_chips_apart() -> None:
    hopper, blackwell = catalogue("GH100"), catalogue("GB100")
    assert "sm__pipe_tensor_op_hmma_cycles_active" in hopper
    assert "sm__pipe_tensor_op_hmma_cycles_active" not in blackwell
    assert len(hopper) > 3000 and len(blackwell) > 4000
