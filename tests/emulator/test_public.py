"""Public programs are right, with no errors but explained ones: on request, with EMULATOR_TESTS_PUBLIC=1."""

import os

import pytest

from .public.by_script import PROGRAMS, PROJECTS, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("EMULATOR_TESTS_PUBLIC") != "1", reason="asked for with EMULATOR_TESTS_PUBLIC=1"
    ),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_public_program_is_right_and_its_errors_are_explained(program):
    missing = PROJECTS[program.project].missing()
    if missing:
        pytest.skip(missing)
    outcome = run(program)
    assert outcome.right or program.defective, outcome.failure
    assert not outcome.unexplained, outcome.failure
    assert set(outcome.errors) == set(program.explained), "an explained error is not found any more"
