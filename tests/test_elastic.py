"""Training with parameter servers goes on without ranks that are killed, or stopped for a while: --elastic.

It needs an Open MPI with user-level failure mitigation: the one on PATH, or a folder PYRT_ULFM that has its
mpirun, and a python whose mpi4py loads it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import few, mpi, standing_still
from tests.pyrt.job.test_job import is_gone, wait_until

LIMIT = 50.0
"""Seconds in which a job has ended."""

RECORD = 'echo $$ >"$RANKS/$OMPI_COMM_WORLD_RANK"; exec "$@"'

QUICK = ["--device", "cpu", "--hidden", "16", "--batch", "40", "--samples", "200", "--print-every", "3"]
"""Five steps an epoch."""


def tools() -> tuple[str, str]:
    """The mpirun and the python to use."""
    folder = os.environ.get("PYRT_ULFM")
    return (f"{folder}/mpirun", f"{folder}/python") if folder else ("mpirun", sys.executable)


@cache
def is_there() -> bool:
    command = [tools()[0], "--with-ft", "ulfm", "-n", "1", "true"]
    try:
        done = subprocess.run(command, env=mpi.environment(), capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


needs_mitigation = pytest.mark.skipif(
    not is_there(), reason="needs Open MPI 5 with --with-ft ulfm, on PATH or in the folder PYRT_ULFM"
)


class Elastic:
    """A job that is under way: it has printed the loss of a step."""

    def __init__(self, folder: Path, ranks: int, *options: str) -> None:
        mpirun, python = tools()
        self.report = folder / "report.json"
        written = ["--json", str(self.report), "--save", str(folder / "trained.npz")]
        train = [python, "train.py", *QUICK, "--exchange", "server", "--elastic", *options, *written]
        self.job = subprocess.Popen(
            [mpirun, "--with-ft", "ulfm", "-n", str(ranks), "sh", "-c", RECORD, "sh", *train],
            cwd=mpi.ROOT,
            env=mpi.environment({"RANKS": str(folder)}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.printed = self.read_up_to("step ")
        self.pids = [int((folder / str(rank)).read_text()) for rank in range(ranks)]

    def read_up_to(self, begin: str) -> str:
        """Read what is printed, up to a line that begins so."""
        assert self.job.stdout is not None
        read = ""
        for line in self.job.stdout:
            read += line
            if line.startswith(begin):
                break
        return read

    def send(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a rank a signal, if it still lives."""
        try:
            os.kill(self.pids[rank], number)
        except ProcessLookupError:
            return

    def end(self) -> str:
        """Wait for the job; return what it has printed."""
        standing_still.allow(LIMIT + standing_still.LIMIT)
        self.printed += self.job.communicate(timeout=LIMIT)[0]
        standing_still.allow()
        return self.printed

    def clean_up(self) -> None:
        """After a test that failed."""
        for rank in range(len(self.pids)):
            self.send(rank)
        if self.job.poll() is None:
            os.killpg(self.job.pid, signal.SIGKILL)
            self.job.wait()


Start = Callable[..., Elastic]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a job of so many ranks with more options."""
    started: list[Elastic] = []

    def begin(ranks: int, *options: str) -> Elastic:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Elastic(folder, ranks, *options))
        return started[-1]

    yield begin
    for one in started:
        one.clean_up()


def check_end(elastic: Elastic, lost: Sequence[int]) -> dict[str, Any]:
    """The run has ended well, and says who was lost; all parameters are finite."""
    printed = elastic.end()
    assert elastic.job.returncode == 0, printed
    told: dict[str, Any] = json.loads(elastic.report.read_text())["asynchronous"]
    assert sorted(one["rank"] for one in told["lost_ranks"]) == sorted(lost), printed
    assert all(f"rank {rank}, a " in printed for rank in lost)
    with np.load(elastic.report.parent / "trained.npz") as file:
        assert all(np.isfinite(file[name]).all() for name in file.files if name != "run")
    assert "test precision" in printed
    return told


@needs_mitigation
def test_the_others_go_on_without_a_worker_and_a_server(start: Start) -> None:
    """Rank 1 is a server, whose shard is on another one too; a worker is stopped meanwhile, and goes on."""
    elastic = start(5, "--servers", "2", "--shards-kept", "2", "--epochs", "40", "--staleness", "4")
    elastic.send(3)
    killed = time.monotonic()
    elastic.printed += elastic.read_up_to("rank 3, a worker, has died after step")
    print(f"noticed after {time.monotonic() - killed:.1f} s")
    elastic.send(2, signal.SIGSTOP)
    elastic.send(1)
    time.sleep(0.5)
    elastic.send(2, signal.SIGCONT)
    told = check_end(elastic, [1, 3])
    assert told["furthest"] <= 4


@needs_mitigation
def test_a_server_that_takes_over_has_the_right_parameters(start: Start) -> None:
    """Without staleness the bits are those of a run in which no server is killed."""
    found = []
    for kill in (True, False):
        elastic = start(4, "--servers", "2", "--shards-kept", "2", "--epochs", "20", "--staleness", "0")
        if kill:
            elastic.send(1)
        check_end(elastic, [1] if kill else [])
        with np.load(elastic.report.parent / "trained.npz") as file:
            found.append({name: file[name].tobytes() for name in file.files if name != "run"})
    assert found[0] == found[1]


@needs_mitigation
@pytest.mark.parametrize("seconds", few([1], of=[1, pytest.param(60, marks=pytest.mark.long)]))
def test_the_updates_of_a_worker_that_was_stopped_are_stale_within_the_bound(
    start: Start, seconds: float
) -> None:
    elastic = start(4, "--epochs", "10", "--samples", "2000", "--staleness", "3")
    elastic.send(2, signal.SIGSTOP)
    standing_still.allow(seconds + standing_still.LIMIT)
    time.sleep(seconds)
    elastic.send(2, signal.SIGCONT)
    told = check_end(elastic, [])
    assert told["updates"] == 10 * 50 * 3 and told["furthest"] == 3
    assert sum(told["staleness"][0]) == told["updates"] and len(told["staleness"][0]) <= 2 * 7 + 1


@needs_mitigation
def test_a_server_whose_shard_is_nowhere_else_ends_all(start: Start) -> None:
    elastic = start(4, "--servers", "2", "--epochs", "100000")
    elastic.send(1)
    printed = elastic.end()
    assert elastic.job.returncode == 1
    assert (
        "the servers with shard 1 of the parameters have died (--shards-kept 2 keeps each on two)" in printed
    )
    assert "Traceback" not in printed
    wait_until(lambda: all(map(is_gone, elastic.pids)), "all ranks to end")


def test_without_mitigation_it_is_refused() -> None:
    """By MPICH, and by Open MPI that was started without."""
    done = mpi.mpirun(2, sys.executable, "train.py", *QUICK, "--exchange", "server", "--elastic")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "train.py: error" in line]
    assert "--elastic: needs an MPI with user-level failure mitigation, as Open MPI 5 started by" in line


@pytest.mark.long
@needs_mitigation
@pytest.mark.parametrize("number", few([0], of=range(200)))
def test_ranks_are_killed_at_random(start: Start, number: int) -> None:
    """One to three, at any time from the first step on: the others go on to the end, and no rank is left.

    Where shards are on two servers these compare them whenever all meet: a wrong one would end the job.
    """
    rng = random.Random(number)
    servers, workers = rng.choice([1, 2, 3]), rng.choice([2, 3])
    kept = rng.choice([1, 2]) if servers > 1 else 1
    options = ["--servers", str(servers), "--shards-kept", str(kept), "--epochs", "30"]
    options += ["--staleness", rng.choice(["0", "1", "4", "inf"]), "--optimiser", rng.choice(["sgd", "adam"])]
    options += rng.choice([[], ["--no-epoch-barrier"], ["--val-fraction", "0"]])
    elastic = start(servers + workers, *options)
    # Not rank 0, not both servers of a shard, not all workers.
    victims = rng.sample(range(servers, servers + workers), rng.choice([1, workers - 1]))
    if kept == 2:
        victims.append(rng.randrange(1, servers))
    for victim in rng.sample(victims, len(victims)):
        time.sleep(rng.random())
        elastic.send(victim)
    printed = elastic.end()
    assert elastic.job.returncode == 0, printed
    assert not any(word in printed for word in ("damaged", "differs", "Traceback"))
    wait_until(lambda: all(map(is_gone, elastic.pids)), "all ranks to end")
