"""A worker: pushes the gradients of its steps to the servers, shard by shard, and pulls parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from pyrt.arrays import DeviceArray
from pyrt.exchange import Bucket, ExchangeContext, UpdateCounts
from pyrt.exchange.server.leg import Leg, ServerCounts
from pyrt.exchange.server.lost_ranks import LostRanks
from pyrt.exchange.server.meeting import Meeting
from pyrt.exchange.server.message import (
    ASKED,
    FLAGS,
    GRANT,
    MEET,
    STEP,
    VERSION,
    WEIGHT,
    WORKER,
    Tags,
)
from pyrt.exchange.server.message_memory import MessageMemory
from pyrt.exchange.server.requests import Requests
from pyrt.exchange.server.roles import Roles
from pyrt.exchange.server.shard_state import parts_of
from pyrt.job.signals import stop_was_asked

_WORD = np.zeros(1, np.int64)
"""The message of a worker that makes no more steps; servers do not read it."""


class Link:
    """The messages between a worker and the server of one shard: its push, and the pull that answers it."""

    def __init__(self, setting: ExchangeContext, memory: MessageMemory, shard: int, place: Bucket) -> None:
        self.shard = self.server = shard
        """The rank of the server is at first that of the shard."""
        self.parameters = setting.parameters.rows(*place)
        self.push, self.pull = memory.messages(setting.job.rank, shard)
        self.downloaded = setting.driver.create_event(timing=False)
        self.parts = sum(len(parts_of(place, [bucket])) for bucket in setting.buckets)
        """The number of parts of buckets that make up the shard."""
        self.left = self.parts
        """The number of these parts that are not yet on their way to the host."""
        self.is_sent = self.is_answered = False
        self.sending = self.receiving = MPI.REQUEST_NULL


Download = tuple[Link | None, DeviceArray, np.ndarray]
"""The link whose push it is a part of, None for the loss; the source; the target."""


def _downloads(
    setting: ExchangeContext, bucket: Bucket, links: Sequence[Link], shards: Sequence[Bucket]
) -> list[Download]:
    """List the downloads of a bucket: its loss first, if it has it, for the push to the first server."""
    gradients, first = setting.gradients, setting.parameters.size
    found: list[Download] = []
    if bucket.start <= first < bucket.stop:
        found.append((None, gradients.rows(first, first + 1), links[0].push.loss))
    for link, place in zip(links, shards, strict=True):
        for start, stop in parts_of(place, [bucket]):
            host = link.push.numbers[start - place.start : stop - place.start]
            found.append((link, gradients.rows(start, stop), host))
    return found


class WorkingExchange:
    """`ready` sends buckets to the host; each shard leaves when all of it is there; `finish` pulls."""

    name = "server"
    on_device = False
    is_server = False

    def __init__(
        self, setting: ExchangeContext, memory: MessageMemory, roles: Roles, shards: Sequence[Bucket]
    ) -> None:
        self.updates: Sequence[Bucket] = ()
        self._driver, self._streams, self._job = setting.driver, setting.streams, setting.job
        self._workers, self._number = roles.workers, roles.worker(setting.job.rank)
        self._links = [Link(setting, memory, shard, place) for shard, place in enumerate(shards)]
        self._downloads = [
            (setting.driver.create_event(timing=False), _downloads(setting, bucket, self._links, shards))
            for bucket in setting.buckets
        ]
        self._end_step = setting.update.bind(ends_step=True)
        self._refresh = setting.update.refresh()
        self._meeting = Meeting(setting, roles, shards)
        self._requests = Requests(setting.job, self._meeting.comm)
        self._lost_ranks = LostRanks(setting.job, self._meeting.comm, roles, setting.asynchrony.kept)
        self._tags, self._servers = Tags(roles.servers, roles.workers), range(roles.servers)
        self._grant = self._step = self._samples = self._weight = 0
        phase = setting.phases.phase
        self._down = phase("gradients device -> host", setting.streams.download)
        self._push = phase("push and pull")
        self._up = phase("parameters host -> device", setting.streams.compute)

    def start_at(self, version: int) -> None:
        """See `ServerSide.start_at`."""
        for link in self._links:
            link.pull.header[VERSION] = version

    def begin(self) -> None:
        """See `Asynchronous.begin`: all ranks have begun with the same parameters."""

    def lead(self, leg: Leg, make_step: Callable[[], None]) -> None:
        """See `Worker.lead`."""
        self._grant, self._step = leg.first * self._workers + self._number, 0
        self._look_for_lost_ranks()
        while self._grant != MEET:
            make_step()
        told = [self._requests.send(_WORD, server, self._tags.meet) for server in self._servers]
        while not all(map(self._requests.has_gone, told)):
            self._job.pause()

    def begin_step(self, samples: int, weight: int) -> None:
        """See `Worker.begin_step`."""
        self._samples, self._weight = samples, weight
        for link in self._links:
            link.left, link.is_sent, link.is_answered = link.parts, False, False

    def ready(self, bucket: int) -> None:
        computed, downloads = self._downloads[bucket]
        driver, download = self._driver, self._streams.download
        driver.record(computed, self._streams.compute)
        driver.wait(download, computed)
        with self._down:
            for link, part, host in downloads:
                part.queue_download(host, download)
                if link is not None:
                    link.left -= 1
                    driver.record(link.downloaded, download)
        self._send()

    def finish(self) -> None:
        self._end_step(self._streams.compute)
        with self._push:
            while not self._has_all():
                self._job.pause()
        for link in self._links:
            link.pull.require_whole(link.server)
        with self._up:
            for link in self._links:
                link.parameters.queue_upload(link.pull.numbers, self._streams.compute)
            self._refresh(self._streams.compute)
        self._step += 1
        self._grant = int(self._links[0].pull.header[GRANT])

    def _has_all(self) -> bool:
        """Send what can be sent; return whether all that was asked for has come."""
        self._send()
        self._look_for_lost_ranks()
        for link in self._links:
            if not link.is_answered:
                link.is_answered = self._requests.has_come(link.receiving)
        return all(link.is_answered and self._requests.has_gone(link.sending) for link in self._links)

    def _send(self) -> None:
        """Push the shards whose gradients are all on the host."""
        for link in self._links:
            if link.left or link.is_sent or not self._driver.is_done(link.downloaded):
                continue
            header = link.push.header
            header[VERSION], header[WORKER] = link.pull.header[VERSION], self._number
            header[STEP], header[GRANT], header[WEIGHT] = self._step, self._grant, self._weight
            header[FLAGS] = self._samples << 1 | (ASKED if stop_was_asked() else 0)
            link.push.seal()
            self._push_to_server(link)

    def _push_to_server(self, link: Link) -> None:
        pull, push = self._tags.pull(link.shard), self._tags.push(link.shard)
        link.is_sent = True
        link.receiving = self._requests.receive(link.pull.sent, link.server, pull)
        link.sending = self._requests.send(link.push.sent, link.server, push)

    def _look_for_lost_ranks(self) -> None:
        """Turn to other servers where some have died: push again what these have not answered."""
        lost = self._lost_ranks.newly_lost()
        for link in self._links if lost else ():
            (server, *_) = self._lost_ranks.holders(link.shard)
            if server != link.server:
                link.server = server
                if link.is_sent and not link.is_answered:
                    self._push_to_server(link)

    def meet(self) -> None:
        """See `Asynchronous.meet`."""
        self.meet_at()

    def meet_at(self) -> int:
        """See `ServerSide.meet_at`."""
        step = self._meeting.hold({}, 0)
        for link, version in zip(self._links, self._meeting.versions, strict=True):
            link.pull.header[VERSION] = version
        return step

    def count(self) -> UpdateCounts:
        """See `Asynchronous.count`: no update is lost; those of the first shard."""
        counts = self.counts()
        return UpdateCounts(counts.updates, float(counts.updates), counts.staleness[0])

    def counts(self) -> ServerCounts:
        """See `ServerSide.counts`."""
        return self._meeting.counts([])

    def close(self) -> None:
        self._meeting.close()
