"""tests/standing_still.py: a test that waits for ever fails by itself, and shows where each rank waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made_tests import run_tests

CONFTEST = """
from tests import standing_still
standing_still.LIMIT, standing_still.GRACE = 3.0, 0.5
from tests.conftest import pytest_configure
"""

GOES_ON = """
import time
from tests import standing_still

def goes_on():  # for longer than it may stand still
    for _ in range(4):
        time.sleep(1.0)
        standing_still.allow()
"""

RANKS = """
import pytest
from mpi4py import MPI

TWO = pytest.mark.parallel([2])

@TWO
def test_goes_on():
    goes_on()

@pytest.fixture
def ranks_of_two_tests_wait():
    if not standing_still.IS_RANK:
        time.sleep(4)

@TWO
def test_waits_between_two_tests_do_not_count(ranks_of_two_tests_wait):
    pass

def waits_in_mpi():
    MPI.COMM_WORLD.recv(source=MPI.ANY_SOURCE)

@TWO
def test_one_fails():
    assert MPI.COMM_WORLD.rank == 0, "rank 1 is wrong"
    waits_in_mpi()

@TWO
def test_both_wait():  # rank 1 for rank 0, at its end
    MPI.COMM_WORLD.rank or waits_in_mpi()
"""

ALONE = """
def test_python_waits():
    time.sleep(60)

def test_goes_on():
    goes_on()
"""

IN_C = """
import ctypes

def test_no_python_runs():
    waits()

def waits():  # with the interpreter's lock; a signal ends one call
    for _ in range(9):
        ctypes.PyDLL(None).sleep(60)
"""


@pytest.mark.long
def test_ranks(tmp_path: Path) -> None:
    """Those of tests/rank_pool.py, which stay for the next test."""
    code, printed = run_tests(tmp_path, CONFTEST, GOES_ON + RANKS)
    assert code == 1 and "2 failed, 2 passed" in printed
    assert "rank 1 is wrong" in printed
    # The stacks of both that wait, the one in its test and the other at its end.
    stacks = printed.split("_ test_both_wait _")[1]
    assert "in waits_in_mpi" in stacks and "in teardown_exact" in stacks
    for test in ("one_fails", "both_wait"):
        assert f"test_made.py::test_{test} failed on 2 ranks" in printed


@pytest.mark.long
def test_a_process_of_its_own(tmp_path: Path) -> None:
    code, printed = run_tests(tmp_path, CONFTEST, GOES_ON + ALONE)
    assert code == 1 and "1 failed, 1 passed" in printed
    assert "time.sleep(60)" in printed and "Failed: stands still" in printed


def test_where_python_cannot_run(tmp_path: Path) -> None:
    code, printed = run_tests(tmp_path, CONFTEST, IN_C)
    assert code == 1
    assert "in waits" in printed
