"""The buffers of messages between workers and servers: one memory for both where they are on one node.

If a worker and the servers of a shard are on one node they map the same two buffers: the worker writes its
gradients where the server reads them, and the server its parameters where the worker reads them. MPI then
carries empty messages, which say that a buffer is ready. Between nodes each side has buffers of its own, and
MPI carries their bytes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from pyrt.arrays import aligned
from pyrt.driver import sharing
from pyrt.errors import UserError
from pyrt.exchange import Bucket, ExchangeContext
from pyrt.exchange.server.message import HEADER_BYTES, Message, pinned_bytes
from pyrt.exchange.server.roles import Roles


class MessageMemory:
    """The buffers that this rank shares with others of its node; `messages` gives them, or new ones."""

    def __init__(self, setting: ExchangeContext, roles: Roles, ranges: Sequence[Bucket]) -> None:
        """Collective. Raises UserError, on all ranks, where one of them has no memory left."""
        self._driver, self._dtype = setting.driver, setting.parameters.dtype
        self._checks_shared = setting.job.survives
        self._nbytes = [HEADER_BYTES + (stop - start) * self._dtype.itemsize for start, stop in ranges]
        self._blocks: dict[tuple[int, int], np.ndarray] = {}
        rank, node = setting.job.rank, setting.node
        on_node = node.allgather(rank)
        shared = [
            shard
            for shard in range(len(ranges))
            if set(roles.chain(shard, setting.asynchrony.kept)) <= set(on_node)
        ]
        with ExitStack() as files:
            mine: dict[int, bytes] = {}
            with setting.job.agree():  # memory, or files, may end on one of them
                for shard in shared if not roles.is_server(rank) else ():
                    mine[shard] = self._create(rank, shard, files)
            told = dict(zip(on_node, node.allgather(mine), strict=True))
            is_one_machine = not roles.is_server(rank) or self._opens(told)
            if not all(node.allgather(is_one_machine)):
                self._blocks.clear()  # as in containers that have one host name, and processes apart

    def _create(self, worker: int, shard: int, files: ExitStack) -> bytes:
        """Make the buffers of this rank, a worker, for a shard; return what others need to open them."""
        nbytes = 2 * aligned(self._nbytes[shard])
        file = sharing.create(nbytes)
        files.callback(os.close, file.descriptor)
        os.ftruncate(file.descriptor, nbytes)
        self._map(worker, shard, file.descriptor, nbytes, is_own=True)
        return file.handle

    def _opens(self, told: Mapping[int, Mapping[int, bytes]]) -> bool:
        """Map the buffers of all workers of the node; return whether that was possible."""
        try:
            for worker, handles in told.items():
                for shard, handle in handles.items():
                    descriptor, nbytes = sharing.open_shared(handle)
                    try:
                        self._map(worker, shard, descriptor, nbytes, is_own=False)
                    finally:
                        os.close(descriptor)  # the mapping keeps the memory
        except (OSError, UserError):
            return False
        return True

    def _map(self, worker: int, shard: int, descriptor: int, nbytes: int, is_own: bool) -> None:
        block = np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
        self._driver.pin(block, is_own)
        self._blocks[worker, shard] = block

    def messages(self, worker: int, shard: int) -> tuple[Message, Message]:
        """Make the push of the worker with this rank to a shard, and the pull that answers it."""
        nbytes = self._nbytes[shard]
        block = self._blocks.get((worker, shard))
        if block is None:
            return self.own(shard), self.own(shard)
        starts = 0, len(block) // 2
        push, pull = (
            Message(block[start : start + nbytes], self._dtype, True, self._checks_shared) for start in starts
        )
        return push, pull

    def own(self, shard: int) -> Message:
        """Make a message of this rank alone."""
        return Message(pinned_bytes(self._driver, self._nbytes[shard]), self._dtype)
