"""Signals of a job: what ends it at once, and what only asks it to stop.

SIGINT and SIGTERM end a rank with 130 or 143, even while it waits inside MPI (while MPI starts, the system
ends it). A program that can stop by itself calls ``defer_stops``: then these signals only ask it to stop
(``stop_was_asked``), as SIGUSR1 does from the start; a second SIGINT ends the rank at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pyrt.errors import UserError
from pyrt.job.ending import NAP, end_from_thread
from pyrt.job.launcher import launcher_rank

T = TypeVar("T")

ENDS = (signal.SIGINT, signal.SIGTERM)

_STOPS = (*ENDS, signal.SIGUSR1)

_NOTICED = 0.2
"""Seconds within which a signal that has come is known of: a thread takes it."""


class Stops:
    """What signals have asked for."""

    are_watched = False
    are_deferred = False
    was_asked = False
    was_interrupted = False


def defer_stops() -> None:
    """Let SIGTERM and a first SIGINT only ask the job to stop from here on; they end nothing."""
    Stops.are_deferred = True


def stop_was_asked() -> bool:
    """Return whether this rank got SIGUSR1, or a deferred signal."""
    return Stops.was_asked


def undisturbed(work: Callable[[], T]) -> T:
    """Do work that starts other programs; repeat it if it fails while this rank is asked to stop.

    The signal may have ended the program, too, as that of a terminal or of Slurm does. Whether this rank ends
    is for others to say.
    """
    was_asked = stop_was_asked()
    try:
        return work()
    except UserError:
        until = time.monotonic() + _NOTICED
        while not stop_was_asked() and time.monotonic() < until:
            time.sleep(NAP)
        if was_asked or not stop_was_asked():
            raise
        return work()


def watch_signals(program: str) -> None:
    """Do what signals ask for in a thread of its own; at first that is to note a SIGUSR1 alone.

    Python runs signal handlers in the main thread between bytecodes: never, while that thread waits
    inside MPI. But its C handler writes the signal's number to the wake-up pipe at once.

    While MPI starts no thread of Python's may run, and other ranks may wait for this one: mpirun ends them
    where the system ends a rank, but not always where that merely exits.
    """
    Stops.are_watched = True
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in ENDS:
        signal.signal(number, signal.SIG_DFL)
    watch(signal.SIGUSR1)
    signal.set_wakeup_fd(writer)
    threading.Thread(target=_end_on_signal, args=(reader, program), daemon=True).start()


def watch(*numbers: int) -> None:
    """Let the thread see these signals from here on."""
    for number in numbers:
        signal.signal(number, lambda *_: None)


def _end_on_signal(reader: int, program: str) -> None:
    number = os.read(reader, 1)[0]
    while not _ends(number):
        if number in _STOPS and Stops.are_deferred:
            again = "; once more: at once" if number == signal.SIGINT else ""
            _say(program, f"{signal.Signals(number).name}: stops as soon as all ranks can{again}")
        number = os.read(reader, 1)[0]
    _say(program, f"stopped by {signal.Signals(number).name}")
    end_from_thread(128 + number)


def _ends(number: int) -> bool:
    """Note a signal; return whether it ends this rank."""
    again = number == signal.SIGINT and Stops.was_interrupted
    ends = number in ENDS and (again or not Stops.are_deferred)
    Stops.was_interrupted |= number == signal.SIGINT
    Stops.was_asked |= number in _STOPS
    return ends


def _say(program: str, text: str) -> None:
    """Print on the first rank alone, by a system call: another thread may be within a print."""
    if launcher_rank() == 0:
        with suppress(OSError):  # nobody need listen
            os.write(2, f"\n{program}: {text}\n".encode())
