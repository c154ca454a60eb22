"""One rank whose gradients an exchange sums, with an update of its own, for the tests of this folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from nn.launch.kernels import Kernels
from nn.launch.update import Segment, UpdateArrays
from nn.launch.update import Update as UpdateWork
from nn.optimisers import Sgd
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver, StreamHandle
from pyrt.exchange import Asynchrony, Bucket, ExchangeContext, PackedUpdate, QueueWork, Update, host
from pyrt.exchange.hogwild import HogwildExchange
from pyrt.exchange.peer_flags import PeerFlagsExchange
from pyrt.exchange.registry import choices, create_exchange
from pyrt.job import Job
from pyrt.kernels import KernelLibrary
from pyrt.phases import Phases
from pyrt.streams import Streams
from tests.pyrt.fakes import LateDriver

RATE = 0.5
STEPS = 3
EXCHANGES = [*choices(), "local"]
SIZE = 1200
PARAMETERS = 1136
"""Gradients behind these are of no parameter, as the loss of a step."""
# The order in which a backward pass fills buckets is not that of memory. What lies between is padding.
BUCKETS = {
    "one bucket": [Bucket(0, 64)],
    "one element": [Bucket(5, 6)],
    "ragged": [Bucket(1100, 1101), Bucket(256, 1037), Bucket(7, 256), Bucket(0, 7)],
    "many": [Bucket(start, start + 13) for start in range(611, 0, -13)],
    "with a loss": [Bucket(600, 1137), Bucket(0, 600)],
    "with more than a piece behind": [Bucket(0, 1200)],
}
PEERS = ("peer", "hierarchical", "peer flags")
"""They need kernels, and leave no sums of gradients."""
ON_HOST = [name for name in choices() if name not in PEERS]
NO_CHOICES = {made.name: made for made in (PeerFlagsExchange, HogwildExchange)}
"""Made whatever the number of ranks."""
PIECES = (host.PIECE_BYTES, 256)


class Rates:
    """The update p -= RATE g as a kernel, or where there are no kernels in NumPy."""

    def __init__(self, driver: Driver, parameters: DeviceArray, gradients: DeviceArray) -> None:
        self.driver, self.parameters, self.gradients = driver, parameters, gradients
        self.seen: list[tuple[int, int, np.ndarray]] = []
        """Buckets in the order of their updates, with the gradients that were applied (without kernels)."""
        self.steps = 0
        """That have ended."""
        self.refreshed: list[np.ndarray] = []
        """Parameters that others have written, as they were then."""

    def bind(self, *buckets: Bucket, ends_step: bool = False) -> QueueWork:
        calls = [self._bind(start, min(stop, PARAMETERS)) for start, stop in buckets if start < PARAMETERS]
        if ends_step:
            calls.append(lambda stream: queue(self.driver, stream, self._end))
        return lambda stream: [call(stream) for call in calls]

    def refresh(self) -> QueueWork:
        seen = np.empty(PARAMETERS, self.parameters.dtype)

        def queue_refresh(stream: StreamHandle) -> None:
            self.parameters.queue_download(seen, stream)
            if self.driver.has_kernels:  # which notes nothing in the order of a stream
                self.driver.synchronize_stream(stream)
            queue(self.driver, stream, lambda: self.refreshed.append(seen.copy()))

        return queue_refresh

    def for_peers(self, driver: Driver, buckets: Sequence[Bucket]) -> PackedUpdate:
        segments = [self._segment(*bucket) for bucket in buckets]
        return self._arrays.for_peers(self._kernels, segments, None)

    def bind_end(self) -> QueueWork:
        return lambda stream: self._end()

    @property
    def _kernels(self) -> Kernels:
        return Kernels(KernelLibrary(self.driver), self.gradients.dtype)

    @property
    def _arrays(self) -> UpdateArrays:
        return UpdateArrays(Sgd(RATE, 0.0, 0.0), self.parameters, self.gradients, {}, None)

    def _segment(self, start: int, stop: int) -> Segment:
        return Segment(start, max(0, min(stop, PARAMETERS) - start), 0)

    def _end(self) -> None:
        self.steps += 1

    def _bind(self, start: int, stop: int) -> QueueWork:
        if self.driver.has_kernels:
            return UpdateWork(self._arrays, [self._segment(start, stop)]).on_device(self._kernels)
        parameters, gradients = self.parameters.rows(start, stop), self.gradients.rows(start, stop)

        def update() -> None:
            self.seen.append((start, stop, gradients.host_view().copy()))
            parameters.host_view()[:] -= gradients.dtype.type(RATE) * gradients.host_view()

        return lambda stream: queue(self.driver, stream, update)


def queue(driver: Driver, stream: StreamHandle, work: Callable[[], None]) -> None:
    if isinstance(driver, LateDriver):
        driver.queue(stream, work)
    else:
        work()


class Trainer:
    """One rank's flat buffers, and what one exchange makes of them."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        job: Job,
        buckets: Sequence[Bucket],
        dtype: np.dtype,
        node: MPI.Comm | None = None,
        update: Update | None = None,
        atomic: bool = False,
    ) -> None:
        self.driver, self.buckets, self.dtype = driver, buckets, dtype
        self.streams = Streams(driver)
        self.gradients = DeviceArray.from_host(driver, np.full(SIZE, 1e6, dtype))
        self.parameters = DeviceArray.from_host(driver, first_parameters(dtype))
        self.update = Rates(driver, self.parameters, self.gradients)
        phases = Phases(time.perf_counter())
        phases.use_device(driver)
        setting = ExchangeContext(
            driver,
            self.streams,
            job,
            node or job.node,
            phases,
            self.parameters,
            self.gradients,
            buckets,
            update or self.update,
            Asynchrony(atomic),
        )
        make = NO_CHOICES.get(name)
        self.exchange: Any = make(setting) if make is not None else create_exchange(name, setting)

    def step(self, gradients: np.ndarray) -> np.ndarray:
        """The parameters that work queued after one step on this rank's gradients sees."""
        compute = self.streams.compute
        for index, (start, stop) in enumerate(self.buckets):
            self.gradients.rows(start, stop).queue_upload(gradients[start:stop], compute)
            self.exchange.ready(index)
        self.exchange.finish()
        seen = np.empty(PARAMETERS, self.dtype)
        self.parameters.queue_download(seen, compute)
        self.driver.synchronize_stream(compute)
        return seen


def first_parameters(dtype: np.dtype) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(PARAMETERS).astype(dtype)


def made_gradients(step: int, ranks: int, dtype: np.dtype) -> np.ndarray:
    """Gradients (ranks, SIZE) of a step."""
    return np.random.default_rng([step, ranks]).standard_normal((ranks, SIZE)).astype(dtype)


def check(
    driver: Driver,
    job: Job,
    name: str,
    buckets: Sequence[Bucket],
    dtype: np.dtype,
    node: MPI.Comm | None = None,
) -> None:
    """Some steps of two exchanges of that name agree with NumPy, with each other, and on all ranks."""
    covered = np.concatenate([np.arange(*bucket) for bucket in buckets])
    inside = covered[covered < PARAMETERS]
    takes_over = name == "root" and job.rank > 0
    keeps_sums = not takes_over and (job.size == 1 or name not in PEERS)
    summed = covered if keeps_sums else covered[covered >= PARAMETERS]
    trainer, again = (Trainer(name, driver, job, buckets, dtype, node) for _ in range(2))
    expected = first_parameters(dtype).astype(np.float64)
    close = {"rtol": 0, "atol": 20 * job.size * STEPS * np.finfo(dtype).eps}

    check_what_it_updates(trainer, job, covered)
    for step in range(STEPS):
        gradients = made_gradients(step, job.size, dtype)
        total = gradients.astype(np.float64).sum(axis=0)
        expected[inside] -= RATE * total[inside]

        parameters = trainer.step(gradients[job.rank])
        np.testing.assert_allclose(parameters, expected, **close)
        np.testing.assert_allclose(trainer.gradients.to_host()[summed], total[summed], **close)

        if not driver.has_kernels:
            own = [place for bucket in trainer.exchange.updates for place in range(*bucket)]
            assert [place for place in own if place < PARAMETERS] == list([] if takes_over else inside)
            check_what_was_applied(trainer.update, total, [] if takes_over else inside, close)

        assert trainer.update.steps == step + 1
        bits = parameters.tobytes()
        assert again.step(gradients[job.rank]).tobytes() == bits, "not the same bits twice"
        assert job.comm.bcast(bits) == bits, "not the same parameters on every rank"
        assert [seen.tobytes() for seen in trainer.update.refreshed] == [bits] * takes_over
        trainer.update.refreshed.clear()

    for each in (trainer, again, trainer):
        each.exchange.close()


def check_what_it_updates(trainer: Trainer, job: Job, covered: np.ndarray) -> None:
    """Each rank all that is in a bucket, or a part of it: each place is of as many ranks, of one at least."""
    mine = np.zeros(SIZE, int)
    for start, stop in trainer.exchange.updates:
        mine[start:stop] += 1
    everywhere = np.zeros(SIZE, int)
    everywhere[covered] = 1
    ranks = job.comm.allreduce(mine)
    assert np.array_equal(ranks, max(1, ranks.max()) * everywhere)
    assert mine.max() <= 1


def check_what_was_applied(
    update: Rates, total: np.ndarray, inside: Sequence[int] | np.ndarray, close: dict[str, float]
) -> None:
    """To each parameter ``inside`` its gradient of ``total``, once, in this order."""
    for start, stop, applied in update.seen:
        np.testing.assert_allclose(applied, total[start:stop], **close)
    places = [place for start, stop, _ in update.seen for place in range(start, stop)]
    assert places == list(inside)
    update.seen.clear()
