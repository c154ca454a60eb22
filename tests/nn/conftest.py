"""Fixtures of tests that train."""

import pytest

from pyrt.job import join


@pytest.fixture
def shared(tmp_path):
    """One folder for all ranks."""
    return join().comm.bcast(tmp_path)
