"""Whole jobs of train.py under mpirun: how tests start them, and what a refused one looks like."""

import sys

from tests.mpi import mpirun

QUICK = [
    "--device",
    "cpu",
    "--hidden",
    "9",
    "--epochs",
    "3",
    "--batch",
    "1500",
    "--lr",
    "0.5",
    "--momentum",
    "0",
]


EXIT_CODES = 'python="$1"; shift; "$python" train.py "$@"; echo "rank ended with $?"'
"""A rank's command line that says, after train.py, with what it ended: mpirun answers for all of them."""


def train(ranks, *arguments, env=None):
    return mpirun(ranks, sys.executable, "train.py", *map(str, arguments), env=env)


def train_telling_exit_codes(ranks, *arguments, env=None):
    return mpirun(ranks, "sh", "-c", EXIT_CODES, "sh", sys.executable, *map(str, arguments), env=env)


def refused(job, *words, code=2, ranks=2):
    """Every rank ended with the code, and rank 0 said why in one line that has the words."""
    assert job.stderr.startswith("train.py: error: ") and job.stderr.count("\n") == 1, job.stderr
    assert all(word in job.stderr for word in words), job.stderr
    assert job.stdout.count(f"rank ended with {code}") == ranks
