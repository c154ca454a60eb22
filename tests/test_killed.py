"""A job of which a rank is killed ends on every rank, in every exchange. Other faults: test_faults.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyrt.exchange.registry import asynchronous, choices
from tests import few, mpi
from tests.pyrt.job.test_job import is_gone, wait_until

LIMIT = 10.0
"""Seconds in which a job has ended whose rank was killed."""

QUICK = [
    "--device",
    "emulated",
    "--hidden",
    "8",
    "--batch",
    "50",
    "--samples",
    "200",
    "--val-fraction",
    "0",
    "--print-every",
    "3",
]
"""Four short steps an epoch; losses are printed in the middle of some."""
ENDLESS = [*QUICK, "--epochs", "1000000"]

RECORD = 'echo $$ >"$RANKS/${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"; exec "$@"'
"""Each rank leaves the number of its process in a file."""

pytestmark = pytest.mark.kernels


class Training:
    """A job that is under way: it has printed the losses of some steps."""

    def __init__(self, folder: Path, ranks: int, *arguments: str) -> None:
        command = ["sh", "-c", RECORD, "sh", sys.executable, "train.py", *arguments]
        self.job = mpi.start(ranks, *command, env={"RANKS": str(folder)})
        printed = self._wait_for_steps(3)
        assert self.job.poll() is None, f"the job has ended: {printed}"
        self.pids = [int((folder / str(rank)).read_text()) for rank in range(ranks)]

    def _wait_for_steps(self, wanted: int) -> str:
        """What was printed up to so many lines of steps."""
        assert self.job.stdout is not None
        printed = ""
        for line in self.job.stdout:
            printed += line
            wanted -= line.startswith("step ")
            if not wanted:
                return printed
        return printed + mpi.finish(self.job).stderr

    def end(self, timeout: float) -> subprocess.CompletedProcess[str]:
        """Of mpirun, and of all that write to its pipes."""
        return mpi.finish(self.job, timeout)

    def clean_up(self) -> None:
        """After a test that failed."""
        for pid in self.pids:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        if self.job.poll() is None:
            self.job.kill()
            self.job.wait()


Start = Callable[..., Training]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a job of so many ranks with an exchange and more arguments."""
    started = []

    def start(exchange: str, ranks: int, *arguments: str) -> Training:
        nodes = ["--ranks-per-node", "2"] if exchange == "hierarchical" else []
        started.append(Training(tmp_path, ranks, *arguments, "--exchange", exchange, *nodes))
        return started[0]

    yield start
    for training in started:
        training.clean_up()


KILLED = [
    ("root", 3, 0),
    ("root", 3, 2),
    ("blocking", 3, 1),
    ("host", 3, 1),
    ("device", 3, 2),
    ("peer", 3, 1),
    ("hierarchical", 4, 3),
    ("hogwild", 3, 0),
    ("server", 3, 2),
]
"""Exchange, ranks, and which of these is killed."""


def test_every_exchange_is_here() -> None:
    assert {exchange for exchange, *_ in KILLED} == {*choices(), *asynchronous()}


@pytest.mark.parametrize(("exchange", "ranks", "killed"), few([KILLED[5]], of=KILLED))
def test_a_killed_rank_ends_the_job(start: Start, exchange: str, ranks: int, killed: int) -> None:
    ends_without(start(exchange, ranks, *ENDLESS), killed)


SHARING = [("host", "1x3", 1), ("peer", "2x2", 3), ("device", "1x3", 2), ("peer", "1x3", 1)]


@pytest.mark.long
@pytest.mark.parametrize(("exchange", "grid", "killed"), few(SHARING[1:2], of=SHARING))
def test_a_killed_rank_ends_those_that_share_layers_with_it(
    start: Start, exchange: str, grid: str, killed: int
) -> None:
    """In one group nothing but moves connects the ranks; of several some share neither layers nor weights."""
    ranks = 3 if grid == "1x3" else 4
    ends_without(start(exchange, ranks, *ENDLESS, "--plan", "model", "--grid", grid), killed)


def ends_without(training: Training, killed: int) -> None:
    """All ranks, once one of them is killed."""
    os.kill(training.pids[killed], signal.SIGKILL)
    killed_at = time.monotonic()
    done = training.end(LIMIT)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    wait_until(lambda: all(map(is_gone, training.pids)), "all ranks to end")
    assert time.monotonic() - killed_at < LIMIT


PEERS = [("data", 0), ("model", 2), ("data", 2), ("model", 0)]
"""Plan, and which of three ranks is killed."""


@pytest.mark.long
@pytest.mark.parametrize(("plan", "killed"), few(PEERS[1:2], of=PEERS))
def test_peers_see_for_themselves_that_a_rank_is_gone(start: Start, plan: str, killed: int) -> None:
    """Their launcher, which would end them too, is stopped; it may lose what they said meanwhile."""
    training = start("peer", 3, *ENDLESS, "--plan", plan)
    launcher = {training.job.pid, *map(parent, training.pids)}
    for pid in launcher:
        os.kill(pid, signal.SIGSTOP)
    try:
        os.kill(training.pids[killed], signal.SIGKILL)
        killed_at = time.monotonic()
        wait_until(lambda: all(map(is_gone, training.pids)), "all ranks to end")
        assert time.monotonic() - killed_at < LIMIT
    finally:
        for pid in launcher:
            os.kill(pid, signal.SIGCONT)
    assert training.end(LIMIT).returncode != 0


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
