"""No input ends untyped or with a wrong answer: seeded; a sample, or every run with TEST_ALL=1.

Time limits are left to `scripts/attack.py`: no test depends on time.
"""

from __future__ import annotations

import pytest
import sampling

from . import Counts
from .attacks import ATTACKS

SEED = 8


@pytest.mark.usefixtures("few_sms")
@pytest.mark.parametrize("name", ATTACKS)
def test_every_refusal_is_typed(name: str) -> None:
    attack = ATTACKS[name]
    count = attack.runs if sampling.ALL else attack.sample
    counts = attack.run(count, SEED)
    assert counts.untyped == counts.mismatches == 0, "\n".join(counts.examples)
    assert counts.runs >= count and counts.runs >= counts.typed


def test_commands_end_alike_in_a_process_of_their_own() -> None:
    from .cli import fuzz_cli

    counts = fuzz_cli(12, SEED + 1, processes=12)
    assert (counts.runs, counts.untyped, counts.mismatches) == (24, 0, 0), "\n".join(counts.examples)


def test_the_counts_tell_what_a_call_ended_in() -> None:
    from dsl_kernels.errors import InvalidArgumentError

    def refuse() -> None:
        raise InvalidArgumentError("x", expected="y", got="z", fix="w")

    def spin() -> None:
        sum(range(1_000_000))

    counts = Counts()
    assert counts.call("right", lambda: 3, expect=lambda answer: answer == 3) == 3
    counts.call("refused", refuse)
    counts.call("untyped", lambda: {}["x"])
    counts.call("leaves", lambda: exit(3))
    counts.call("wrong", lambda: 4, expect=lambda answer: answer == 3)
    counts.call("slow", spin, limit_s=1e-6)
    assert counts.numbers() == {"runs": 6, "typed": 1, "untyped": 2, "slow": 1, "mismatches": 1}
    assert counts.defects == 4 == len(counts.examples)
    assert counts.examples[0] == "untyped: untyped: KeyError: 'x'" + counts.examples[0].partition("'x'")[2]
