"""bench/soak.py: what it looks at, what counts as growth, and a short run of it."""

import os
import re
import sys

import pytest

from bench import soak
from pyrt.errors import UserError
from tests.mpi import mpirun


def looks(*host):
    return [{"step us": 10.0, "host MB": mb, "open files": 30.0} for mb in host]


def test_the_first_and_last_quarter_are_compared_without_the_warm_up():
    found = soak.quarters(looks(0.0, 1.0, 2.0, 50.0, 50.0, 50.0, 50.0, 50.0, 7.0, 9.0))
    assert found["host MB"] == (1.5, 8.0)


def test_too_few_looks_are_refused():
    with pytest.raises(UserError, match="only 3 epochs"):
        soak.quarters(looks(1.0, 1.0, 1.0))


def test_memory_and_files_must_not_grow_and_times_may():
    found = {
        "step us": (1.0, 9.0),
        "host MB": (100.0, 105.0),
        "device MB": (5.0, 5.5),
        "open files": (30.0, 31.0),
    }
    assert soak.grown(found) == ["host MB grew from 100.0 to 105.0", "open files grew from 30.0 to 31.0"]


def test_a_look_sees_what_the_process_takes():
    before = soak.look(1.0, "cpu")
    block = bytearray(os.urandom(1 << 20)) * 32
    with open(os.devnull):
        after = soak.look(1.0, "cpu")
    assert after["host MB"] - before["host MB"] > 25
    assert after["open files"] - before["open files"] == 1
    assert len(block) == 32 << 20


@pytest.mark.long
def test_a_job_is_soaked_and_ends_by_itself():
    done = mpirun(2, sys.executable, "bench/soak.py", "--minutes", "0.2", "--device", "cpu")
    assert done.returncode in (0, 1), done.stderr  # what grows in so few seconds is no leak
    assert len(re.findall("^open files", done.stdout, re.M)) == 2
