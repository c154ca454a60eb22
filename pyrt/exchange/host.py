"""Through pinned host memory in pieces, overlapped with the backward pass and with each other.

    compute   | bucket 0 | bucket 1 |               | update 0 | update 1 | update 2 |
    download             | copy 0 | copy 1 | copy 2
    MPI                           | Iallreduce 0 | Iallreduce 1 | Iallreduce 2
    upload                                       | copy 0   | copy 1   | copy 2

A bucket leaves the device once its gradients are there, piece by piece: while one piece comes down another
is summed, a third goes up and a fourth is applied. MPI makes progress when it is called: at every ``ready``,
and without pause in ``finish``. No device pointer reaches MPI, so this is safe on every MPI. Sums are posted
and applied in the same order on every rank, whatever order they arrive in. A buffer of its own takes the
sums: with MPI_IN_PLACE Open MPI falls back to a tree that takes twice as long (see ``_TUNING`` in
pyrt/job/__init__.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from pyrt.arrays import pinned
from pyrt.driver import EventHandle
from pyrt.exchange import Bucket, ExchangeContext, QueueWork
from pyrt.exchange.facts import Facts, Traffic, ring_traffic

PIECE_BYTES = 2 * 1024 * 1024
"""Buckets are cut into pieces of about this size: smaller ones overlap more, but each costs the host two
copies, a message and an update. Measured in docs/explain/measurements.md."""

_VECTOR = 4  # elements; a piece has whole vectors, so that the next one begins aligned


class _Piece:
    """What a piece of a bucket needs on its way: buffers, events, the request of its sum, its update."""

    def __init__(
        self, setting: ExchangeContext, place: Bucket, mine: np.ndarray, summed: np.ndarray, is_last: bool
    ) -> None:
        """``mine`` and ``summed`` are as the flat gradients, on the host."""
        self.gradients = setting.gradients.rows(*place)
        self.mine, self.summed = mine[slice(*place)], summed[slice(*place)]
        self.downloaded = setting.driver.create_event(timing=False)
        self.uploaded = setting.driver.create_event(timing=False)
        self.request = MPI.REQUEST_NULL
        self.update: QueueWork = setting.update.bind(place, ends_step=is_last)


class HostExchange:
    """Pieces move from ``queued`` (copied down) to ``posted`` (being summed) to ``applied``, in order."""

    name = "host"
    on_device = False

    def __init__(self, setting: ExchangeContext) -> None:
        self.updates: Sequence[Bucket] = setting.buckets
        self._driver = setting.driver
        self._streams = setting.streams
        self._job = setting.job
        self._comm = setting.job.comm
        self._buckets = _cut(setting)
        self._pieces = [piece for _, pieces in self._buckets for piece in pieces]
        self._queued = self._posted = self._applied = 0
        phase = setting.phases.phase
        self._down = phase("gradients device -> host", self._streams.download)
        self._sum = phase("MPI_Iallreduce")
        self._up = phase("gradients host -> device", self._streams.upload)
        self._step = phase("step", self._streams.compute)
        self._phases = setting.phases

    def ready(self, bucket: int) -> None:
        computed, pieces = self._buckets[bucket]
        driver, download = self._driver, self._streams.download
        driver.record(computed, self._streams.compute)
        driver.wait(download, computed)
        with self._down:
            for piece in pieces:
                piece.gradients.queue_download(piece.mine, download)
                driver.record(piece.downloaded, download)
        self._queued += len(pieces)
        self._advance(wait=False)

    def finish(self) -> None:
        self._phases.barrier()
        self._advance(wait=True)
        self._queued = self._posted = self._applied = 0

    def close(self) -> None:
        """MPI can neither cancel nor free a collective: after an error sums may be left under way."""
        for piece in self._pieces[self._applied : self._posted]:
            piece.request.Test()
        self._queued = self._posted = self._applied = 0

    def _advance(self, wait: bool) -> None:
        """Post the sums whose copies are down, apply those that are done; with ``wait`` until all are."""
        while self._applied < self._queued:
            with self._sum:
                summed = self._poll()
                while wait and not summed:
                    self._job.pause()
                    summed = self._poll()
            if not summed:
                return
            self._apply(self._pieces[self._applied])
            self._applied += 1

    def _poll(self) -> bool:
        """Post what can be posted; whether the next piece to apply has its sum.

        One test lets MPI work at all sums that are posted; which of the later ones are done does not matter.
        """
        while self._posted < self._queued:
            piece = self._pieces[self._posted]
            if not self._driver.is_done(piece.downloaded):
                break
            piece.request = self._comm.Iallreduce(piece.mine, piece.summed)
            self._posted += 1
        return self._applied < self._posted and self._pieces[self._applied].request.Test()

    def _apply(self, piece: _Piece) -> None:
        upload, compute = self._streams.upload, self._streams.compute
        with self._up:
            piece.gradients.queue_upload(piece.summed, upload)
        self._driver.record(piece.uploaded, upload)
        self._driver.wait(compute, piece.uploaded)
        with self._step:
            piece.update(compute)


def _cut(setting: ExchangeContext) -> list[tuple[EventHandle, list[_Piece]]]:
    """Cut each bucket into pieces; pair them with an event that says its gradients are there."""
    driver, gradients = setting.driver, setting.gradients
    mine, summed = (pinned(driver, gradients.shape, gradients.dtype) for _ in range(2))
    last = setting.buckets[-1].stop  # of one piece alone: buckets are apart
    return [
        (
            driver.create_event(timing=False),
            [
                _Piece(setting, place, mine, summed, is_last=place.stop == last)
                for place in pieces(bucket, gradients.dtype.itemsize)
            ],
        )
        for bucket in setting.buckets
    ]


def pieces(bucket: Bucket, itemsize: int) -> list[Bucket]:
    """Cut the bucket into pieces of about `PIECE_BYTES`, of equal size but for the last."""
    size = bucket.stop - bucket.start
    count = max(1, round(size * itemsize / PIECE_BYTES))
    step = -(-size // (count * _VECTOR)) * _VECTOR
    return [Bucket(start, min(start + step, bucket.stop)) for start in range(bucket.start, bucket.stop, step)]


def _traffic(buckets: Sequence[Bucket], ranks: int, rank: int, itemsize: int) -> Traffic:
    """Count a message for each piece."""
    calls = sum(len(pieces(bucket, itemsize)) for bucket in buckets)
    whole = ring_traffic(buckets, ranks, rank, itemsize)
    return Traffic(whole.elements, calls * whole.messages)


FACTS = Facts(
    HostExchange.name,
    "pinned host memory, MPI_Iallreduce in pieces that overlap with the backward pass",
    HostExchange,
    _traffic,
    rung=3,
    overlaps=True,
)
