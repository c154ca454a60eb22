"""Through pinned host memory, bucket by bucket, overlapped with the backward pass and with each other.

    compute   | bucket 0 | bucket 1 | bucket 2 |          | update 0 | update 1 | update 2 |
    download              | copy 0   | copy 1   | copy 2
    MPI                              | Iallreduce 0 | Iallreduce 1 | Iallreduce 2
    upload                                           | copy 0 | copy 1 | copy 2

MPI makes progress when it is called: at every ``ready``, and without pause in ``finish``. No device
pointer reaches MPI, so this is safe on every MPI. Sums are posted and applied in bucket order on every
rank, whatever order they arrive in. A buffer of its own takes the sum: with MPI_IN_PLACE Open MPI falls
back to a tree that takes twice as long (see ``_TUNING`` in pyrt/job.py).
"""

from __future__ import annotations

from mpi4py import MPI

from pyrt.exchange import Bucket, QueueWork, Setting
from pyrt.memory import pinned


class _Stage:
    """What one bucket needs on its way: buffers, events, the request of its sum, its update."""

    def __init__(self, setting: Setting, bucket: Bucket, is_last: bool) -> None:
        driver = setting.driver
        self.gradients = setting.gradients.rows(*bucket)
        self.mine = pinned(driver, self.gradients.shape, self.gradients.dtype)
        self.summed = pinned(driver, self.gradients.shape, self.gradients.dtype)
        self.computed = driver.create_event(timing=False)
        self.downloaded = driver.create_event(timing=False)
        self.uploaded = driver.create_event(timing=False)
        self.request: MPI.Request | None = None
        self.update: QueueWork = setting.update.bind(bucket, ends_step=is_last)


class HostExchange:
    """Buckets move from ``queued`` (copied down) to ``posted`` (being summed) to ``applied``, in order."""

    name = "host"
    on_device = False

    def __init__(self, setting: Setting) -> None:
        self._driver = setting.driver
        self._streams = setting.streams
        self._job = setting.job
        self._comm = setting.job.comm
        last = len(setting.buckets) - 1
        self._stages = [_Stage(setting, bucket, i == last) for i, bucket in enumerate(setting.buckets)]
        self._queued = self._posted = self._applied = 0
        phase = setting.phases.phase
        self._down = phase("gradients device -> host", self._streams.download)
        self._sum = phase("MPI_Iallreduce")
        self._up = phase("gradients host -> device", self._streams.upload)
        self._step = phase("step", self._streams.compute)
        self._phases = setting.phases

    def ready(self, bucket: int) -> None:
        stage = self._stages[bucket]
        driver, download = self._driver, self._streams.download
        driver.record(stage.computed, self._streams.compute)
        driver.wait(download, stage.computed)
        with self._down:
            stage.gradients.queue_download(stage.mine, download)
        driver.record(stage.downloaded, download)
        self._queued += 1
        self._advance(wait=False)

    def close(self) -> None:
        pass

    def finish(self) -> None:
        self._phases.barrier()
        self._advance(wait=True)
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
            self._apply(self._stages[self._applied])
            self._applied += 1

    def _poll(self) -> bool:
        """Post what can be posted; whether the next bucket to apply has its sum."""
        while self._posted < self._queued:
            stage = self._stages[self._posted]
            if not self._driver.is_done(stage.downloaded):
                break
            stage.request = self._comm.Iallreduce(stage.mine, stage.summed)
            self._posted += 1
        request = self._stages[self._applied].request
        return self._applied < self._posted and request is not None and request.Test()

    def _apply(self, stage: _Stage) -> None:
        upload, compute = self._streams.upload, self._streams.compute
        with self._up:
            stage.gradients.queue_upload(stage.summed, upload)
        self._driver.record(stage.uploaded, upload)
        self._driver.wait(compute, stage.uploaded)
        with self._step:
            stage.update(compute)
