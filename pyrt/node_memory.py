"""Memory that all ranks of a node reach, and the watchdog without which none may wait in a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from pyrt.arrays import DeviceArray, mapped
from pyrt.driver import Driver, StreamHandle
from pyrt.job import Job
from pyrt.job.watchdog import Watchdog

if TYPE_CHECKING:
    from mpi4py import MPI


class NodeMemory:
    """Arrays of each rank of a node."""

    arrays: list[list[DeviceArray]]
    """Of each kind, that of each rank, in this process."""
    given_up: int
    """Pointer to an int32 in the host's memory: not 0 when a rank is gone."""

    def __init__(
        self,
        driver: Driver,
        job: Job,
        node: MPI.Comm,
        stream: StreamHandle,
        make: Callable[[], Sequence[DeviceArray]],
        lent: Sequence[DeviceArray] = (),
    ) -> None:
        """Collective on all ranks of the job, of which those of ``node`` reach each other's memory.

        What they reach: arrays that are ``lent``, not to be freed before `close`, and behind them those that
        ``make`` returns. The kernels that use them run on ``stream``. Raises UserError, on all ranks, where
        the ranks do not reach each other's memory or one of them has none left.
        """
        self._driver, self._job, self._node, self._stream = driver, job, node, stream
        with job.agree():  # memory may end on one of them
            self._made = make()
            self._given_up, on_device = mapped(driver, (1,), np.int32)
        self.given_up = on_device.pointer
        self.arrays = self._exchange_handles([*lent, *self._made])
        with ExitStack() as opened:
            with job.agree():  # another node's ranks may not reach each other
                self._watchdog = opened.enter_context(closing(Watchdog(node, self.give_up)))
            opened.pop_all()
        self._closed = False

    def _exchange_handles(self, mine: Sequence[DeviceArray]) -> list[list[DeviceArray]]:
        with self._job.agree():  # it may take memory
            exported = [array.export() for array in mine]
        handles = self._node.allgather(exported)
        with self._job.agree():
            return [
                [
                    array
                    if rank == self._node.rank
                    else DeviceArray.imported(self._driver, of_rank[kind], array.shape, array.dtype)
                    for rank, of_rank in enumerate(handles)
                ]
                for kind, array in enumerate(mine)
            ]

    def give_up(self) -> None:
        """Let kernels that wait for another rank return."""
        self._given_up[0] = 1

    def close(self) -> None:
        """Let go of the others' memory; of this rank's, once they have. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._driver.synchronize_stream(self._stream)
        for arrays in self.arrays:
            for rank, array in enumerate(arrays):
                if rank != self._node.rank:
                    self._driver.release_memory(array.pointer)
        if self._watchdog.close():
            for array in self._made:
                self._driver.free(array.pointer)  # else the driver does so when it closes


def mailbox(driver: Driver, stream: StreamHandle, numbers: int, dtype: DTypeLike) -> DeviceArray:
    """Room for so many numbers, all of whose bits are ones: nothing is there."""
    array = DeviceArray.empty(driver, (numbers,), dtype)
    driver.fill(array.pointer, 0xFF, array.nbytes, stream)
    driver.synchronize_stream(stream)
    return array
