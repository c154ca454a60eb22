"""One MPI job: it starts, agrees on errors, takes signals and ends as one.

``run(main)`` starts MPI before anything else is imported, so that NumPy's BLAS starts with this rank's
share of the cores, and so that no rank leaves before the others have met it. It ends in one of these
ways, on every rank:

- ``main`` returns: its value is the exit code. A rank that returns 0 waits for the others to end, too.
- ``sys.exit`` on any rank, or another value than 0: the job ends with that code. Ranks that do so together
  end in good order; the others are ended soon after, so that none waits for a rank that has left.
- UserError, agreed by all ranks through ``Job.together``: one line, its exit code (2).
- any other exception on any rank: its traceback, and MPI_Abort ends the others.
- SIGINT or SIGTERM: a watcher thread ends the rank with 130 or 143, even while it waits inside MPI (while MPI
  starts the system does). Who can stop by itself says so with ``defer_stops``: then these only ask it to
  (``stop_was_asked``), as SIGUSR1 does from the start; a second SIGINT ends the rank at once.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from pyrt.cores import Limits, bound_blas, cores_share
from pyrt.errors import UserError, mended_by_user, out_of_files
from pyrt.launcher import launcher_rank, no_library, require_own, require_startable

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

_TUNING = {"OMPI_MCA_coll_libnbc_iallreduce_algorithm": "1"}
"""Settings for MPI that the user's own override. Open MPI's Iallreduce takes a binomial tree for fewer than
four ranks, though its ring (1) is better from there on too: 1.63 MB on the host in four pieces, Open MPI
5.0.7, 2, 3 and 4 ranks: tree 584, 965, 1173 us; ring 385, 529, 705 us. Other libraries do not read it."""

_NAP = 100e-6
"""Seconds that a waiting rank sleeps where ranks share cores."""

_LAST_WORDS = 0.1
"""Seconds in which mpirun passes on what a rank printed before it ends the job."""

_ABORT_SECONDS = 2
"""After which the system ends a rank whose launcher does not."""

_ENDS = (signal.SIGINT, signal.SIGTERM)

_STOPS = (*_ENDS, signal.SIGUSR1)

_NOTICED = 0.2
"""Seconds within which a signal that has come is known of: a thread takes it."""

_MEETING = 5.0
"""Seconds in which all ranks come to their end, where one has left or failed."""


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

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    def alone(self) -> Job:
        """The place of this rank in a job of its own."""
        from mpi4py import MPI

        return replace(self, comm=MPI.COMM_SELF, node=MPI.COMM_SELF)

    @property
    def threads(self) -> int:
        """BLAS threads of this rank."""
        return max(1, int(self.cores + 1e-9))

    def pause(self) -> None:
        """Between two looks at something that another rank, or MPI, must do first."""
        if self.cores < 1:
            time.sleep(_NAP)  # ranks that only yield take half the cores from one with long work
        else:
            os.sched_yield()

    @contextmanager
    def together(self) -> Iterator[None]:
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

    def wait_for_all(self) -> None:
        """A barrier that leaves its core to ranks that still work, as MPI's own waits do not."""
        request = self.comm.Ibarrier()
        while not request.Test():
            self.pause()

    def stop(self, message: str, code: int) -> NoReturn:
        """Print a line and end all ranks: from any thread, even while another one waits inside MPI."""
        _print_error(_program(), message)
        end_from_thread(code)


@contextmanager
def agreed_by_some() -> Iterator[None]:
    """Within `Job.together`: what the ranks of another job raise here, others of this one know nothing of."""
    try:
        yield
    except AgreedError as error:
        raise UserError(str(error)) from None


def run(main: Callable[[Job], int]) -> NoReturn:
    """Start the job, call ``main`` on every rank, end the job; see the top of this file."""
    program = _program()
    _open_closed_output()
    _watch_signals(program)
    try:
        job = join()
    except UserError as error:
        _exit_with_error(program, error, printing=launcher_rank() == 0)
    _watch(*_ENDS)
    ends = job.comm.Dup()  # no other messages mix with those of the end
    try:
        code, left = _result(main, job)
        sys.stdout.flush()
    except AgreedError as error:
        _exit_with_error(program, error, printing=job.rank == 0)
    except BaseException as error:
        _fail(program, job, error)
    _meet(program, job, ends, code, left)
    sys.exit(code)


def _open_closed_output() -> None:
    """Drop what is said where output is closed: else it would go into the next file that is opened."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _result(main: Callable[[Job], int], job: Job) -> tuple[int, bool]:
    """Return the exit code of ``main``, and whether it left by sys.exit; texts are printed, as there."""
    try:
        return main(job), False
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0, True
        _say_error(str(end.code))
        return 1, True


def _meet(program: str, job: Job, ends: MPI.Comm, code: int, left: bool) -> None:
    """Wait until all ranks have come to their end; where this one has left or failed, not for long.

    The others may wait inside MPI for a rank that has left, and for ever: then this one ends them.
    """
    request = ends.Ibarrier()
    until = time.monotonic() + _MEETING if code or left else inf
    while not request.Test():
        if time.monotonic() > until:
            if not code:
                _print_error(
                    program,
                    f"rank {job.rank} has left by sys.exit(), others have not: let all ranks do so, or "
                    "return 0 from main where one has nothing more to do",
                )
            _abort(job, code or 1)
        time.sleep(_NAP)


def _fail(program: str, job: Job, error: BaseException) -> NoReturn:
    """End all ranks for an exception that this one alone knows of: say what it is, once."""
    code = error.code if isinstance(error, UserError) else UserError.code
    if isinstance(error, BrokenPipeError):  # who read the output has left, as head does
        code = drop_output()
    elif text := mended_by_user(error):
        _print_error(program, text)
    elif _is_of_output(error):
        _print_error(program, f"what is printed finds no room ({error})")
    else:
        _say_error(f"{program}: rank {job.rank} of {job.size} failed:\n{traceback.format_exc()}", end="")
        code = 1
    _abort(job, code)


def drop_output() -> int:
    """Let all that is still printed go nowhere. Returns the exit code of a program that ends for that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _program() -> str:
    """What runs, as errors name it: a file, or a package."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def _is_of_output(error: BaseException) -> bool:
    """Whether what is printed finds no room. What other files find is a UserError by now."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _abort(job: Job, code: int) -> NoReturn:
    """End all ranks, once mpirun has had time to pass on what this one printed: MPICH's drops the rest."""
    with suppress(OSError):  # nobody need listen
        sys.stdout.flush()
    time.sleep(_LAST_WORDS)
    if job.comm.size > 1:  # else Abort adds lines of its own
        job.comm.Abort(code)
    os._exit(code)  # MPICH's Abort may return before the end


@cache
def join() -> Job:
    """Start MPI if need be, and find this rank's place in the job. Collective.

    Raises UserError where no MPI library loads, or where it is not the one that mpirun belongs to, but for
    pairs that end in MPI itself (README.md, On a cluster).
    """
    for variable, value in _TUNING.items():
        os.environ.setdefault(variable, value)
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
    if not MPI.Is_initialized():
        require_startable(account, library)
        MPI.Init_thread()
    return library


def _short_name(version: str) -> str:
    """``MPICH 5.0.2`` of the library's long account of itself."""
    first = version.splitlines()[0].split(",")[0].replace("Version:", "")
    return " ".join(first.strip("\0").split())


def _exit_with_error(program: str, error: UserError, printing: bool) -> NoReturn:
    if printing:
        _print_error(program, error)
    sys.exit(error.code)


def _print_error(program: str, error: UserError | str) -> None:
    _say_error(f"{program}: error: {error}")


def _say_error(text: str, end: str = "\n") -> None:
    """Print by one write, so that the words of several ranks do not mix. Nobody need listen."""
    with suppress(OSError):
        sys.stderr.write(text + end)
        sys.stderr.flush()


class _Stops:
    """What signals have asked for."""

    are_deferred = False
    was_asked = False
    was_interrupted = False


def defer_stops() -> None:
    """From here on SIGTERM and a first SIGINT ask the job to stop, and end nothing."""
    _Stops.are_deferred = True


def stop_was_asked() -> bool:
    """Whether this rank got SIGUSR1, or one of those that are deferred."""
    return _Stops.was_asked


def undisturbed(work: Callable[[], T]) -> T:
    """What work gives that starts other programs; done again where it fails while this rank is asked to stop.

    The signal may have ended the program, too, as that of a terminal or of Slurm does. Whether this rank ends
    is for others to say.
    """
    was_asked = stop_was_asked()
    try:
        return work()
    except UserError:
        until = time.monotonic() + _NOTICED
        while not stop_was_asked() and time.monotonic() < until:
            time.sleep(_NAP)
        if was_asked or not stop_was_asked():
            raise
        return work()


def _watch_signals(program: str) -> None:
    """Do what signals ask for in a thread of its own; at first that is to note a SIGUSR1 alone.

    Python runs signal handlers in the main thread between bytecodes: never, while that thread waits
    inside MPI. But its C handler writes the signal's number to the wake-up pipe at once.

    While MPI starts no thread of Python's may run, and other ranks may wait for this one: mpirun ends them
    where the system ends a rank, but not always where that merely exits.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in _ENDS:
        signal.signal(number, signal.SIG_DFL)
    _watch(signal.SIGUSR1)
    signal.set_wakeup_fd(writer)
    threading.Thread(target=_end_on_signal, args=(reader, program), daemon=True).start()


def _watch(*numbers: int) -> None:
    """From here on the thread sees these signals."""
    for number in numbers:
        signal.signal(number, lambda *_: None)


def _end_on_signal(reader: int, program: str) -> None:
    number = os.read(reader, 1)[0]
    while not _ends(number):
        if number in _STOPS and _Stops.are_deferred:
            again = "; once more: at once" if number == signal.SIGINT else ""
            _say(program, f"{signal.Signals(number).name}: stops as soon as all ranks can{again}")
        number = os.read(reader, 1)[0]
    _say(program, f"stopped by {signal.Signals(number).name}")
    end_from_thread(128 + number)


def _ends(number: int) -> bool:
    """Whether a signal ends this rank now."""
    again = number == signal.SIGINT and _Stops.was_interrupted
    ends = number in _ENDS and (again or not _Stops.are_deferred)
    _Stops.was_interrupted |= number == signal.SIGINT
    _Stops.was_asked |= number in _STOPS
    return ends


def _say(program: str, text: str) -> None:
    """By the first rank alone, and by the system: another thread may be within a print."""
    if launcher_rank() == 0:
        with suppress(OSError):  # nobody need listen
            os.write(2, f"\n{program}: {text}\n".encode())


def end_from_thread(code: int) -> NoReturn:
    """End all ranks while another thread may be inside MPI, for ever."""
    try:
        from mpi4py import MPI

        # One rank merely exits: MPICH's Abort seldom returns while threads of a BLAS compute.
        if not MPI.Is_finalized() and MPI.COMM_WORLD.size > 1:
            _abort_from_thread(MPI.COMM_WORLD, code)
    finally:  # whatever is missing: threads, open files
        os._exit(code)


def _abort_from_thread(comm: MPI.Comm, code: int) -> None:
    # MPICH's mpirun may take no notice of a rank that merely exits, and let the others wait for ever.
    time.sleep(_LAST_WORDS)
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Abort has nothing to add
    # Abort waits for the launcher, and holds Python meanwhile: for ever, where that is stopped.
    signal.alarm(_ABORT_SECONDS)
    threading.Thread(target=comm.Abort, args=(code,), daemon=True).start()
    time.sleep(1)
