"""Parameter servers and workers on different nodes: what they train, and what happens when one fails."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

from pyrt.job.cut_off import VARIABLE
from tests import mpi, standing_still
from tests.cluster.cluster import Cluster, Job, is_open_mpi
from tests.cluster.test_cut_off import SHORT, end_of, wait_for_all_ranks_to_end

pytestmark = pytest.mark.long

SERVERS = [
    *("--device", "cpu", "--hidden", "8", "--batch", "50", "--samples", "200", "--val-fraction", "0"),
    *("--exchange", "server", "--servers", "2"),
]
"""Parameter servers on one node, and their workers on another: two ranks each."""

ENDLESS = [*SERVERS, "--epochs", "1000000", "--print-every", "3"]


def start(cluster: Cluster, *arguments: str, limit: float | None = None) -> Job:
    """Start a training on two ranks of each node, and wait until it trains."""
    variables = {} if limit is None else {VARIABLE: f"{limit:g}"}
    options = ["--with-ft", "ulfm"] if "--elastic" in arguments else []
    job = cluster.start(2, sys.executable, "train.py", *arguments, env=variables, options=options)
    assert job.process.stdout is not None
    if not any(line.startswith("step ") for line in job.process.stdout):
        raise AssertionError(job.finish().stderr)
    return job


def train(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = cluster.run(2, sys.executable, "train.py", *SERVERS, *arguments, timeout=3 * mpi.TIMEOUT)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("nodes", [2, 3], indirect=True)
def test_without_staleness_parameters_are_right(nodes: Cluster) -> None:
    nodes.link(gbit=1, delay=1e-4, loss=1e-3)
    done = train(nodes, "--staleness", "0", "--epochs", "3", "--check")
    assert f" on {nodes.nodes} node(s), " in done.stdout and "\nexchange  server" in done.stdout
    assert "\ncheck passed: " in done.stdout


def test_stale_updates_arrive_over_a_slow_network(nodes: Cluster) -> None:
    nodes.link(gbit=0.1, delay=5e-3)
    done = train(nodes, "--staleness", "4", "--epochs", "20")
    assert "\n2 worker(s) made 160 updates; 200 of 200 training samples were seen" in done.stdout
    ahead = re.search(r"a worker was up to (\d+) step\(s\) ahead of the slowest", done.stdout)
    assert ahead is not None and int(ahead[1]) <= 4


def test_an_outage_is_waited_for(nodes: Cluster) -> None:
    job = start(nodes, *SERVERS, "--staleness", "0", "--epochs", "60", "--print-every", "3", "--check")
    nodes.cut(1)
    time.sleep(5)
    nodes.join(1)
    done = job.finish(2 * mpi.TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert "\ncheck passed: " in done.stdout


@pytest.mark.parametrize("rank", [0, 3], ids=["a server", "a worker"])
def test_a_rank_that_is_killed_ends_the_job(nodes: Cluster, rank: int) -> None:
    job = start(nodes, *ENDLESS)
    nodes.kill(job, rank)
    wait_for_all_ranks_to_end(nodes, 0.0)
    assert end_of(nodes, job).returncode != 0


@pytest.mark.parametrize("rank", [0, 3], ids=["a server", "a worker"])
def test_a_rank_that_is_stopped_is_waited_for(nodes: Cluster, rank: int) -> None:
    job = start(nodes, *SERVERS, "--staleness", "2", "--epochs", "100", "--print-every", "3", limit=SHORT)
    nodes.kill(job, rank, signal.SIGSTOP)
    time.sleep(3 * SHORT)
    assert job.process.poll() is None
    nodes.kill(job, rank, signal.SIGCONT)
    done = job.finish(2 * mpi.TIMEOUT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cut", [0, 1], ids=["servers", "workers"])
def test_a_node_that_is_cut_off_ends_the_job(nodes: Cluster, cut: int) -> None:
    job = start(nodes, *ENDLESS, limit=SHORT)
    nodes.cut(cut)
    standing_still.allow()
    wait_for_all_ranks_to_end(nodes, SHORT)
    assert end_of(nodes, job).returncode != 0


ELASTIC = [*SERVERS, "--elastic", "--epochs", "150", "--print-every", "3"]

elastic = pytest.mark.skipif(not is_open_mpi(), reason="needs Open MPI, whose ranks may survive others")


@elastic
@pytest.mark.parametrize(
    ("rank", "what", "options"), [(3, "a worker", []), (1, "a server", ["--shards-kept", "2"])], ids=str
)
def test_a_rank_that_is_killed_is_not_missed(
    nodes: Cluster, rank: int, what: str, options: list[str]
) -> None:
    job = start(nodes, *ELASTIC, *options)
    nodes.kill(job, rank)
    done = job.finish(2 * mpi.TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert f"\nrank {rank}, {what}, has died after step " in done.stdout
    assert "\ntest precision " in done.stdout


@elastic
def test_a_rank_that_is_stopped_is_not_taken_for_dead(nodes: Cluster) -> None:
    job = start(nodes, *ELASTIC, "--staleness", "8", limit=SHORT)
    nodes.kill(job, 3, signal.SIGSTOP)
    time.sleep(3 * SHORT)
    nodes.kill(job, 3, signal.SIGCONT)
    done = job.finish(2 * mpi.TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert "has died" not in done.stdout
    ahead = re.search(r"a worker was up to (\d+) step\(s\) ahead of the slowest", done.stdout)
    assert ahead is not None and int(ahead[1]) <= 8


@elastic
def test_a_node_that_is_cut_off_ends_an_elastic_job_too(nodes: Cluster) -> None:
    """Open MPI's mpirun does not go on without one of its daemons."""
    job = start(nodes, *ENDLESS, "--elastic", limit=SHORT)
    nodes.cut(1)
    wait_for_all_ranks_to_end(nodes, SHORT)
    assert "train.py: error: node1 no longer answers node0 " in end_of(nodes, job).stderr
