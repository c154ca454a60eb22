"""Fixtures of tests that train."""

import pytest

from pyrt.job import Job, join


@pytest.fixture
def job() -> Job:
    """The job of the processes that run this test."""
    return join()


@pytest.fixture
def shared(tmp_path):
    """One folder for all ranks."""
    return join().comm.bcast(tmp_path)
