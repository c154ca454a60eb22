"""Master and workers: rank 0 sums everybody's gradients, updates, and sends its parameters to all.

    rank 0  | gradients down | MPI_Gather | sum | up | update | parameters down | MPI_Bcast |
    others  | gradients down | MPI_Gather |                                     | MPI_Bcast | parameters up |

The rung to start reading at. Nothing overlaps; rank 0 takes in n gradients from each of the others, and
these have nothing to do until its parameters come. No sum is made twice, so all ranks have rank 0's bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from pyrt.arrays import pinned
from pyrt.exchange import Bucket, ExchangeContext
from pyrt.exchange.facts import Facts, Traffic
from pyrt.exchange.staging import Copies, packed

_ROOT = 0


class RootExchange:
    """Two messages for all buckets, after the last one is ready."""

    name = "root"
    on_device = False

    def __init__(self, setting: ExchangeContext) -> None:
        self._driver = setting.driver
        self._streams = setting.streams
        self._comm = setting.job.comm
        self._phases = setting.phases
        self._is_root = setting.job.rank == _ROOT
        self.updates: Sequence[Bucket] = setting.buckets if self._is_root else ()
        self._make_buffers(setting)
        self._update = setting.update.bind(*setting.buckets if self._is_root else (), ends_step=True)
        self._refresh = setting.update.refresh()
        phase, compute = setting.phases.phase, self._streams.compute
        self._gradients_down = phase("gradients device -> host", compute)
        self._gather = phase("MPI_Gather")
        self._sum = phase("sum of gradients")
        self._gradients_up = phase("gradients host -> device", compute)
        self._step = phase("step", compute)
        self._parameters_down = phase("parameters device -> host", compute)
        self._bcast = phase("MPI_Bcast")
        self._parameters_up = phase("parameters host -> device", compute)

    def _make_buffers(self, setting: ExchangeContext) -> None:
        """Make a host row for each rank's gradients that are sent here; parameters use the first row."""
        places = packed(setting.buckets)
        ranks = setting.job.size if self._is_root else 1
        rows = pinned(self._driver, (ranks, places[-1].stop), setting.gradients.dtype)
        self._host, *self._others = rows
        self._gradients, self._parameters, self._summed = Copies(), Copies(), Copies()
        for (start, stop), place in zip(setting.buckets, places, strict=True):
            host = self._host[place]
            self._gradients.add(setting.gradients.rows(start, stop), host)
            end = max(start, min(stop, setting.updated))
            if start < end:
                self._parameters.add(setting.parameters.rows(start, end), host[: end - start])
            # What lies behind the parameters is summed only, and goes to the others with them.
            self._summed.add(setting.gradients.rows(end, stop), host[end - start :])
        self._sent = MPI.IN_PLACE if self._is_root else self._host
        self._gathered = rows if self._is_root else None

    def ready(self, bucket: int) -> None:
        pass

    def finish(self) -> None:
        compute = self._streams.compute
        with self._gradients_down:
            self._gradients.queue_download(compute)
            self._driver.synchronize_stream(compute)
        self._phases.barrier()
        with self._gather:
            self._comm.Gather(self._sent, self._gathered, root=_ROOT)
        if self._is_root:
            self._sum_and_update()
        self._phases.barrier()
        with self._bcast:
            self._comm.Bcast(self._host, root=_ROOT)
        if not self._is_root:
            self._take_over()

    def _sum_and_update(self) -> None:
        """Rank 0, from everybody's gradients to new parameters, which it leaves where MPI sends them from."""
        compute = self._streams.compute
        with self._sum:
            for gradients in self._others:
                np.add(self._host, gradients, out=self._host)
        with self._gradients_up:
            self._gradients.queue_upload(compute)
        with self._step:
            self._update(compute)
        with self._parameters_down:
            self._parameters.queue_download(compute)
            self._driver.synchronize_stream(compute)

    def _take_over(self) -> None:
        """Take over rank 0's parameters, on other ranks; they are up before the next gradients come down."""
        compute = self._streams.compute
        with self._parameters_up:
            self._parameters.queue_upload(compute)
            self._summed.queue_upload(compute)
        with self._step:
            self._refresh(compute)
            self._update(compute)

    def close(self) -> None:
        pass


def _traffic(buckets: Sequence[Bucket], ranks: int, rank: int, itemsize: int) -> Traffic:
    """Gradients to rank 0, parameters from it."""
    size = sum(bucket.stop - bucket.start for bucket in buckets)
    return Traffic((ranks - 1) * size, 2 * (ranks - 1)) if rank == _ROOT else Traffic(size, 1)


FACTS = Facts(
    RootExchange.name,
    "MPI_Gather, rank 0 sums, updates and sends its parameters with MPI_Bcast, nothing overlaps",
    RootExchange,
    _traffic,
    rung=1,
)
