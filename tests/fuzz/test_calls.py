"""A few of the random calls of `calls.py`; `fuzz_calls` takes any number of them."""

import pytest

from .calls import TARGETS, fuzz_calls


def test_random_calls_end_in_a_right_answer_or_a_typed_error() -> None:
    found = fuzz_calls(400, seed=3)
    assert found.runs == 400 and found.defects == 0, found.examples
    assert 300 < found.typed < 400


def test_the_judges_notice_a_wrong_answer() -> None:
    """Every target's arguments are answered; the answers, altered, are not taken for right."""
    for target in TARGETS:
        arguments = target.arguments(0)
        answer = target(**arguments)
        assert target.right(arguments, answer)
        first = answer if hasattr(answer, "shape") else answer.out if hasattr(answer, "out") else answer[0]
        first.view(-1)[:8] += 3
        with pytest.raises(AssertionError, match="exceeds|violated"):
            target.right(arguments, answer)
