"""Times of exchanges over two nodes on networks of given rates, beside the cost model: a table."""

from __future__ import annotations

import json
import sys

import pytest
from tabulate import tabulate

from nn.autotune.cost import Span, exchange_stages
from nn.autotune.rates import KINDS, Link, Rates
from pyrt.driver.null import DeviceProperties
from pyrt.exchange import Bucket
from tests import mpi
from tests.cluster.cluster import Cluster
from tests.cluster.exchange_times import ACROSS

RANKS_PER_NODE = 2

NETWORKS = {"10 Gbit/s, 1 ms": (10.0, 1e-3), "1 Gbit/s, 1 ms": (1.0, 1e-3)}

SIZES = (64 << 10, 1628200, 16 << 20)
"""Bytes; the second are all gradients of 784-512-10."""


def predicted(way: str, nbytes: int, gbit: float, delay: float) -> float:
    """Predict the seconds that an exchange spends between two nodes.

    The ranks of a node share its link. Of a ring over all ranks one message at a time crosses it; of
    ``hierarchical`` each rank's shard does, at the same time.
    """
    at_once = RANKS_PER_NODE if way == ACROSS else 1
    far = Link(0.0, 1e6 * delay, gbit / 8 / at_once)
    rates = Rates(
        about="the cluster of tests/cluster",
        device=DeviceProperties("emulated", "", 1, 1),
        operation_us=0.0,
        memory_gb_s=1.0,
        exchange="hierarchical" if way == ACROSS else way,
        ranks_per_node=RANKS_PER_NODE,
        node=dict.fromkeys(KINDS, Link(0.0, 0.0, 1e9)),
        network=dict.fromkeys(KINDS, far),
    )
    span = Span(2 * RANKS_PER_NODE, RANKS_PER_NODE)
    *_, (seconds, _) = exchange_stages(rates, [Bucket(0, nbytes // 4)], span, 4)
    return seconds


def measured(cluster: Cluster, nbytes: int, network: tuple[float, float]) -> dict[str, float]:
    """Return the seconds of a step of each way."""
    cluster.link(*network)
    command = [sys.executable, "-m", "tests.cluster.exchange_times", str(nbytes)]
    done = cluster.run(RANKS_PER_NODE, *command, timeout=3 * mpi.TIMEOUT)
    assert done.returncode == 0, done.stderr
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {way: 1e-6 * us for way, us in times.items()}


@pytest.mark.long
def test_exchanges_beside_the_model(nodes: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for nbytes in SIZES:
        without = measured(nodes, nbytes, (100.0, 0.0))
        times = [(network, measured(nodes, nbytes, network)) for network in NETWORKS.values()]
        for way in without:
            row: list[object] = [nbytes, way, 1e3 * without[way]]
            for network, took in times:
                row += [1e3 * took[way], 1e3 * predicted(way, nbytes, *network)]
            rows.append(row)
    headers = ["bytes", "exchange", "100 Gbit/s, ms"]
    headers += [column for name in NETWORKS for column in (f"{name}, ms", "model, ms")]
    with capsys.disabled():
        print(f"\n{2 * RANKS_PER_NODE} ranks on 2 nodes, cpu; the quickest of many steps")
        print(tabulate(rows, headers=headers, floatfmt=".1f"))
