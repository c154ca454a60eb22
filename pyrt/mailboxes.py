"""Memory of each rank of a node that the others write, and the watchdog without which nobody may wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from pyrt.driver import Driver, StreamHandle
from pyrt.job import Job
from pyrt.memory import DeviceArray
from pyrt.watchdog import Watchdog

if TYPE_CHECKING:
    from mpi4py import MPI


class Mailboxes:
    """A mailbox of so many numbers for each rank of a node, at first all ones: nothing is there."""

    arrays: list[DeviceArray]
    """The mailbox of each rank, in this process."""
    given_up: int
    """Pointer to an int32 in the host's memory: not 0 when a rank is gone."""

    def __init__(
        self, driver: Driver, job: Job, node: MPI.Comm, stream: StreamHandle, numbers: int, dtype: DTypeLike
    ) -> None:
        """Collective on all ranks of the job, of which those of ``node`` reach each other's memory.

        The kernels that use the mailboxes run on ``stream``. Raises UserError, on all ranks, where the ranks
        do not reach each other's memory or one of them has none left.
        """
        self._driver, self._job, self._node, self._stream = driver, job, node, stream
        with job.together():  # memory may end on one of them
            self._mine = DeviceArray.empty(driver, (numbers,), dtype)
            mapped, self.given_up = driver.allocate_mapped(4)
        self._given_up = mapped.view(np.int32)
        driver.fill(self._mine.pointer, 0xFF, self._mine.nbytes, stream)
        driver.synchronize_stream(stream)
        self.arrays = self._exchange_handles()
        self._watchdog = Watchdog(node, self.give_up)
        self._closed = False

    def _exchange_handles(self) -> list[DeviceArray]:
        handles = self._node.allgather(self._mine.export())
        with self._job.together():
            return [
                self._mine
                if rank == self._node.rank
                else DeviceArray.imported(self._driver, handle, self._mine.shape, self._mine.dtype)
                for rank, handle in enumerate(handles)
            ]

    def give_up(self) -> None:
        """Let kernels that wait for another rank return."""
        self._given_up[0] = 1

    def close(self) -> None:
        """Let go of the others' mailboxes; of this rank's, once they have. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._driver.synchronize_stream(self._stream)
        for rank, mailbox in enumerate(self.arrays):
            if rank != self._node.rank:
                self._driver.release_memory(mailbox.pointer)
        if self._watchdog.close():
            self._driver.free(self._mine.pointer)  # else the driver does so when it closes
