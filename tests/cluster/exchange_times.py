"""Time exchanges on the ranks of a job, as bench/exchange.py does, on the emulated device; print JSON.

mpirun -n 4 python -m tests.cluster.exchange_times BYTES WAY ..
"""

from __future__ import annotations

import json
import sys
from contextlib import closing

from bench.exchange import measure
from pyrt.job import Job, run

LONGEST = 4.0
"""Seconds for a way."""


def main(job: Job) -> int:
    from pyrt.devices import open_device
    from pyrt.exchange import Bucket

    bucket = Bucket(0, int(sys.argv[1]) // 4)
    with closing(open_device("emulated", job, share_gpus=True).driver) as driver:
        times = {way: measure(way, driver, job, [bucket], LONGEST).median for way in sys.argv[2:]}
    if job.rank == 0:
        print(json.dumps(times), flush=True)
    return 0


if __name__ == "__main__":
    run(main)
