"""Sums of an array over ranks by every exchange: mpirun -n 4 python examples/allreduce.py [DEVICE]

Shows pyrt without nn: `make_allreduce` binds a sum once; called, it is queued as one; or it is started, and
finished once other work is queued beside it. What cannot work on this machine says why, on all ranks alike.
DEVICE is auto (the default), cuda, emulated or cpu.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyrt

N = 10_000

with pyrt.start(*sys.argv[1:2]) as runtime:
    import numpy as np  # not before MPI has started: its threads are to be this rank's share of the cores

    from pyrt.arrays import DeviceArray
    from pyrt.errors import UserError
    from pyrt.exchange.registry import choices

    job, driver, compute = runtime.job, runtime.driver, runtime.streams.compute
    mine = np.arange(N, dtype=np.float64) + job.rank
    expected = job.size * np.arange(N, dtype=np.float64) + sum(range(job.size))
    for name in choices():
        array = DeviceArray.from_host(driver, mine)
        try:
            total = runtime.make_allreduce(array, name)
        except UserError as error:
            if job.rank == 0:
                print(f"{name}: {error}")
            continue
        total()  # queued: what follows on the compute stream finds the sum
        driver.synchronize_stream(compute)
        blocking = array.to_host()

        array.set(mine)
        total.start()
        # Here is time for other work: the host's, or kernels that leave the array alone.
        total.finish()
        driver.synchronize_stream(compute)
        overlapped = array.to_host()
        total.close()

        if not all(np.array_equal(found, expected) for found in (blocking, overlapped)):
            sys.exit(f"{name}: rank {job.rank} has a wrong sum")
        if job.rank == 0:
            print(f"{name}: {job.size} rank(s) on {driver.name} by {total.name}: right, twice", flush=True)
