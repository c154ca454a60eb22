"""The threads behind the streams of the emulated device, each of which works through a queue.

Work is done when its turn comes and not before, so that a missing synchronisation shows as wrong data.
Copies and kernels run outside the interpreter lock, beside the host and each other.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from random import Random

from pyrt.driver.emulated.handles import Stream, Work, WorkQueue, mark


class Workers:
    """The threads behind the streams of a device. What work raises goes to ``report``.

    With ``dice`` each stream falls behind the others now and then, by up to ``PAUSE`` seconds.
    """

    PAUSE = 1e-3

    def __init__(self, report: Callable[[Exception], None], dice: Random | None) -> None:
        self._report = report
        self._dice = dice
        self._busy: set[WorkQueue] = set()
        self._lock = threading.Lock()

    def create_stream(self) -> Stream:
        work: WorkQueue = queue.SimpleQueue()
        with self._lock:
            self._busy.add(work)
        dice = Random(self._dice.random()) if self._dice is not None else None
        threading.Thread(target=self._run, args=(work, dice), daemon=True).start()
        return Stream(work)

    def wait(self) -> None:
        """Wait until all that is queued now is done, on streams out of use too."""
        with self._lock:
            marks = [mark(work) for work in self._busy]
        for place in marks:
            place.wait()

    def _run(self, work: WorkQueue, dice: Random | None) -> None:
        while (item := work.get()) is not None:
            if dice is not None and dice.random() < 0.5:
                time.sleep(dice.random() * self.PAUSE)
            self._do(item)
        with self._lock:
            self._busy.remove(work)
        while not work.empty():  # the last marks of wait()
            self._do(work.get())

    def _do(self, item: Work | None) -> None:
        try:
            if item is not None:
                item()
        except Exception as error:
            self._report(error)


class Uses:
    """Which memory the work that is queued and not yet done uses."""

    def __init__(self) -> None:
        self._uses: dict[object, tuple[str, tuple[int, ...]]] = {}

    def noting(self, what: str, addresses: Iterable[int], work: Work) -> Work:
        """Return the work, noted as using these addresses from now until it is done."""
        token = object()
        self._uses[token] = what, tuple(addresses)

        def noted() -> None:
            try:
                work()
            finally:
                del self._uses[token]

        return noted

    def of(self, pointer: int, nbytes: int) -> list[str]:
        """List the queued work that uses any of these bytes."""
        uses = list(self._uses.values())
        return [what for what, used in uses if any(pointer <= address < pointer + nbytes for address in used)]
