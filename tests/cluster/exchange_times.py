"""Time exchanges between the ranks of a job, as bench/exchange.py does, in host memory; print JSON.

    mpirun -n 4 python -m tests.cluster.exchange_times 1628200

The microseconds of the quickest of many steps, by way. ``across nodes`` is the part of `hierarchical` that is
between nodes: each rank sums its shard with the ranks in its place on the other nodes. The part within a node
takes GPUs some tens of microseconds; emulated it would hide the network.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace

from bench.exchange import measure
from pyrt.job import Job, run

LONGEST = 5.0
"""Seconds for a way."""

ACROSS = "across nodes"


def main(job: Job) -> int:
    from pyrt.devices import open_device
    from pyrt.exchange import Bucket

    size = int(sys.argv[1]) // 4
    places = replace(job, comm=job.comm.Split(job.node.rank))
    with closing(open_device("cpu", job, share_gpus=True).driver) as driver:
        times = {
            way: measure(way, driver, job, [Bucket(0, size)], LONGEST).least
            for way in ("blocking", "host", "device")
        }
        shard = Bucket(0, size // job.node.size)
        times[ACROSS] = measure("host", driver, places, [shard], LONGEST).least
    if job.rank == 0:
        print(json.dumps(times), flush=True)
    return 0


if __name__ == "__main__":
    run(main)
