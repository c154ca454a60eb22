"""Parameters that lie once for all ranks of a node: each rank adds its changes where they lie.

They lie in memory of the node's first rank: on its GPU, or in memory of the host that all of them map. Each
rank computes with a copy of its own, and keeps what it has pulled, to know what it has changed since.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import StreamHandle
from pyrt.exchange import ExchangeContext, QueueWork, UpdateCounts
from pyrt.exchange.parameter_moves import (
    OWN_COUNTS,
    SEEN,
    VEC4,
    DeviceMoves,
    HostMoves,
    Moves,
    NodeLock,
    Places,
    words_for,
)


class SharedParameters:
    """The memory, and what moves parameters on the compute stream."""

    def __init__(self, setting: ExchangeContext, then: QueueWork) -> None:
        """``then`` is queued each time that this rank's parameters have become others. Collective.

        Raises UserError, on all ranks, where the ranks do not reach each other's memory.
        """
        self._driver, self._job, self._then = setting.driver, setting.job, then
        self._stream = setting.streams.compute
        if setting.parameters.size % VEC4:
            raise ValueError(f"{setting.parameters.size} parameters: a layout pads them to whole vec4s")
        self._node = setting.node.Dup()
        self._is_first = self._node.rank == 0
        with self._job.agree():  # memory may end on one of them
            made = self._made(setting.parameters) if self._is_first else []
            exported = [array.export() for array in made]
            self._lock: NodeLock | None = None
            if setting.asynchrony.atomic and not self._driver.has_kernels and self._is_first:
                self._lock, handle = NodeLock.create()
                exported.append(handle)
            before = DeviceArray.empty(self._driver, setting.parameters.shape, setting.parameters.dtype)
            own = DeviceArray.from_host(self._driver, np.zeros(OWN_COUNTS, np.uint32))
        handles = self._node.bcast(exported)
        with self._job.agree():
            shared, words = made or self._imported(handles, setting.parameters)
            self.places = Places(shared, words, setting.parameters, before, own)
            self._moves: Moves = (
                DeviceMoves(self.places, setting.asynchrony.atomic)
                if self._driver.has_kernels
                else HostMoves(self.places, self._lock)
            )
        self._closed = False

    def _kinds(self, like: DeviceArray) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Return the shapes and dtypes of the shared arrays, the same on every rank."""
        return [(like.shape, like.dtype), ((words_for(self._driver, like.size),), np.dtype(np.uint32))]

    def _made(self, like: DeviceArray) -> list[DeviceArray]:
        made = [DeviceArray.exportable(self._driver, *kind) for kind in self._kinds(like)]
        made[1].set(np.zeros(made[1].shape, np.uint32))
        return made

    def _imported(self, handles: Sequence[bytes], like: DeviceArray) -> list[DeviceArray]:
        """Import the shared arrays, and open the lock behind them, if there is one."""
        kinds = self._kinds(like)
        if len(handles) > len(kinds):
            self._lock = NodeLock.opened(handles[-1])
        pairs = zip(handles, kinds, strict=False)
        return [DeviceArray.imported(self._driver, handle, *kind) for handle, kind in pairs]

    def push(self, stream: StreamHandle) -> None:
        """Queue: add this rank's changes to the shared parameters, and take what is there then."""
        self._moves.push(stream)
        self._then(stream)

    def begin(self) -> None:
        """Make the first rank's parameters those of all. Collective."""
        if self._is_first:
            self._moves.give(self._stream)
        self.meet()

    def meet(self) -> None:
        """Wait for all pushes of all ranks, and give all ranks what they have left. Collective."""
        self._driver.synchronize_stream(self._stream)
        self._job.wait_for_all()
        self._moves.pull(self._stream)
        self._then(self._stream)
        self._driver.synchronize_stream(self._stream)
        self.places.own.rows(SEEN, SEEN + 1).set(self.places.words.rows(0, 1).to_host())
        self._job.wait_for_all()  # before the next push

    def count(self) -> UpdateCounts:
        """Count the pushes of all ranks, and the mean of what the shared words have counted. Collective.

        To be called behind `meet`.
        """
        pushes, _, *stale = np.sum(self._job.comm.allgather(self.places.own.to_host()), axis=0, dtype=int)
        found = float(self.places.words.to_host().mean())
        self._job.wait_for_all()
        most = max(np.flatnonzero(stale), default=0)
        return UpdateCounts(int(pushes), found, [int(pushes) for pushes in stale[: most + 1]])

    def close(self) -> None:
        """Let go of the first rank's memory; there, once the others have. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._driver.synchronize_stream(self._stream)
        if self._lock is not None:
            self._lock.close()
        shared = [self.places.shared, self.places.words]
        if not self._is_first:
            for array in shared:
                self._driver.release_memory(array.pointer)
        if not self._job.leave(self._node):
            return  # the driver frees it when it closes
        if self._is_first:
            for array in shared:
                self._driver.free(array.pointer)
