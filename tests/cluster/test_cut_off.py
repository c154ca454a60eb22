"""A node whose link is cut: a short outage is waited for, a longer one ends every rank on every node."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

from pyrt.exchange.device import LIMIT as DEVICE_LIMIT
from pyrt.job.cut_off import VARIABLE
from tests import standing_still
from tests.cluster.cluster import Cluster, Job

WAITS = """
from pyrt.job import run

def main(job):
    print("begins" if job.rank == 0 else "", flush=True)
    while True:
        job.comm.Barrier()

run(main)
"""
"""All ranks wait for each other inside MPI, for ever."""

SHORT = 3.0
"""Seconds of a limit, for tests."""

ENDING = 20.0
"""Seconds in which all ranks end once one has noticed that a node is cut off."""

GOING_ON = 150.0
"""Seconds in which a run goes on and ends after an outage of a minute: TCP waits twice as long each time."""


def begun(cluster: Cluster, first: str, *command: str, limit: float | None = None) -> Job:
    """Start a job of two ranks on each node, and wait until it has printed a line that begins so."""
    job = cluster.start(2, *command, env={} if limit is None else {VARIABLE: f"{limit:g}"})
    assert job.process.stdout is not None
    if not any(line.startswith(first) for line in job.process.stdout):
        raise AssertionError(job.finish().stderr)
    return job


def wait_for_all_ranks_to_end(cluster: Cluster, limit: float) -> None:
    standing_still.allow(limit + ENDING + standing_still.LIMIT)
    started = time.monotonic()
    while any("python" in name for node in range(cluster.nodes) for name in cluster.processes(node)):
        assert time.monotonic() - started < limit + ENDING, "ranks are left behind"
        time.sleep(0.2)
    assert time.monotonic() - started > 0.8 * limit


def end_of(cluster: Cluster, job: Job) -> subprocess.CompletedProcess[str]:
    """Return how mpirun ends; Open MPI's waits for the daemons that are cut off."""
    for node in range(cluster.nodes):
        cluster.join(node)
    done = job.finish()
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.long
def test_a_cut_link_ends_all_ranks_and_a_stopped_rank_does_not(nodes: Cluster) -> None:
    job = begun(nodes, "begins", sys.executable, "-c", WAITS, limit=SHORT)
    nodes.kill(job, 3, signal.SIGSTOP)
    time.sleep(2 * SHORT)
    assert job.process.poll() is None
    nodes.kill(job, 3, signal.SIGCONT)
    nodes.cut(1)
    wait_for_all_ranks_to_end(nodes, SHORT)
    done = end_of(nodes, job)
    assert done.returncode != 0
    assert "-c: error: node1 no longer answers node0 (Connection timed out): the link" in done.stderr
    assert f"${VARIABLE} sets the limit of {SHORT:g} s" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("nodes", [3, 4], indirect=True)
@pytest.mark.parametrize("cut", [0, 1])
def test_whichever_node_it_is(nodes: Cluster, cut: int) -> None:
    job = begun(nodes, "begins", sys.executable, "-c", WAITS, limit=SHORT)
    nodes.cut(cut)
    wait_for_all_ranks_to_end(nodes, SHORT)
    assert re.search(f"error: node{cut} no longer answers node. ", end_of(nodes, job).stderr)


@pytest.mark.long
@pytest.mark.parametrize("nodes", [3], indirect=True)
def test_all_at_once(nodes: Cluster) -> None:
    """The switch is down: each rank must end by itself, and mpirun hears of none."""
    job = begun(nodes, "begins", sys.executable, "-c", WAITS, limit=SHORT)
    for node in range(nodes.nodes):
        nodes.cut(node)
    wait_for_all_ranks_to_end(nodes, SHORT)
    end_of(nodes, job)


@pytest.mark.long
def test_a_limit_that_is_none_is_refused(nodes: Cluster) -> None:
    for text in ("soon", "-1", "nan", "1e9"):
        done = nodes.run(1, sys.executable, "-c", WAITS, env={VARIABLE: text})
        assert done.returncode == 2
        error = f"-c: error: {VARIABLE}={text}: takes seconds, up to 86400, or 0 for no limit\n"
        assert error in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
def test_without_a_limit_the_ranks_wait(nodes: Cluster) -> None:
    """So it is the limit that ends them elsewhere."""
    job = begun(nodes, "begins", sys.executable, "-c", WAITS, limit=0)
    nodes.cut(1)
    time.sleep(5 * SHORT)
    assert all(any("python" in name for name in nodes.processes(node)) for node in (0, 1))
    assert job.process.poll() is None


WAYS = ["cpu root", "cpu blocking", "cpu host", "cpu device", "emulated hierarchical"]

TRAINING = [
    *("--hidden", "8", "--batch", "50", "--samples", "200", "--val-fraction", "0", "--epochs", "40"),
    *("--print-every", "3", "--check"),
]


def training(cluster: Cluster, way: str) -> Job:
    device, exchange = way.split()
    command = [sys.executable, "train.py", *TRAINING, "--device", device, "--exchange", exchange]
    return begun(cluster, "step ", *command)


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parametrize("seconds", [5.0, 60.0])
@pytest.mark.parametrize("way", WAYS)
def test_training_goes_on_after_an_outage(nodes: Cluster, way: str, seconds: float) -> None:
    """With the right parameters; but `device` ends after a minute without progress, whatever the reason."""
    job = training(nodes, way)
    nodes.cut(1)
    standing_still.allow(seconds + standing_still.LIMIT)
    time.sleep(seconds)
    nodes.join(1)
    done = job.finish(GOING_ON)
    if "device" in way and seconds >= DEVICE_LIMIT:
        assert done.returncode == 1
        assert f"error: --exchange device: no progress for {DEVICE_LIMIT:g} s" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert "\ncheck passed: " in done.stdout


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parametrize("way", WAYS)
def test_training_ends_where_a_node_is_cut_off_for_good(nodes: Cluster, way: str) -> None:
    device, exchange = way.split()
    endless = [*TRAINING[:-1], "--epochs", "1000000", "--device", device, "--exchange", exchange]
    job = begun(nodes, "step ", sys.executable, "train.py", *endless, limit=SHORT)
    nodes.cut(1)
    wait_for_all_ranks_to_end(nodes, SHORT)
    assert "train.py: error: node1 no longer answers node0 " in end_of(nodes, job).stderr
