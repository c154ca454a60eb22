"""How a job ends: all ranks together, with one message and one exit code, whatever one of them met."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pyrt.errors import UserError, mended_by_user

if TYPE_CHECKING:
    from mpi4py import MPI

    from pyrt.job import Job

NAP = 100e-6
"""Seconds that a waiting rank sleeps."""

_LAST_WORDS = 0.1
"""Seconds in which mpirun passes on what a rank printed before it ends the job."""

_ABORT_SECONDS = 2
"""After which the system ends a rank whose launcher does not."""

_LAUNCHER_ENDS = 1.0
"""Seconds in which a launcher ends all ranks, once one of them was killed."""

_MEETING = 5.0
"""Seconds in which all ranks come to their end, where one has left or failed."""


class Leaving:
    """How ranks leave at the end, where some may have died: MPI's own end may wait for these for ever."""

    by: Callable[[int], NoReturn] | None = None
    """Ends the process with an exit code, once all that are left have come; None: MPI's way."""


def open_closed_output() -> None:
    """Drop what is said where output is closed: else it would go into the next file that is opened."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def result_of(main: Callable[[Job], int], job: Job) -> tuple[int, bool]:
    """Return the exit code of ``main``, and whether it left by sys.exit; texts are printed, as there."""
    try:
        return main(job), False
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0, True
        say_error(str(end.code))
        return 1, True


def meet(program: str, job: Job, ends: MPI.Comm, code: int, left: bool) -> None:
    """Wait until all ranks have come to their end; where this one has left or failed, not for long.

    The others may wait inside MPI for a rank that has left, and for ever: then this one ends them.
    """
    if Leaving.by is not None and not left:
        Leaving.by(code)
    until = time.monotonic() + _MEETING if code or left else inf
    request = ends.Ibarrier()
    while not request.Test():
        if time.monotonic() > until:
            if not code:
                print_error(
                    program,
                    f"rank {job.rank} has left by sys.exit(), others have not: let all ranks do so, or "
                    "return 0 from main where one has nothing more to do",
                )
            _abort(job, code or 1)
        time.sleep(NAP)


def is_loss(error: MPI.Exception) -> bool:
    """Return whether an error says that a rank is dead."""
    from mpi4py import MPI

    return error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)


def fail(program: str, job: Job, error: BaseException) -> NoReturn:
    """End all ranks for an exception that this one alone knows of: say what it is, once."""
    code = error.code if isinstance(error, UserError) else UserError.code
    if isinstance(error, BrokenPipeError):  # who read the output has left, as head does
        code = drop_output()
    elif text := mended_by_user(error):
        print_error(program, text)
    elif _is_of_output(error):
        print_error(program, f"what is printed finds no room ({error})")
    else:
        _let_the_launcher_end(error)
        say_error(f"{program}: rank {job.rank} of {job.size} failed:\n{traceback.format_exc()}", end="")
        code = 1
    _abort(job, code)


def _let_the_launcher_end(error: BaseException) -> None:
    """Wait a moment after an MPI error: if a killed rank is its cause, the launcher says so and ends all."""
    from mpi4py import MPI

    if isinstance(error, MPI.Exception):
        time.sleep(_LAUNCHER_ENDS)


def drop_output() -> int:
    """Let all that is still printed go nowhere. Returns the exit code of a program that ends for that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def program_name() -> str:
    """Name the program, as errors do: a file, or a package."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def _is_of_output(error: BaseException) -> bool:
    """Return whether output found no room. For other files that is a UserError by now."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _abort(job: Job, code: int) -> NoReturn:
    """End all ranks, once mpirun has had time to pass on what this one printed: MPICH's drops the rest."""
    with suppress(OSError):  # nobody need listen
        sys.stdout.flush()
    time.sleep(_LAST_WORDS)
    if job.comm.size > 1:  # else Abort adds lines of its own
        job.comm.Abort(code)
    os._exit(code)  # MPICH's Abort may return before the end


def exit_with_error(program: str, error: UserError, printing: bool) -> NoReturn:
    if printing:
        print_error(program, error)
    sys.exit(error.code)


def print_error(program: str, error: UserError | str) -> None:
    say_error(f"{program}: error: {error}")


def say_error(text: str, end: str = "\n") -> None:
    """Print by one write, so that the words of several ranks do not mix. Nobody need listen."""
    with suppress(OSError):
        sys.stderr.write(text + end)
        sys.stderr.flush()


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
