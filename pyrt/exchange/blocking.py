"""The course's way: the whole gradients down, MPI_Allreduce, up again, update. Nothing overlaps.

The one to measure the others against.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI

from pyrt.arrays import pinned
from pyrt.exchange import Bucket, ExchangeContext
from pyrt.exchange.facts import Facts
from pyrt.exchange.staging import Copies, packed


class BlockingExchange:
    """One message for all buckets, after the last one is ready."""

    name = "blocking"
    on_device = False

    def __init__(self, setting: ExchangeContext) -> None:
        self.updates: Sequence[Bucket] = setting.buckets
        self._driver = setting.driver
        self._streams = setting.streams
        self._comm = setting.job.comm
        places = packed(setting.buckets)
        self._host = pinned(setting.driver, (places[-1].stop,), setting.gradients.dtype)
        self._gradients = Copies()
        for bucket, place in zip(setting.buckets, places, strict=True):
            self._gradients.add(setting.gradients.rows(*bucket), self._host[place])
        self._update = setting.update.bind(*setting.buckets, ends_step=True)
        phase = setting.phases.phase
        self._down = phase("gradients device -> host", self._streams.compute)
        self._sum = phase("MPI_Allreduce")
        self._up = phase("gradients host -> device", self._streams.compute)
        self._step = phase("step", self._streams.compute)
        self._phases = setting.phases

    def ready(self, bucket: int) -> None:
        pass

    def finish(self) -> None:
        compute = self._streams.compute
        with self._down:
            self._gradients.queue_download(compute)
            self._driver.synchronize_stream(compute)
        self._phases.barrier()
        with self._sum:
            self._comm.Allreduce(MPI.IN_PLACE, self._host)
        with self._up:
            self._gradients.queue_upload(compute)
            self._driver.synchronize_stream(compute)
        with self._step:
            self._update(compute)

    def close(self) -> None:
        pass


FACTS = Facts(
    BlockingExchange.name,
    "all gradients at once through host memory, MPI_Allreduce, nothing overlaps",
    BlockingExchange,
    rung=2,
)
