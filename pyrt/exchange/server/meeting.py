"""Where all ranks meet: servers give their shards to all, and tell what they have counted."""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI

from pyrt.exchange import Bucket, ExchangeContext
from pyrt.exchange.server.leg import ServerCounts
from pyrt.exchange.server.message import VERSION, Message


class Meeting:
    """The shards of all servers, as one rank has them. Every call is collective."""

    def __init__(self, setting: ExchangeContext, shards: Sequence[Bucket]) -> None:
        self._driver, self._job, self._stream = setting.driver, setting.job, setting.streams.compute
        self._places = [setting.parameters.rows(*place) for place in shards]
        largest = max(place.size for place in self._places)
        self._message = Message(setting.driver, largest, setting.parameters.dtype)
        self._refresh = setting.update.refresh()
        self._phase = setting.phases.phase("meet")
        self.comm = setting.job.comm.Dup()
        """For all messages of the exchange."""
        self.versions = [0] * len(shards)
        self._is_closed = False

    def hold(self, version: int, step: int) -> int:
        """Give all ranks all shards. Return the ``step`` of the first server.

        Of a server the ``version`` is that of its shard.
        """
        with self._phase:
            self._driver.synchronize_stream(self._stream)
            self._job.wait_for_all()
            for server in range(len(self._places)):
                self._spread(server, version)
                if server == 0:
                    step = self._agreed(step)
            self._refresh(self._stream)
            self._driver.synchronize_stream(self._stream)
        return step

    def _agreed(self, step: int) -> int:
        found: int = self.comm.bcast(step)
        return found

    def _spread(self, server: int, version: int) -> None:
        """Give a server's shard to all others."""
        place, message, is_mine = self._places[server], self._message, server == self._job.rank
        numbers = message.numbers[: place.size]
        if is_mine:
            message.header[VERSION] = version
            place.queue_download(numbers, self._stream)
            self._driver.synchronize_stream(self._stream)
        self.comm.Bcast([message.head, MPI.BYTE], server)
        self.comm.Bcast([numbers.view("u1"), MPI.BYTE], server)
        self.versions[server] = int(message.header[VERSION])
        if not is_mine:
            place.queue_upload(numbers, self._stream)
            self._driver.synchronize_stream(self._stream)

    def counts(self, updates: int, stale: list[int], furthest: int) -> ServerCounts:
        """Put together what all servers have counted."""
        told = self.comm.allgather((updates, stale, furthest))[: len(self._places)]
        most = max((number for _, one, _ in told for number, count in enumerate(one) if count), default=0)
        return ServerCounts(told[0][0], [one[: most + 1] for _, one, _ in told], max(one for *_, one in told))

    def close(self) -> None:
        """Free the communicator, where all ranks come to their end. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._job.leave(self.comm)
