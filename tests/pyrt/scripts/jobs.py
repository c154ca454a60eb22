"""Jobs for test_job.py to start under mpirun: ``jobs.py NAME [FOLDER]`` runs the main of that name."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

import pyrt.job
from pyrt.errors import UserError
from pyrt.job import Job, agreed_by_some, join, run
from pyrt.job.signals import defer_stops, stop_was_asked


def describe(job: Job) -> int:
    """Rank 0 prints what each rank found of its job, and whether the slow last rank was waited for."""
    numpy_loaded = "numpy" in sys.modules
    folder = Path(sys.argv[2])
    if job.rank == job.size - 1:
        time.sleep(0.3)
        (folder / "late").touch()
    job.wait_for_all()
    found = {
        "place": [job.rank, job.size, job.node.rank, job.node.size],
        "joined once": join() is job,
        "library": job.library,
        "cores": len(os.sched_getaffinity(0)),
        "threads": job.threads,
        "blas": [os.environ[name] for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")],
        "numpy loaded": numpy_loaded,
        "waited": (folder / "late").exists(),
    }
    everything = job.comm.gather(found)
    if job.rank == 0:
        print(json.dumps(everything))
    return 0


def code_of_its_own(job: Job) -> int:
    return 3


def leaves(job: Job) -> int:
    sys.exit(3)


def leaves_quietly(job: Job) -> int:
    """As --help does, within a block that ranks enter together."""
    with job.agree():
        sys.exit()


def one_leaves(job: Job) -> int:
    """Rank 1, as the command line says, while another waits for it."""
    if job.rank == 1:
        how = sys.argv[3]
        if how.startswith("return"):
            return int(how.split()[1])
        eval(how)
    job.comm.Barrier()
    return 0


def one_returns_early(job: Job) -> int:
    if job.rank == 0:
        time.sleep(2 * pyrt.job.ending._MEETING)
        print("rank 0 was let finish")
    return 0


def agreed_error(job: Job) -> int:
    """The last two ranks raise; all have passed one collective block and are in an outer one."""
    with job.agree():
        pass
    with job.agree(), job.agree():
        if job.rank >= job.size - 2:
            raise UserError(f"rank {job.rank} finds a mistake: correct it")
    return 0


def error_of_some(job: Job) -> int:
    """Two ranks, each a job of its own, raise what the third knows nothing of."""
    with job.agree(), agreed_by_some(), job.alone().agree():
        if job.rank < 2:
            raise UserError(f"rank {job.rank} finds a mistake: correct it")
    return 0


def unagreed_error(job: Job) -> int:
    if job.rank == 1:
        raise UserError("only rank 1 finds a mistake: correct it")
    job.comm.Barrier()
    return 0


def failure_first(job: Job) -> int:
    """A bug on one rank, before anything collective."""
    if job.rank == 1:
        raise ValueError("a bug on one rank")
    job.comm.Barrier()
    return 0


def failure_later(job: Job) -> int:
    """A bug on one rank, in the middle of a collective block that the others wait in."""
    job.comm.Barrier()
    with job.agree():
        if job.rank == 1:
            raise ValueError("a bug on one rank")
    return 0


def mpi_fails_for_a_killed_rank(job: Job) -> int:
    """Rank 1 is killed just after rank 0's call of MPI has failed."""
    from mpi4py import MPI

    job.comm.Barrier()
    if job.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    raise MPI.Exception(MPI.ERR_OTHER)


def mpi_fails(job: Job) -> int:
    """A call of MPI is wrong."""
    from mpi4py import MPI

    raise MPI.Exception(MPI.ERR_OTHER)


def endless(job: Job) -> int:
    """Say which process each rank is, then wait inside MPI for a message that nobody sends."""
    _tell_process(job.rank)
    if job.rank == 0:
        job.comm.recv(source=1)
    job.comm.Barrier()
    return 0


def endless_alone(job: Job) -> int:
    """Say which process it is, then multiply matrices in all threads of BLAS."""
    import numpy as np

    matrix = np.ones((500, 500), np.float32)
    _tell_process(job.rank)
    while True:
        matrix @ matrix


def _tell_process(rank: int | str) -> None:
    folder = Path(sys.argv[2])
    unfinished = folder / f"unfinished-{rank}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(folder / f"rank-{rank}")


def asked_to_stop(job: Job) -> int:
    """Stop with 4 once any rank is asked to, however long that takes."""
    defer_stops()
    _tell_process(job.rank)
    while not any(job.comm.allgather(stop_was_asked())):
        time.sleep(0.01)
    return 4


def deaf(job: Job) -> int:
    """Wait inside MPI, as `endless`; who asks to stop is not heard."""
    defer_stops()
    return endless(job)


def asked_early(job: Job) -> int:
    """Each rank gets SIGUSR1 before it has said that it can stop; 4 where that is not forgotten."""
    os.kill(os.getpid(), signal.SIGUSR1)
    until = time.monotonic() + 10
    while not stop_was_asked() and time.monotonic() < until:  # by a thread of its own
        time.sleep(0.01)
    defer_stops()
    return 4 if stop_was_asked() else 5


def prints(job: Job) -> int:
    print("words")
    return 0


def is_not_listened_to(job: Job) -> int:
    """5 where something else has come to have a number that the command line names."""
    print("words")
    if "2" in sys.argv[2]:
        print("words", file=sys.stderr)
    return 0 if all(os.readlink(f"/proc/self/fd/{number}") == os.devnull for number in sys.argv[2]) else 5


class SlowStart:
    """An import of MPI takes this long: an entry of ``sys.meta_path``, which finds nothing."""

    seconds = 2.0

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "mpi4py.MPI":
            variables = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
            rank = next(os.environ[variable] for variable in variables if variable in os.environ)
            _tell_process(rank)
            time.sleep(self.seconds)


def started_slowly(job: Job) -> int:
    """4 where a SIGUSR1 came while MPI started."""
    defer_stops()
    return 4 if any(job.comm.allgather(stop_was_asked())) else 5


# mpirun may kill the shell that records this process's exit code: then this process dies, too.
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if sys.argv[1] in ("one_leaves", "one_returns_early"):
    pyrt.job.ending._MEETING = 0.5
if sys.argv[1] == "started_slowly":
    sys.meta_path.insert(0, SlowStart())
run(globals()[sys.argv[1]])
