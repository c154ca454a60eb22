"""Training over real nodes, in every exchange: nodes are found, and parameters are right."""

from __future__ import annotations

import re
import sys
from subprocess import CompletedProcess

import pytest

from pyrt.exchange.registry import choices
from tests import few, mpi
from tests.cluster.cluster import Cluster

SMALL = [
    *("--hidden", "8", "--batch", "50", "--samples", "160", "--val-fraction", "0", "--epochs", "2"),
    "--check",
]
"""Four steps an epoch, of which the last is short."""

OF_ONE_NODE = ("peer",)

WAYS = [
    *[("cpu", name) for name in ("root", "blocking", "host", "device")],
    *[("emulated", name) for name in ("root", "blocking", "host", "device", "hierarchical", "auto")],
]

over_nodes = pytest.mark.parametrize("nodes", few([2], of=[2, 3, 4]), indirect=True, ids="{}nodes".format)


def train(cluster: Cluster, ranks_per_node: int, *arguments: str) -> CompletedProcess[str]:
    command = [sys.executable, "train.py", *SMALL, *arguments]
    return cluster.run(ranks_per_node, *command, timeout=3 * mpi.TIMEOUT)


def is_right(cluster: Cluster, ranks_per_node: int, exchange: str, done: CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert f"ranks     {cluster.nodes * ranks_per_node} on {cluster.nodes} node(s), " in done.stdout
    assert f"\nexchange  {exchange}" in done.stdout
    assert "\ncheck passed: " in done.stdout


def test_every_exchange_is_here() -> None:
    assert {name for _, name in WAYS} == {*choices(), "auto"} - {*OF_ONE_NODE}


@pytest.mark.parametrize(("device", "exchange"), few(WAYS[2:3], of=WAYS))
@over_nodes
def test_parameters_are_right(nodes: Cluster, device: str, exchange: str) -> None:
    """On the network's slow side too: it delays and loses."""
    nodes.link(gbit=1, delay=1e-4, loss=1e-3)
    done = train(nodes, 2, "--device", device, "--exchange", exchange)
    is_right(nodes, 2, "hierarchical" if exchange == "auto" else exchange, done)


@pytest.mark.long
@pytest.mark.parametrize("exchange", ["host", "device"])
@pytest.mark.parametrize("plan", ["--plan model", "--plan model --grid 2x2"])
def test_so_they_are_where_layers_are_split_over_nodes(nodes: Cluster, exchange: str, plan: str) -> None:
    done = train(nodes, 2, "--device", "cpu", "--exchange", exchange, *plan.split())
    is_right(nodes, 2, exchange, done)


@pytest.mark.long
def test_nodes_of_one_rank_take_host(nodes: Cluster) -> None:
    is_right(nodes, 1, "device", train(nodes, 1, "--device", "emulated"))


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parametrize("exchange", ["hogwild", *OF_ONE_NODE])
def test_an_exchange_of_one_node_is_refused(nodes: Cluster, exchange: str) -> None:
    command = [sys.executable, "train.py", *SMALL[:-1], "--device", "emulated", "--exchange", exchange]
    done = nodes.run(2, *command)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("train.py: error: "))
    assert f"--exchange {exchange}: " in line and "host" in line
    assert "Traceback" not in done.stderr and "epoch" not in done.stdout


@pytest.mark.long
def test_ranks_per_node_may_not_join_nodes(nodes: Cluster) -> None:
    done = nodes.run(1, sys.executable, "train.py", *SMALL, "--device", "cpu", "--ranks-per-node", "2")
    assert done.returncode == 2
    assert re.search(r"--ranks-per-node 2: rank [01] is on another node than its fellows\n", done.stderr)
