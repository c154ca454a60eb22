"""Work of the host that must not hold up the thread which queues the device's: done ahead, in other threads.

The drawing of an epoch's order and the gathering of a batch's rows are NumPy calls that release the
interpreter lock, so they do run beside that thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Generic, Protocol, TypeVar

import numpy as np

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
        """To be called once; raises what the function raised."""
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


class Orders:
    """The rows of one epoch after the other, drawn while those of epochs before are used.

    Each helper draws an epoch: to draw one can take longer than a fast GPU needs for it.
    """

    def __init__(self, draw: Callable[[int], np.ndarray], epochs: int, helpers: Sequence[Helper]) -> None:
        """``draw`` gives the order of an epoch; it is called once for each, by one of the helpers."""
        self._draw, self._epochs, self._helpers = draw, epochs, helpers
        self._drawn = [np.empty(0, int) for _ in helpers]
        self._taken = 0

    def start(self, epoch: int) -> None:
        """Have orders drawn, of this epoch first; called once, before the first ``take``."""
        self._taken = epoch
        for ahead in range(len(self._helpers)):
            self._start(epoch + ahead)

    def take(self) -> np.ndarray:
        """The order of the next epoch, that of ``start`` at first."""
        epoch, ahead = self._taken, len(self._helpers)
        self._helpers[epoch % ahead].wait()
        order = self._drawn[epoch % ahead]
        self._taken += 1
        self._start(epoch + ahead)
        return order

    def close(self) -> None:
        """No more is drawn."""
        for helper in self._helpers:
            helper.close()

    def _start(self, epoch: int) -> None:
        if epoch < self._epochs:
            self._helpers[epoch % len(self._helpers)].start(partial(self._next, epoch))

    def _next(self, epoch: int) -> None:
        self._drawn[epoch % len(self._helpers)] = self._draw(epoch)
