"""How long exchanges over two nodes take on networks of given rates, beside the cost model: a table."""

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

RANKS_PER_NODE = 2

NETWORKS = {"10 Gbit/s, 1 ms": (10.0, 1e-3), "1 Gbit/s, 1 ms": (1.0, 1e-3)}

WAYS = ("blocking", "host", "device", "hierarchical")

SIZES = (1628200, 16 << 20)
"""Bytes; the first are all gradients of 784-512-10."""


def predicted(way: str, nbytes: int, gbit: float, delay: float) -> float:
    """Predict the seconds that an exchange spends between two nodes.

    The ranks of a node share its link. Of a ring over all ranks one message at a time crosses it; with
    ``hierarchical`` each rank's shard does, at the same time.
    """
    at_once = RANKS_PER_NODE if way == "hierarchical" else 1
    far = Link(0.0, 1e6 * delay, gbit / 8 / at_once)
    rates = Rates(
        about="the cluster of tests/cluster",
        device=DeviceProperties("emulated", "", 1, 1),
        operation_us=0.0,
        memory_gb_s=1.0,
        exchange=way,
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
    command = [sys.executable, "-m", "tests.cluster.exchange_times", str(nbytes), *WAYS]
    done = cluster.run(RANKS_PER_NODE, *command, timeout=10 * mpi.TIMEOUT)
    assert done.returncode == 0, done.stderr
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {way: 1e-6 * us for way, us in times.items()}


@pytest.mark.long
@pytest.mark.kernels
def test_exchanges_beside_the_model(nodes: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for nbytes in SIZES:
        fast = measured(nodes, nbytes, (100.0, 0.0))
        times = {name: measured(nodes, nbytes, network) for name, network in NETWORKS.items()}
        for way in WAYS:
            row: list[object] = [nbytes, way, 1e3 * fast[way]]
            for name, network in NETWORKS.items():
                row += [1e3 * (times[name][way] - fast[way]), 1e3 * predicted(way, nbytes, *network)]
            rows.append(row)
    headers = ["bytes", "exchange", "no network, ms"]
    headers += [f"{name}: {what}" for name in NETWORKS for what in ("more, ms", "model, ms")]
    with capsys.disabled():
        print(f"\n{2 * RANKS_PER_NODE} ranks on 2 nodes, emulated device; medians")
        print(tabulate(rows, headers=headers, floatfmt=".1f"))
