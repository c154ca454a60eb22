"""Run a command on ranks of several nodes of this machine; as root on Linux.

    python -m tests.cluster --nodes 2 --ranks-per-node 2 --gbit 1 --delay-ms 1 -- python train.py --check

mpirun is PATH's, MPICH's or Open MPI's. The nodes have the files of this machine, but their own network,
name, /dev/shm and processes. All of it is gone at the end.
"""

from __future__ import annotations

import argparse
import sys

from tests.cluster.cluster import MOST_NODES, Cluster, obstacle


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2, choices=range(1, MOST_NODES + 1))
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--gbit", type=float, default=100.0, help="10^9 bit/s of each node's link")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="delay from one node to another")
    parser.add_argument("--loss", type=float, default=0.0, help="share of packets that are lost")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if obstacle():
        print(f"python -m tests.cluster: error: {obstacle()}", file=sys.stderr)
        return 2
    with Cluster(options.nodes) as cluster:
        cluster.link(options.gbit, 1e-3 * options.delay_ms, options.loss)
        return cluster.start(options.ranks_per_node, *options.command, captured=False).process.wait()


if __name__ == "__main__":
    sys.exit(main())
