"""Samples of large tests: the same for a seed, never more than all, everything on demand."""

from __future__ import annotations

import pytest
import sampling


def test_a_sample_is_of_the_seed_and_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL", False)
    items = [f"case {i}" for i in range(100)]
    drawn = sampling.sample(items, 10, "a test")
    assert drawn == sampling.sample(items, 10, "a test") == sorted(drawn, key=items.index)
    assert len(set(drawn)) == 10 and set(drawn) < set(items)
    assert drawn != sampling.sample(items, 10, "another test")
    monkeypatch.setattr(sampling, "SEED", sampling.SEED + "1")
    assert drawn != sampling.sample(items, 10, "a test")


def test_few_items_and_a_whole_run_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL", False)
    assert sampling.sample([3, 1, 2], 3, "a test") == [3, 1, 2]
    monkeypatch.setattr(sampling, "ALL", True)
    assert sampling.sample([3, 1, 2], 1, "a test") == [3, 1, 2]


pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.sample(3)
@pytest.mark.parametrize("i", range(20))
def test_many(i): ...

def test_one(): ...
"""


@pytest.mark.parametrize(
    ("arguments", "everything", "ran"),
    [((), "0", 4), ((), "1", 21), (("-k", "many"), "0", 20), (("test_it.py::test_many",), "0", 20)],
    ids=["sampled", "all", "by -k", "by its id"],
)
def test_marked_tests_run_so_many_cases(pytester: pytest.Pytester, arguments, everything, ran) -> None:
    here = sampling.__file__.removesuffix("sampling.py")
    # The configuration calls torch once, and importing it takes seconds.
    pytester.makepyfile(torch="def set_num_threads(count): ...")
    pytester.makeconftest(f"import sys\nsys.path.insert(0, {here!r})\nfrom conftest_of_tests import *\n")
    pytester.makepyfile(test_it=CASES)
    with open(f"{here}conftest.py") as conftest:
        pytester.makepyfile(conftest_of_tests=conftest.read())
    pytester.makeini("[pytest]\nmarkers =\n    sample(most): cases\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_ALL", everything)
        result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)
    result.assert_outcomes(passed=ran)
