"""Does this MPI take device buffers, here? A job of its own that finds out, and keeps the answer::

    mpirun -n 2 python -m pyrt.mpi_probe

It makes the calls of the exchange `device`, on this device, and checks what comes back
(pyrt/mpi_probe/checks.py). Run it as training is run: on one node or on several, with the same settings of
the MPI. Exit code 0: the exchange `device` works here.
"""

from __future__ import annotations

import contextlib
import os
import sys

from pyrt.arguments import Parser
from pyrt.job import Job, run


def main(job: Job) -> int:
    """Exit code of one rank: 0, or 1 where the exchange does not work."""
    from pyrt.devices import CHOICES, open_device
    from pyrt.errors import UserError
    from pyrt.mpi_probe.checks import Tries

    parser = Parser("python -m pyrt.mpi_probe", __doc__)
    parser.add_argument("--device", choices=CHOICES, default="auto", help="as for train.py")
    parser.add_argument("--share-gpus", action="store_true", help="let ranks share a GPU")
    with contextlib.ExitStack() as stack:
        if job.rank > 0:  # only rank 0 prints
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        with job.agree():
            options = parser.parse_args(sys.argv[1:])
    with job.agree():
        if job.size < 2:
            raise UserError("one rank has nobody to talk to: start two, mpirun -n 2 python -m pyrt.mpi_probe")
    driver = open_device(options.device, job, options.share_gpus).driver
    try:
        return 0 if Tries(job, driver).run() else 1
    finally:
        driver.close()


if __name__ == "__main__":
    run(main)
