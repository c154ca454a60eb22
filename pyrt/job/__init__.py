"""One MPI job: it starts, agrees on errors, takes signals and ends as one.

``run(main)``, or ``with session()``, starts MPI before anything else is imported, so that NumPy's BLAS starts
with this rank's share of the cores, and so that no rank leaves before the others have met it. It ends in one
of these ways, on every rank:

- ``main`` returns: its value is the exit code. A rank that returns 0 waits for the others to end, too.
- ``sys.exit`` on any rank, or another value than 0: the job ends with that code. Ranks that do so together
  end in good order; the others are ended soon after, so that none waits for a rank that has left.
- UserError, agreed by all ranks through ``Job.agree``: one line, its exit code (2).
- any other exception on any rank: its traceback, and MPI_Abort ends the others.
- a signal: see pyrt/job/signals.py.

How it ends is in pyrt/job/ending.py.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NoReturn, cast

from pyrt.errors import UserError, mended_by_user, out_of_files
from pyrt.job.cores import Limits, bound_blas, cores_share
from pyrt.job.ending import (
    NAP,
    Leaving,
    end_from_thread,
    exit_with_error,
    fail,
    meet,
    open_closed_output,
    print_error,
    program_name,
    result_of,
)
from pyrt.job.launcher import launcher_rank, no_library, require_own, require_startable
from pyrt.job.signals import ENDS, Stops, watch, watch_signals
from pyrt.job.survivors import Survivors, require_mitigation
from pyrt.mpi_probe.libraries import identify

if TYPE_CHECKING:
    from mpi4py import MPI

_TUNING = {
    "Open MPI": {"OMPI_MCA_coll_libnbc_iallreduce_algorithm": "1"},
    "MPICH": {"UCX_TCP_KEEPIDLE": "inf"},
}
"""Settings for an MPI that the user's own override.

Open MPI's Iallreduce takes a binomial tree for fewer than four ranks, though its ring (1) is better from
there on too: 1.63 MB on the host in four pieces, Open MPI 5.0.7, 2, 3 and 4 ranks: tree 584, 965, 1173 us;
ring 385, 529, 705 us. UCX gives up a connection that has not been answered for 16 s, and MPICH 5.0.2 over it
then crashes: pyrt/job/cut_off.py waits longer, and says what has happened."""


_LAST_WAIT = 2.0
"""Seconds that a rank waits for others to leave a communicator."""


class AgreedError(UserError):
    """A UserError that every rank of the job knows of."""


@dataclass(frozen=True)
class Job:
    """This rank's place in the job."""

    comm: MPI.Comm
    node: MPI.Comm
    library: str
    cores: float
    """This rank's share of its node's cores, or of a CPU quota; below 1 where ranks share cores."""
    survivors: Survivors | None = None
    """The ranks that are left, in a job that goes on without those that die; ``comm`` is these, then."""

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    def alone(self) -> Job:
        """Return the place of this rank in a job of its own."""
        from mpi4py import MPI

        return replace(self, comm=MPI.COMM_SELF, node=MPI.COMM_SELF, survivors=None)

    @property
    def threads(self) -> int:
        """BLAS threads of this rank."""
        return max(1, int(self.cores + 1e-9))

    def pause(self) -> None:
        """Between two looks at something that another rank, or MPI, must do first."""
        if self.cores < 1:
            time.sleep(NAP)  # ranks that only yield take half the cores from one with long work
        else:
            with suppress(InterruptedError):  # by a signal: its handler has run
                os.sched_yield()

    @contextmanager
    def agree(self) -> Iterator[None]:
        """Run a block whose UserErrors all ranks shall share: if any rank raises one, all raise it.

        Running out of host memory or of open files counts as one. Collective, and a barrier: every rank
        enters and leaves.
        """
        message = None
        try:
            yield
        except AgreedError:
            raise
        except Exception as error:
            message = mended_by_user(error)
            if not message:
                raise
        self.wait_for_all()  # perhaps for a compiler, which needs the cores
        messages = [text for text in self.comm.allgather(message) if text is not None]
        if messages:
            raise AgreedError(messages[0])

    def surviving(self, option: str) -> Job:
        """Return the same job, whose collective calls go on without ranks that die.

        The ``option`` asks for it. Collective; UserError on all ranks where this MPI cannot.
        """
        with self.agree():
            require_mitigation(option)
        survivors = Survivors(self.comm, self.pause)
        Leaving.by = survivors.leave
        return replace(self, comm=cast("MPI.Comm", survivors), survivors=survivors)

    @property
    def survives(self) -> bool:
        """Return whether it goes on without ranks that die."""
        return self.survivors is not None

    @property
    def members(self) -> list[int]:
        """The ranks that are left, by their numbers at the start."""
        return self.survivors.members if self.survivors is not None else list(range(self.size))

    def wait_for_all(self) -> None:
        """Wait for all ranks, and leave the core to ranks that still work; MPI's own waits do not."""
        request = self.comm.Ibarrier()
        while not request.Test():
            self.pause()

    def leave(self, comm: MPI.Comm) -> bool:
        """Free a communicator once all of its ranks come here; return whether they do.

        Waits for them for a moment: after an exception they may never come. In a job that survives its ranks
        MPI frees it at the end.
        """
        if self.survives:
            return False
        request, give_up = comm.Ibarrier(), time.perf_counter() + _LAST_WAIT
        while not request.Test():
            if time.perf_counter() > give_up:
                return False
            self.pause()
        comm.Free()
        return True

    def stop(self, message: str, code: int) -> NoReturn:
        """Print a line and end all ranks: from any thread, even while another one waits inside MPI."""
        print_error(program_name(), message)
        end_from_thread(code)


@contextmanager
def agreed_by_some() -> Iterator[None]:
    """Within `Job.agree`: what the ranks of another job raise here, others of this one know nothing of."""
    try:
        yield
    except AgreedError as error:
        raise UserError(str(error)) from None


def run(main: Callable[[Job], int]) -> NoReturn:
    """Start the job, call ``main`` on every rank, end the job; see the top of this file."""
    program, job = program_name(), _start()
    ends = job.comm.Dup()  # no other messages mix with those of the end
    try:
        code, left = result_of(main, job)
        sys.stdout.flush()
    except AgreedError as error:
        exit_with_error(program, error, printing=job.rank == 0)
    except BaseException as error:
        fail(program, job, error)
    meet(program, job, ends, code, left)
    sys.exit(code)


@contextmanager
def session() -> Iterator[Job]:
    """Start the job; end it as `run` does if the block raises. See the top of this file.

    Within a job that `run` has started it is that one, which `run` ends.
    """
    if Stops.are_watched:
        yield join()
        return
    program, job = program_name(), _start()
    ends = job.comm.Dup()
    try:
        yield job
        sys.stdout.flush()
    except AgreedError as error:
        exit_with_error(program, error, printing=job.rank == 0)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        meet(program, job, ends, code, left=True)
        raise
    except BaseException as error:
        fail(program, job, error)
    meet(program, job, ends, 0, left=False)


def _start() -> Job:
    """Start MPI, and watch for signals from here on."""
    program = program_name()
    open_closed_output()
    watch_signals(program)
    try:
        job = join()
        if job.node.size < job.size:  # else without the imports
            from pyrt.job.cut_off import watch_nodes

            watch_nodes(job)
    except UserError as error:
        exit_with_error(program, error, printing=launcher_rank() == 0)
    watch(*ENDS)
    return job


@cache
def join() -> Job:
    """Start MPI if need be, and find this rank's place in the job. Collective.

    Raises UserError where no MPI library loads, or where it is not the one that mpirun belongs to, but for
    pairs that end in MPI itself (docs/howto/clusters.md).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mpi4py's of a foreign launcher: it is refused here
        library = _start_mpi()
        from mpi4py import MPI
    comm = MPI.COMM_WORLD
    require_own(comm.size, library)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    job = Job(comm, node, library, cores_share(node.allgather(Limits.of_this_process()), node.rank))
    bound_blas(job.threads)
    return job


def _start_mpi() -> str:
    """Load an MPI library and start it. Returns its short name; raises as `join`."""
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # first see whether it can start
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(out_of_files(error) or no_library(str(error))) from None
    account = MPI.Get_library_version()
    library = _short_name(account)
    for variable, value in _TUNING.get(identify(account)[0], {}).items():
        os.environ.setdefault(variable, value)
    if not MPI.Is_initialized():
        require_startable(account, library)
        MPI.Init_thread()
    return library


def _short_name(version: str) -> str:
    """``MPICH 5.0.2`` of the library's long account of itself."""
    first = version.splitlines()[0].split(",")[0].replace("Version:", "")
    return " ".join(first.strip("\0").split())
