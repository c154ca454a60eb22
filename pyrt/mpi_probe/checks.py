"""What the probe tries: the calls of the exchange `device`, each under a watch, their answers kept.

Some MPIs hang on device buffers, others crash. So before a call rank 0 writes down the answer that holds if
the call does not return, and replaces it when it does; a watch (pyrt/job/stall.py) writes down that it hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.exchange import Bucket, ExchangeContext, NoUpdate
from pyrt.exchange.device import DeviceExchange, for_mpi, kernel_file
from pyrt.job import Job
from pyrt.job.stall import StallWatch
from pyrt.kernels import KernelLibrary
from pyrt.mpi_probe import probe_cache
from pyrt.mpi_probe.libraries import (
    CRASHES,
    HANGS,
    IALLREDUCE,
    SENDRECV,
    SHARDS,
    WORKS,
    WRONG,
    has_cuda_support,
    identify,
)
from pyrt.phases import Phases
from pyrt.streams import Streams

LIMIT = 15.0
"""Seconds in which calls return, or hang: less than the exchange's limit, which ends the job."""

SIZES = (7, 1_000_003)
"""Elements of a message, or of a bucket: a few, and 4 MB, which MPIs send in another way."""

DTYPE = np.dtype(np.float32)


class Tries:
    """One run of the probe."""

    def __init__(self, job: Job, driver: Driver) -> None:
        self._job, self._driver = job, driver
        self._key = probe_cache.key(job, driver)
        self._library = identify(MPI.Get_library_version())
        self._results: dict[str, str] = {}
        self._trying: str | None = None

    def run(self) -> bool:
        """Try all that may be tried; whether the exchange works. Collective."""
        if self._driver.has_kernels:
            with self._job.agree():
                if self._job.node.rank == 0:
                    KernelLibrary(self._driver).compile([kernel_file(DTYPE)])
        self._say_where()
        watch = StallWatch(lambda: self._trying, LIMIT, self._give_up) if self._job.rank == 0 else None
        try:
            self._try(SENDRECV, sendrecv)
            self._try(SHARDS, lambda job, driver: exchange(job, driver, iallreduce=False))
            if self._driver.name == "cuda" and self._library.row.iallreduce is False:
                self._say(f"{IALLREDUCE:24s} not tried: it is known to crash ({self._library.row.source})")
            else:
                self._try(IALLREDUCE, lambda job, driver: exchange(job, driver, iallreduce=True))
        finally:
            if watch is not None:
                watch.close()
        works = self._results[SENDRECV] == self._results[SHARDS] == WORKS
        self._say(f"--exchange device {'works' if works else 'does not work'} here")
        self._say(f"kept in {probe_cache.path(self._key)}")
        return works

    def _try(self, calls: str, trial: Callable[[Job, Driver], bool]) -> None:
        """Collective."""
        self._keep(calls, CRASHES)
        self._job.wait_for_all()  # it is written down
        start = time.perf_counter()
        self._trying = calls
        right = trial(self._job, self._driver)
        right = self._job.comm.allreduce(right, MPI.LAND)
        self._trying = None
        self._keep(calls, WORKS if right else WRONG)
        self._say(f"{calls:24s} {self._results[calls]} ({time.perf_counter() - start:.3f} s)")

    def _keep(self, calls: str, result: str) -> None:
        self._results[calls] = result
        if self._job.rank == 0:
            probe_cache.write(self._key, self._results)

    def _give_up(self) -> None:
        calls = self._trying
        assert calls is not None
        probe_cache.write(self._key, {**self._results, calls: HANGS})
        self._say(f"{calls:24s} {HANGS}: {LIMIT:g} s without an end\nkept in {probe_cache.path(self._key)}")
        self._job.stop(
            f"{self._library} {HANGS} in {calls} on device buffers: --exchange device is no choice", 1
        )

    def _say_where(self) -> None:
        words = {True: "yes", False: "no", None: "it does not say"}
        self._say(f"MPI      {self._library}, built for device buffers: {words[has_cuda_support()]}")
        self._say(f"device   {self._driver.name}: {self._driver.device_name}")
        self._say(f"ranks    {self._job.size}, on {self._key['nodes']} node(s)")

    def _say(self, text: str) -> None:
        if self._job.rank == 0:
            print(text, flush=True)


def sendrecv(job: Job, driver: Driver) -> bool:
    """Each rank sends to the next one; whether the right numbers come."""
    right = True
    for size in SIZES:
        mine = DeviceArray.from_host(driver, numbers(job.rank, size))
        got = DeviceArray.from_host(driver, np.zeros(size, DTYPE))
        after, before = (job.rank + 1) % job.size, (job.rank - 1) % job.size
        job.comm.Sendrecv([for_mpi(mine), MPI.FLOAT], after, recvbuf=[for_mpi(got), MPI.FLOAT], source=before)
        right &= np.array_equal(got.to_host(), numbers(before, size))
    return right


def exchange(job: Job, driver: Driver, iallreduce: bool) -> bool:
    """Two steps of the exchange itself; whether the sums are right."""
    streams = Streams(driver)
    phases = Phases(time.perf_counter())
    phases.use_device(driver)
    gradients = DeviceArray.from_host(driver, np.zeros(sum(SIZES), DTYPE))
    buckets = [Bucket(0, SIZES[0]), Bucket(SIZES[0], gradients.size)]
    exchange = DeviceExchange(
        ExchangeContext(driver, streams, job, job.node, phases, gradients, gradients, buckets, NoUpdate()),
        iallreduce,
    )
    right = True
    for step in range(2):
        # Whole numbers: their sums are exact in any order.
        gradients.queue_upload(numbers(job.rank + step, gradients.size), streams.compute)
        for index in range(len(buckets)):
            exchange.ready(index)
        exchange.finish()
        expected = sum(numbers(rank + step, gradients.size) for rank in range(job.size))
        right &= np.array_equal(gradients.to_host(), expected)
    exchange.close()
    return right


def numbers(rank: int, size: int) -> np.ndarray:
    """Small whole numbers (size,) of a rank's own."""
    return ((np.arange(size) * (2 * rank + 3)) % 1009).astype(DTYPE)
