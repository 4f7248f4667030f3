"""A CTA's share of the indexer's key tiles: many tiles, several sequences, rings that wrap.

The committed variants deal tiles to as many CTAs as an architecture has SMs, so on a small workload none gets more
than one. Here the same templates are rendered for an imagined part with two SMs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from codegen.render import render
from codegen.sweep import Candidate, frame
from dsl_kernels import programs, variants
from dsl_kernels.arch import get_arch
from dsl_kernels.emulator import Schedule
from dsl_kernels.executors import Emulator
from dsl_kernels.problems.base import Workload
from dsl_kernels.variants import Variant
from dsl_kernels.verification import trial

pytestmark = [pytest.mark.emulator, pytest.mark.compile]

OP = "lightning_indexer"
ONE_QUERY = [[1500], [0], [3000], [64], [129], [800]]
EVEN_ONE = [[17000]]
EVEN_THREE = [[4998, 4999, 5000]]
THREE_QUERIES = [[1500, 3, 900], [0, 0, 0], [2000, 2001, 2002], [64, 1, 65]]
SCHEDULES = (
    Schedule.lockstep(),
    Schedule.random(1),
    Schedule.adversarial(2),
    Schedule.adversarial(3, 8, "early"),
)


def decode_variants() -> list[Variant]:
    return [
        v
        for v in variants.variants()
        if v.op == OP and v.knobs["mode"] == "decode" and v.knobs["heads"] == 64
    ]


def on_two_sms(variant: Variant, folder: Path) -> Variant:
    """The variant's module, rendered for two SMs, in `folder`."""
    arch = replace(get_arch(variant.arch), sms=2)
    template = frame(variant.backend)
    text = render(Candidate(programs.get(OP), variant.backend, arch, dict(variant.knobs), template))
    path = folder / f"{variant.id}.py"
    path.write_text(text)
    return replace(variant, path=path)


@pytest.fixture(scope="module", params=decode_variants(), ids=lambda variant: variant.id)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Variant:
    return on_two_sms(request.param, tmp_path_factory.mktemp("two_sms"))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["lockstep", "random", "late", "early"])
@pytest.mark.parametrize("even", [False, True], ids=["ragged", "even"])
def test_a_share_of_many_tiles(small: Variant, schedule: Schedule, even: bool) -> None:
    one = small.knobs["queries"] == 1
    lens = (EVEN_ONE if one else EVEN_THREE) if even else (ONE_QUERY if one else THREE_QUERIES)
    workload = Workload(
        f"shares_{even}_q{len(lens[0])}", "edge", "decode", {"lens": lens, "heads": 64, "pages": 280}
    )
    result = trial.run(small, workload, Emulator(schedule), case=trial.cached_case(OP, workload))
    assert result.comparison.ok, result.comparison.failures
