"""Jobs for the tests of device buffers to start under mpirun: ``device_jobs.py NAME``.

The MPI of a test machine takes what the tests' devices have; what it does not do is put into its place here.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from pyrt.job import Job, run


def deaf(job: Job) -> int:
    """One exchange whose gathers never end."""
    import numpy as np
    from mpi4py import MPI

    from pyrt.driver.cpu import CpuDriver
    from pyrt.exchange import Bucket, device
    from tests.pyrt.exchange.trainer import Trainer

    class Never:
        def Test(self) -> bool:
            return False

    class Deaf(MPI.Intracomm):
        def Dup(self) -> Deaf:
            return Deaf(super().Dup())

        def Iallgatherv(self, *arguments: object) -> Never:
            return Never()

    device.LIMIT = 4.0  # the other rank waits for a quarter of it longer, in which the job must end
    mute = Job(Deaf(job.comm), job.node, job.library, job.cores)
    trainer = Trainer("device", CpuDriver(), mute, [Bucket(0, 100)], np.dtype("f4"))
    trainer.step(np.ones(1200, "f4"))
    return 0


def probe(job: Job) -> int:
    """The probe on the device of that name, with a Sendrecv that ends as the last argument says."""
    from pyrt.mpi_probe import __main__, checks

    how = sys.argv.pop()
    right = checks.sendrecv

    def sendrecv(job: Job, driver: object) -> bool:
        if how == "hangs" and job.rank == 1:
            time.sleep(1000)
        if how == "crashes" and job.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return right(job, driver) and not (how == "wrong" and job.rank == 1)

    checks.sendrecv = sendrecv
    checks.LIMIT = 1.0
    return __main__.main(job)


main = globals()[sys.argv.pop(1)]
run(main)
