"""The judges of `calls.py`, which `test_fuzz.py` runs."""

import pytest

from .calls import TARGETS


def test_the_judges_notice_a_wrong_answer() -> None:
    """Every target answers its arguments; altered answers are judged wrong."""
    for target in TARGETS:
        arguments = target.arguments(0)
        answer = target(**arguments)
        assert target.right(arguments, answer)
        first = answer if hasattr(answer, "shape") else answer.out if hasattr(answer, "out") else answer[0]
        first.view(-1)[:8] += 3
        with pytest.raises(AssertionError, match="exceeds|violated"):
            target.right(arguments, answer)
