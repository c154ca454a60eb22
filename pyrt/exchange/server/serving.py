"""A server: holds a shard of the parameters, applies the gradients that come, and answers with parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from mpi4py import MPI

from pyrt.exchange import Bucket, ExchangeContext
from pyrt.exchange.server.clocks import Clocks, Grants
from pyrt.exchange.server.leg import Leg, ServerCounts
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
    Message,
)
from pyrt.exchange.server.roles import Roles
from pyrt.job.signals import stop_was_asked

MOST_STALE: Final = 1000
"""Updates that are stale by this many versions and more are counted together."""


class Correspondent:
    """What a server has for one worker: a message that comes, and one that goes."""

    def __init__(self, setting: ExchangeContext, size: int, rank: int) -> None:
        driver, dtype = setting.driver, setting.parameters.dtype
        self.rank = rank
        self.push, self.pull = (Message(driver, size, dtype) for _ in range(2))
        self.downloaded = driver.create_event(timing=False)
        self.receiving = self.sending = MPI.REQUEST_NULL


class ServingExchange:
    """A worker is in turn awaited, owed parameters, and sent them. `serve` turns to each as it comes."""

    name = "server"
    on_device = False
    is_server = True

    def __init__(self, setting: ExchangeContext, roles: Roles, shards: Sequence[Bucket]) -> None:
        self._setting, self._driver, self._job = setting, setting.driver, setting.job
        self._compute = setting.streams.compute
        self._is_first = setting.job.rank == 0
        place = shards[setting.job.rank]
        self.updates: Sequence[Bucket] = parts_of(place, setting.buckets)
        self._gradients, self._parameters = (
            array.rows(*place) for array in (setting.gradients, setting.parameters)
        )
        self._update = setting.update.bind(*self.updates, ends_step=True)
        size = place.stop - place.start
        self._workers = [
            Correspondent(setting, size, roles.rank_of(worker)) for worker in range(roles.workers)
        ]
        self._sums = setting.asynchrony.staleness == 0
        self._clocks, self._grants = (
            Clocks(roles.workers, setting.asynchrony.staleness),
            Grants(roles.workers),
        )
        self._version = self._first_version = 0
        self._stale = np.zeros(MOST_STALE + 1, np.int64)
        self._owed: list[int] = []
        self._leaving: list[int] = []
        self._meeting = Meeting(setting, shards)
        self._comm = self._meeting.comm
        phase = setting.phases.phase
        self._waiting = phase("wait for workers")
        self._step = phase("step", self._compute)
        self._down = phase("parameters device -> host", self._compute)

    def ready(self, bucket: int) -> None:
        raise NotImplementedError("a server has no gradients of its own")

    def finish(self) -> None:
        raise NotImplementedError("a server has no gradients of its own")

    def start_at(self, version: int) -> None:
        """See `ServerSide.start_at`."""
        self._version = self._first_version = version

    def begin(self) -> None:
        """See `Asynchronous.begin`: all ranks have begun with the same."""

    def begin_step(self, samples: int, weight: int) -> None:
        raise NotImplementedError("a server makes no steps")

    def lead(self, leg: Leg, make_step: Callable[[], None]) -> None:
        raise NotImplementedError("a server makes no steps")

    def serve(self, leg: Leg) -> None:
        """See `ServerSide.serve`."""
        self._clocks.restart()
        self._grants.begin(leg.first, leg.stop)
        for worker in self._workers:
            self._await(worker)
        with self._waiting:
            while not self._is_over():
                if not self._turn(leg):
                    self._job.pause()

    def _await(self, worker: Correspondent) -> None:
        worker.receiving = self._comm.Irecv([worker.push.raw, MPI.BYTE], worker.rank)

    def _is_over(self) -> bool:
        """Return whether all workers make no more steps, and have what they were sent."""
        if self._owed or self._leaving or not self._clocks.have_all_met:
            return False
        return all(worker.sending.Test() for worker in self._workers)

    def _turn(self, leg: Leg) -> bool:
        """Take what has come, answer who may go on, send what is on the host; whether there was anything."""
        if self._is_first and leg.may_end_early and stop_was_asked():
            self._grants.end_early()
        arrived = [
            number
            for number, worker in enumerate(self._workers)
            if worker.receiving != MPI.REQUEST_NULL and worker.receiving.Test()
        ]
        for number in arrived:
            self._take(number, leg)
        answered = [number for number in self._owed if self._answers(number)]
        if answered:
            self._owed = [number for number in self._owed if number not in answered]
            self._leaving += answered
        sent = [number for number in self._leaving if self._sends(number)]
        if sent:
            self._leaving = [number for number in self._leaving if number not in sent]
        return bool(arrived or answered or sent)

    def _take(self, number: int, leg: Leg) -> None:
        """Take a worker's gradients, or that it makes no more steps."""
        worker, header = self._workers[number], self._workers[number].push.header
        if header[GRANT] == MEET:
            self._clocks.leave(number)
            return
        worker.push.require_whole(worker.rank)
        if header[WORKER] != number or header[STEP] != self._clocks.steps(number):
            raise RuntimeError(f"worker {number} pushes step {header[STEP]} of worker {header[WORKER]}")
        if self._is_first and leg.may_end_early and header[FLAGS] & ASKED:
            self._grants.end_early()
        self._clocks.advance(number)
        self._owed.append(number)
        if not self._sums:
            self._apply(worker.push, leg, [worker.push])
        elif len(self._owed) == len(self._workers):
            first, *others = [worker.push for worker in self._workers]
            for other in others:
                np.add(first.numbers, other.numbers, out=first.numbers)
            self._apply(first, leg, [first, *others])

    def _apply(self, gradients: Message, leg: Leg, pushes: Sequence[Message]) -> None:
        """Update the shard by gradients that are those, or the sum of those, of these pushes."""
        for push in pushes:
            self._stale[min(self._version - int(push.header[VERSION]), MOST_STALE)] += 1
        with self._step:
            self._gradients.queue_upload(gradients.numbers, self._compute)
            self._update(self._compute)
        self._version += 1
        if self._is_first:
            for push in pushes:
                header = push.header
                loss = float(push.loss[0]) * int(header[WEIGHT])
                leg.note(int(header[GRANT]), loss, int(header[FLAGS]) >> 1)

    def _answers(self, number: int) -> bool:
        """Begin the answer to a worker, if it may go on, or the leg is over; return whether."""
        clocks, worker = self._clocks, self._workers[number]
        if self._sums and not clocks.are_even():
            return False
        is_over = self._grants.are_over if self._is_first else clocks.is_one_meeting
        if not (is_over or clocks.may_go_on(number)):
            return False
        grant = self._grants.take() if self._is_first else 0
        worker.pull.header[GRANT] = MEET if grant is None else grant
        if not is_over:
            clocks.go_on(number)
        worker.pull.header[VERSION] = self._version
        with self._down:
            self._parameters.queue_download(worker.pull.numbers, self._compute)
        self._driver.record(worker.downloaded, self._compute)
        return True

    def _sends(self, number: int) -> bool:
        """Send the answer once it is on the host; return whether it is."""
        worker = self._workers[number]
        if not self._driver.is_done(worker.downloaded):
            return False
        worker.pull.seal()
        if worker.pull.header[GRANT] == MEET:
            self._clocks.leave(number)
        else:
            self._await(worker)  # before the answer: what comes then has a place
        worker.sending.Wait()  # it has: the worker has come back since
        worker.sending = self._comm.Isend([worker.pull.raw, MPI.BYTE], worker.rank)
        return True

    def meet(self) -> None:
        """See `Asynchronous.meet`."""
        self.meet_at()

    def meet_at(self) -> int:
        """See `ServerSide.meet_at`."""
        return self._meeting.hold(self._version, self._grants.stop)

    def count(self) -> tuple[int, float]:
        """See `Asynchronous.count`: no update is lost."""
        updates = self.counts().updates
        return updates, float(updates)

    def counts(self) -> ServerCounts:
        """See `ServerSide.counts`."""
        return self._meeting.counts(
            self._version - self._first_version, self._stale.tolist(), self._clocks.furthest
        )

    def close(self) -> None:
        self._meeting.close()


def parts_of(place: Bucket, buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return the parts of the buckets that lie in a place."""
    cut = (Bucket(max(start, place.start), min(stop, place.stop)) for start, stop in buckets)
    return [part for part in cut if part.start < part.stop]
