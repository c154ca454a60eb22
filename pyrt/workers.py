"""Threads that work beside the one which queues the device's work.

NumPy's copies, draws and disk writes release the interpreter lock, so they do run beside that thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Generic, Protocol, TypeVar

Work = Callable[[], object]

T = TypeVar("T")


class Helper(Protocol):
    """Does one piece of work at a time: ``start`` it, then ``wait`` for it."""

    def start(self, work: Work) -> None:
        """Have this done; what was started before has been waited for."""

    def wait(self) -> None:
        """Come back when the work is done; raises what it raised."""

    def close(self) -> None:
        """Come back when nothing is being done any more."""


class Worker:
    """A helper that is a thread."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="helper", daemon=True)
        self._thread.start()

    def start(self, work: Work) -> None:
        self._work.put(work)

    def wait(self) -> None:
        error = self._ended.get()
        try:
            if error is not None:
                raise error
        finally:
            del error  # whose traceback has this frame: together they would outlive who catches it

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            ended = None
            try:
                work()
            except BaseException as error:
                ended = error
            del work  # it may have much memory, and the next may be long in coming
            self._ended.put(ended)
            del ended  # its traceback has what the work had


class Early(Generic[T]):
    """What a function gives; a thread calls it from now on."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._helper = Worker()
        self._helper.start(partial(self._call, function))

    def take(self) -> T:
        """Return the result; call it once. Raises what the function raised."""
        with closing(self._helper):
            self._helper.wait()
        return self._result

    def _call(self, function: Callable[[], T]) -> None:
        self._result = function()


class Deferred:
    """A helper that does its work where it is waited for: right where the device is this same CPU."""

    def __init__(self) -> None:
        self._work: Work | None = None

    def start(self, work: Work) -> None:
        self._work = work

    def wait(self) -> None:
        assert self._work is not None
        self._work()

    def close(self) -> None:
        pass
