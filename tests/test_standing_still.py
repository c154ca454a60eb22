"""tests/standing_still.py: a test that waits for ever fails by itself, and shows where each rank waits."""

from __future__ import annotations

from pathlib import Path

from tests.made_tests import run_tests

CONFTEST = """
from tests import standing_still
standing_still.LIMIT, standing_still.GRACE = 4.0, 1.0
from tests.conftest import pytest_configure
"""

RANKS = """
import time
import pytest
from mpi4py import MPI
from tests import standing_still

def waits_in_mpi():
    MPI.COMM_WORLD.recv(source=MPI.ANY_SOURCE)

@pytest.mark.parallel([2])
def test_one_fails():
    assert MPI.COMM_WORLD.rank == 0, "rank 1 is wrong"
    waits_in_mpi()

@pytest.mark.parallel([2])
def test_both_wait():
    waits_in_mpi()

@pytest.mark.parallel([2])
def test_one_waits_at_the_end():
    MPI.COMM_WORLD.rank or waits_in_mpi()

@pytest.mark.parallel([2])
def test_goes_on():
    for _ in range(4):
        time.sleep(0.8)
        standing_still.allow()

@pytest.mark.parallel([2])
def test_waits_between_two_tests_do_not_count():
    pass

@pytest.fixture(autouse=True)
def ranks_of_two_tests_wait(request):
    if not standing_still.IS_RANK and "between" in request.node.name:
        time.sleep(6)
"""

ALONE = """
import time

def test_python_waits():
    time.sleep(60)

def test_goes_on():
    for _ in range(4):
        time.sleep(0.8)
        standing_still.allow()

from tests import standing_still
"""

IN_C = """
import ctypes

def test_no_python_runs():
    waits()

def waits():  # with the interpreter's lock; a signal ends one call
    for _ in range(9):
        ctypes.PyDLL(None).sleep(60)
"""


def test_ranks(tmp_path: Path) -> None:
    """Those of tests/rank_pool.py, which stay for the next test."""
    code, printed = run_tests(tmp_path, CONFTEST, RANKS)
    assert code == 1 and "3 failed, 2 passed" in printed
    assert "rank 1 is wrong" in printed
    # Of both that wait, and of the one that waits while the other is at the end of its test.
    assert printed.count("in waits_in_mpi") >= 2 + 1
    for test in ("one_fails", "both_wait", "one_waits_at_the_end"):
        assert f"test_made.py::test_{test} failed on 2 ranks" in printed


def test_a_process_of_its_own(tmp_path: Path) -> None:
    code, printed = run_tests(tmp_path, CONFTEST, ALONE)
    assert code == 1 and "1 failed, 1 passed" in printed
    assert "time.sleep(60)" in printed and "Failed: stands still" in printed


def test_where_python_cannot_run(tmp_path: Path) -> None:
    code, printed = run_tests(tmp_path, CONFTEST, IN_C)
    assert code == 1
    assert "in waits" in printed
