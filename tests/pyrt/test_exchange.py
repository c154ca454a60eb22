"""Every exchange gives each rank the sum of all ranks' gradients and the update of NumPy, step after step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from mpi4py import MPI

from nn.launches import Kernels, Stretch
from pyrt import exchange
from pyrt.driver import Driver, StreamHandle
from pyrt.driver.cpu import CpuDriver
from pyrt.exchange import Bucket, QueueWork, Setting
from pyrt.exchange.device import verdict
from pyrt.exchange.peer import Peers
from pyrt.job import Job
from pyrt.kernels import KernelLibrary
from pyrt.memory import DeviceArray
from pyrt.phases import Phases
from pyrt.streams import Streams
from tests.pyrt.fakes import LateDriver

RATE = 0.5
STEPS = 3
EXCHANGES = [*exchange.CHOICES, "local"]
# The order in which a backward pass fills buckets is not that of memory. What lies between is padding.
BUCKETS = {
    "one bucket": [Bucket(0, 64)],
    "one element": [Bucket(5, 6)],
    "ragged": [Bucket(1100, 1101), Bucket(256, 1037), Bucket(7, 256), Bucket(0, 7)],
    "many": [Bucket(start, start + 13) for start in range(611, 0, -13)],
}
SIZE = 1200


class Rates:
    """The update p -= RATE g as a kernel, or where there are no kernels in NumPy."""

    def __init__(self, driver: Driver, parameters: DeviceArray, gradients: DeviceArray) -> None:
        self.driver, self.parameters, self.gradients = driver, parameters, gradients
        self.seen: list[tuple[int, int, np.ndarray]] = []
        """Buckets in the order of their updates, with the gradients that were applied (without kernels)."""
        self.steps = 0
        """That have ended."""

    def bind(self, *buckets: Bucket, ends_step: bool = False) -> QueueWork:
        calls = [self._bind(*bucket) for bucket in buckets]
        if ends_step:
            calls.append(lambda stream: queue(self.driver, stream, self._end))
        return lambda stream: [call(stream) for call in calls]

    def _end(self) -> None:
        self.steps += 1

    def bind_spread(self, peers: Peers) -> QueueWork:
        kernels = Kernels(KernelLibrary(self.driver), self.gradients.dtype)
        stretches = [Stretch(start, stop - start, 0) for start, stop in peers.buckets]
        arguments = (self.parameters, self.gradients, None, stretches, RATE, 0.0, 0.0)
        work = kernels.sum_update_spread(peers, *arguments)
        return lambda stream: (work(stream), self._end())

    def bind_spread_in_two(self, peers: Peers) -> tuple[QueueWork, QueueWork]:
        kernels = Kernels(KernelLibrary(self.driver), self.gradients.dtype)
        stretches = [Stretch(start, stop - start, 0) for start, stop in peers.buckets]
        arguments = (self.parameters, self.gradients, None, stretches, RATE, 0.0, 0.0)
        work = kernels.update_spread(peers, *arguments)
        return kernels.sum_shards(peers, self.gradients, stretches), lambda s: (work(s), self._end())

    def _bind(self, start: int, stop: int) -> QueueWork:
        if self.driver.has_kernels:
            kernels = Kernels(KernelLibrary(self.driver), self.gradients.dtype)
            stretch = Stretch(start, stop - start, 0)
            return kernels.sgd(self.parameters, self.gradients, None, [stretch], RATE, 0.0, 0.0)
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
    ) -> None:
        self.driver, self.buckets, self.dtype = driver, buckets, dtype
        self.streams = Streams(driver)
        self.gradients = DeviceArray.from_host(driver, np.full(SIZE, 1e6, dtype))
        self.parameters = DeviceArray.from_host(driver, first_parameters(dtype))
        self.update = Rates(driver, self.parameters, self.gradients)
        phases = Phases(time.perf_counter())
        phases.use_device(driver)
        self.exchange = exchange.create(
            name,
            Setting(
                driver, self.streams, job, node or job.node, phases, self.gradients, buckets, self.update
            ),
        )

    def step(self, gradients: np.ndarray) -> np.ndarray:
        """The parameters that work queued after one step on this rank's gradients sees."""
        compute = self.streams.compute
        for index, (start, stop) in enumerate(self.buckets):
            self.gradients.rows(start, stop).queue_upload(gradients[start:stop], compute)
            self.exchange.ready(index)
        self.exchange.finish()
        seen = np.empty(SIZE, self.dtype)
        self.parameters.queue_download(seen, compute)
        self.driver.synchronize_stream(compute)
        return seen


def first_parameters(dtype: np.dtype) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(SIZE).astype(dtype)


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
    inside = np.zeros(SIZE, bool)
    for start, stop in buckets:
        inside[start:stop] = True
    trainer, again = (Trainer(name, driver, job, buckets, dtype, node) for _ in range(2))
    expected = first_parameters(dtype).astype(np.float64)
    close = {"rtol": 0, "atol": 20 * job.size * STEPS * np.finfo(dtype).eps}

    for step in range(STEPS):
        gradients = made_gradients(step, job.size, dtype)
        total = gradients.astype(np.float64).sum(axis=0)
        expected[inside] -= RATE * total[inside]

        parameters = trainer.step(gradients[job.rank])
        np.testing.assert_allclose(parameters, expected, **close)
        if name not in ("peer", "hierarchical"):  # the others leave the sums where the gradients were
            np.testing.assert_allclose(trainer.gradients.to_host()[inside], total[inside], **close)

        if not driver.has_kernels:
            assert [(start, stop) for start, stop, _ in trainer.update.seen] == list(buckets)
            for start, stop, applied in trainer.update.seen:
                np.testing.assert_allclose(applied, total[start:stop], **close)
            trainer.update.seen.clear()

        assert trainer.update.steps == step + 1
        bits = parameters.tobytes()
        assert again.step(gradients[job.rank]).tobytes() == bits, "not the same bits twice"
        assert job.comm.bcast(bits) == bits, "not the same parameters on every rank"
    trainer.exchange.close()
    again.exchange.close()


@pytest.mark.parallel([1, 2, 3, 4])
def test_host_memory(job: Job) -> None:
    """On a device that does everything at once, and on one that does everything late."""
    for device, name, (case, buckets), dtype in itertools.product(
        (CpuDriver, LateDriver), exchange.CHOICES, BUCKETS.items(), ("float32", "float64")
    ):
        print(device.__name__, name, case, dtype)
        check(device(), job, name, buckets, np.dtype(dtype))


@pytest.mark.parallel([1, 2, 4])
def test_ranks_that_share_a_device(driver: Driver, job: Job) -> None:
    works = [name for name in exchange.CHOICES if name != "device" or not verdict(job, driver).refusal]
    for name, (case, buckets), dtype in itertools.product(works, BUCKETS.items(), ("float32", "float64")):
        print(name, case, dtype)
        check(driver, job, name, buckets, np.dtype(dtype))


class SlowComm:
    """Two ranks with the same gradients, one of them this process; sums arrive when ``arrives`` is set."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.posted: list[int] = []
        self.arrives = False

    def Iallreduce(self, mine: np.ndarray, summed: np.ndarray) -> SlowComm:
        self.posted.append(mine.size)
        np.multiply(mine, self.size, out=summed)
        return self

    def Test(self) -> bool:
        return self.arrives


def test_host_sums_and_updates_while_later_buckets_are_still_made(cpu: CpuDriver) -> None:
    comm = SlowComm()
    buckets = [Bucket(200, 300), Bucket(100, 200), Bucket(0, 100)]
    trainer = Trainer("host", cpu, Job(comm, comm, "no MPI", cores=1.0), buckets, np.dtype("f8"))
    trainer.exchange.ready(0)
    trainer.exchange.ready(1)
    assert len(comm.posted) == 2
    assert trainer.update.seen == []
    comm.arrives = True
    trainer.exchange.ready(2)
    assert [(start, stop) for start, stop, _ in trainer.update.seen] == buckets


def test_one_rank_needs_no_exchange(cpu: CpuDriver, job: Job) -> None:
    names = {Trainer(name, cpu, job, BUCKETS["ragged"], np.dtype("f4")).exchange.name for name in EXCHANGES}
    assert names == {"local"}
