"""tests/rank_pool.py: ranks stay from test to test; what fails or ends on one of them fails its test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.made_tests import run_tests

CONFTEST = """
from tests import rank_pool
rank_pool.MOST_TESTS = 4
from tests.conftest import pytest_configure
"""

BEGIN = """
import json, os
from pathlib import Path
import pytest
from mpi4py import MPI

TWO = pytest.mark.parallel([2])

def note(test):
    pids = MPI.COMM_WORLD.allgather(os.getpid())
    if MPI.COMM_WORLD.rank == 0:
        with open("notes", "a") as file:
            file.write(json.dumps([test, pids]) + chr(10))
"""

STAYING = """
@TWO
def test_first():
    note("first")

@pytest.mark.parallel([1, 3])
def test_others(request):
    note("others")

@TWO
@pytest.mark.parametrize("word", ["a::b", "[c d]", "ä"])
def test_second(word):
    note("second")

@TWO
def test_third():
    note("third")

@pytest.fixture
def variable(monkeypatch):
    monkeypatch.setenv("OF_ONE_TEST", "1")

@TWO
def test_with_a_variable(variable):
    assert "OF_ONE_TEST" in os.environ

@TWO
def test_without():
    assert "OF_ONE_TEST" not in os.environ

@TWO
@pytest.mark.skip
def test_skipped():
    assert False

@TWO
@pytest.mark.xfail(strict=True)
def test_expected_to_fail():
    assert MPI.COMM_WORLD.rank == 0
"""

FAILING = """
@TWO
def test_before():
    note("before")

@TWO
def test_fails_on_one():
    assert MPI.COMM_WORLD.rank == 0, "rank 1 is wrong"

@TWO
def test_behind():
    note("behind")

@TWO
def test_ends():
    if MPI.COMM_WORLD.rank == 1:
        os._exit(0)

@TWO
def test_last():
    note("last")

@TWO
def test_fails_on_the_other():
    assert MPI.COMM_WORLD.rank == 1, "rank 0 is wrong"
"""


def notes(folder: Path) -> dict[str, list[list[int]]]:
    """The processes that ran each test."""
    found: dict[str, list[list[int]]] = {}
    for line in (folder / "notes").read_text().splitlines():
        test, processes = json.loads(line)
        found.setdefault(test, []).append(processes)
    return found


@pytest.mark.long
def test_ranks_stay_for_so_many_tests(tmp_path: Path) -> None:
    """What one test sets is not there in the next, and all outcomes are pytest's."""
    code, printed = run_tests(tmp_path, CONFTEST, BEGIN + STAYING)
    assert code == 0 and "9 passed, 1 skipped, 1 xfailed" in printed
    found = notes(tmp_path)
    (first,), (alone, three), (third,) = found["first"], found["others"], found["third"]
    assert found["second"] == [first] * 3
    assert [len(set(one)) for one in (alone, first, three, third)] == [1, 2, 3, 2]
    assert len({*alone, *first, *three, *third}) == 8


@pytest.mark.long
def test_after_a_failure_there_are_others(tmp_path: Path) -> None:
    code, printed = run_tests(tmp_path, CONFTEST, BEGIN + FAILING)
    assert code == 1 and "3 failed, 3 passed" in printed
    assert "rank 1 is wrong" in printed and "rank 0 is wrong" in printed
    for test in ("fails_on_one", "ends", "fails_on_the_other"):
        assert f"test_made.py::test_{test} failed on 2 ranks" in printed
    assert "BrokenPipeError" not in printed
    found = notes(tmp_path)
    assert len({process for test in ("before", "behind", "last") for process in found[test][0]}) == 6


def test_ranks_that_do_not_start_fail_the_test_at_once(tmp_path: Path) -> None:
    ends = 'rank_pool._ENVIRONMENT["PYTHONPATH"] = "nowhere"\n'
    code, printed = run_tests(tmp_path, CONFTEST + ends, BEGIN + "@TWO\ndef test_first():\n    pass\n")
    assert code == 1 and "1 failed" in printed
    assert "2 ranks do not start" in printed and "No module named" in printed
