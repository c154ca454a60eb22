"""The watchdog: a rank that is gone is noticed, one that is stopped or that leaves in good order is not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest
from mpi4py import MPI

from pyrt.errors import UserError
from pyrt.job.watchdog import Watchdog
from tests.mpi import ROOT

PATIENCE = 20.0

RANK = """
import sys, time
from pathlib import Path

sys.path.insert(0, {root!r})
from pyrt.job.watchdog import Watchdog

folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), 3


class Files:
    # A communicator through files.
    calls = 0

    def __init__(self):
        self.rank, self.size = rank, size

    def allgather(self, mine):
        self.calls += 1
        (folder / f"{{self.calls}}.{{rank}}.part").write_text(repr(mine))
        (folder / f"{{self.calls}}.{{rank}}.part").rename(folder / f"{{self.calls}}.{{rank}}")
        others = [folder / f"{{self.calls}}.{{other}}" for other in range(size)]
        while not all(path.exists() for path in others):
            time.sleep(0.01)
        return [eval(path.read_text()) for path in others]

    def bcast(self, mine, root):
        return self.allgather(mine)[root]


dog = Watchdog(Files(), lambda: print("told", flush=True))
print("watching", flush=True)
while "leave" not in sys.stdin.readline():
    time.sleep(0.1)
print("left", dog.close(), flush=True)
sys.stdin.readline()
"""


class Ranks:
    def __init__(self, folder: Path) -> None:
        script = folder / "rank.py"
        script.write_text(RANK.format(root=str(ROOT)))
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(folder), str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(3)
        ]
        for rank in range(3):
            assert self.line(rank) == "watching"

    def line(self, rank: int) -> str:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        return stdout.readline().strip()

    def tell(self, rank: int) -> None:
        stdin = self.processes[rank].stdin
        assert stdin is not None
        stdin.write("leave\n")
        stdin.flush()

    def end(self, rank: int) -> tuple[int, str]:
        _, errors = self.processes[rank].communicate(timeout=PATIENCE)
        return self.processes[rank].returncode, errors


@pytest.fixture
def ranks(tmp_path: Path):
    started = Ranks(tmp_path)
    yield started
    for process in started.processes:
        process.kill()
        process.communicate()


def test_a_killed_rank_ends_the_others(ranks: Ranks) -> None:
    ranks.processes[1].kill()
    for rank in (0, 2):
        assert ranks.line(rank) == "told"
        code, errors = ranks.end(rank)
        assert code == 1
        assert f"rank.py: rank {rank} ends: another rank of its node is gone" in errors


def test_a_stopped_rank_is_waited_for(ranks: Ranks) -> None:
    os.kill(ranks.processes[1].pid, signal.SIGSTOP)
    time.sleep(1)
    assert [ranks.processes[rank].poll() for rank in (0, 2)] == [None, None]
    os.kill(ranks.processes[1].pid, signal.SIGCONT)
    for rank in range(3):
        ranks.tell(rank)
    assert [ranks.line(rank) for rank in range(3)] == ["left True"] * 3


def test_a_rank_that_leaves_in_good_order_ends_nobody(ranks: Ranks) -> None:
    ranks.tell(0)
    assert ranks.line(0) == "left False"
    ranks.processes[0].kill()
    time.sleep(0.5)
    assert [ranks.processes[rank].poll() for rank in (1, 2)] == [None, None]
    ranks.processes[1].kill()
    assert ranks.line(2) == "told"


class OneOfTwo:
    """Rank 1 of two, in a process without the other one, which answers what a test says."""

    rank, size = 1, 2

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.told: list[object] = []

    def bcast(self, mine: object, root: int) -> bytes:
        return b"token of the job"

    def allgather(self, mine: object) -> list[object]:
        self.told.append(mine)
        return [self._answers.pop(0), mine]


WAY_OUT = r": start them in one network namespace \(container\), or use --exchange host$"


def test_a_rank_that_reaches_no_other_ends_all_with_one_line() -> None:
    """And none waits for a connection that does not come."""
    nobody = (b"\0nobody has this name", "")
    refused = OneOfTwo(nobody, nobody)
    with pytest.raises(
        UserError, match=r"^ranks of a node cannot connect to each other \(.*refused\)" + WAY_OUT
    ):
        Watchdog(cast(MPI.Comm, refused), lambda: None)
    assert "refused" in str(refused.told[-1])  # the other learns of it
    with pytest.raises(UserError, match=r"^ranks of a node cannot connect .* \(its reason\)" + WAY_OUT):
        Watchdog(cast(MPI.Comm, OneOfTwo((b"\0other", "its reason"))), lambda: None)


WITHOUT_NETWORK = """
import sys, threading
sys.path.insert(0, {root!r})
from pyrt.job.watchdog import Watchdog

barrier, told = threading.Barrier(2), {{}}


class Thread:
    # A communicator of two threads.
    size = 2

    def __init__(self, rank):
        self.rank = rank

    def allgather(self, mine):
        told[self.rank] = mine
        barrier.wait()
        answers = [told[0], told[1]]
        barrier.wait()
        return answers

    def bcast(self, mine, root):
        return self.allgather(mine)[root]


def watch(rank):
    left = Watchdog(Thread(rank), lambda: print("told")).close()
    sys.stdout.write(f"left {{left}}\\n")  # at once: two threads print


threads = [threading.Thread(target=watch, args=(rank,)) for rank in range(2)]
for thread in threads:
    thread.start()
"""


def test_no_network_is_needed_not_even_the_loopback_device() -> None:
    """As in a network namespace that nobody has set up."""
    apart = ["unshare", "--user", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody make a network namespace")
    code = WITHOUT_NETWORK.format(root=str(ROOT))
    done = subprocess.run(
        [*apart, sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left True\nleft True\n", "")
