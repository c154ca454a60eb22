"""Scores the parameters on a set: logits from the device; loss, precision and recalls from the logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tabulate import tabulate

from nn.input.dataset import Samples
from nn.input.upload_queue import Slot, UploadQueue
from nn.model import reference
from nn.parallel.plan import WHOLE
from nn.parallel.shard import Shard
from nn.program.rank_model import RankModel
from nn.program.step import bind_all
from nn.train.rank_resources import RankResources
from pyrt.arrays import DeviceArray, pinned
from pyrt.job import Job

TOP = 5


@dataclass(frozen=True)
class Scores:
    """How good the parameters are on a set of samples."""

    samples: int
    loss: float
    """The mean over the samples."""
    precision: float
    """Correct / total."""
    top5: float
    """The part of the samples whose label is among the five best classes."""
    recall: Sequence[float | None]
    """For each class the part of its samples that is correct; None for a class with no sample."""

    def table(self) -> str:
        """Make a table for people."""
        rows = [(label, value) for label, value in enumerate(self.recall) if value is not None]
        summary = f"{self.samples} test samples: loss {self.loss:.6f}, top-{TOP} precision {self.top5:.4f}"
        return f"{tabulate(rows, headers=['class', 'recall'], floatfmt='.4f')}\n\n{summary}"


def score(logits: np.ndarray, labels: np.ndarray, head: str) -> Scores:
    """Score logits (n, classes) against labels (n,)."""
    logits = logits.astype(np.float64)
    ahead = classes_ahead(logits, labels)
    correct = ahead == 0
    recall = [
        float(correct[labels == label].mean()) if (labels == label).any() else None
        for label in range(logits.shape[1])
    ]
    loss = float(reference.losses(logits, labels, head).mean())
    return Scores(len(labels), loss, float(correct.mean()), float((ahead < TOP).mean()), recall)


def classes_ahead(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Count for each sample the classes that are ranked before its label, (n,) integers.

    Classes are ranked by logit, equal ones by number: argmax, which writes the predictions, is the first.
    A logit that is not a number is ranked before the label.
    """
    true = logits[np.arange(len(labels)), labels][:, None]
    is_before = np.arange(logits.shape[1]) < labels[:, None]
    return (~(logits <= true) | ((logits == true) & is_before)).sum(axis=1)


def _part(shard: Shard, job: Job, samples: int) -> tuple[int, int]:
    """Return start and stop of this rank's part; where ranks may die the first has all: no part is lost."""
    if not job.survives:
        return shard.group_samples(samples)
    return (0, samples) if job.rank == 0 else (samples, samples)


class Evaluator:
    """The forward pass over one set, each group of ranks its contiguous part, a few rows at a time."""

    def __init__(
        self,
        model: RankModel,
        samples: Samples,
        resources: RankResources,
    ) -> None:
        job, driver, streams, phases = resources.job, resources.driver, resources.streams, resources.phases
        self._phase = phases.phase("evaluation")
        self._model, self._job, self._streams = model, job, streams
        self._driver = driver
        images, self.labels = samples
        first, last = _part(model.shard, job, len(images))
        chunk = max(1, min(model.activations.samples, last - first))
        self._chunks = [(start, min(start + chunk, last)) for start in range(first, last, chunk)]
        copying = phases.phase("evaluation images host -> device", streams.upload)
        with driver.ledger.of("evaluation"):
            self._queue = UploadQueue(driver, streams, copying, samples, chunk)
        spread = model.shard.plan.takes(model.network.depth + 1)
        self._has_its_own = spread != WHOLE or model.shard.index == 0  # of logits
        classes, dtype = model.network.classes, model.parameters.flat.dtype
        with driver.ledger.of("evaluation"):
            self._host = pinned(driver, (chunk, classes), dtype)
        self._all = (len(images), classes), dtype

        def forward(slot: Slot, samples: int) -> tuple[list[Callable[[], object]], DeviceArray]:
            items, logits = model.forward(slot.source, samples)
            return bind_all(items, streams, resources.kernels, resources.links), logits

        sizes = {stop - start for start, stop in self._chunks}
        self._calls = {(slot, count): forward(slot, count) for slot in self._queue.slots for count in sizes}

    def logits(self) -> np.ndarray | None:
        """Logits (n, classes) of the whole set on rank 0, None on the others. Collective."""
        with self._phase:
            mine = [self._chunk(number, *rows) for number, rows in enumerate(self._chunks)]
            self._job.wait_for_all()
            parts = self._job.comm.gather(mine if self._has_its_own else [])
            if parts is None:
                return None
            logits = np.empty(*self._all)
            for first, rows in (chunk for part in parts for chunk in part):
                logits[first : first + len(rows)] = rows
            return logits

    def scores(self) -> Scores:
        """Score the whole set; return the scores on every rank. Collective."""
        logits = self.logits()
        with self._phase:
            scores = score(logits, self.labels, self._model.network.loss) if logits is not None else None
            self._job.wait_for_all()
            return self._job.comm.bcast(scores)

    def _chunk(self, number: int, start: int, stop: int) -> tuple[int, np.ndarray]:
        """Logits of some of the samples from ``start`` to ``stop``: the first one's number, and those that
        this rank takes."""
        shard, samples, slot = self._model.shard, stop - start, self._queue.slot(number)
        depth, (calls, logits) = self._model.network.depth, self._calls[slot, samples]
        first, last = shard.rows(1, samples)
        self._queue.gather(number, np.arange(start + first, start + last))
        self._queue.send(number)
        self._queue.begin(number)
        for call in calls:
            call()
        self._queue.end(number)
        host = self._host[: logits.shape[0]]
        self._driver.copy_to_host(host, logits.pointer, self._streams.compute)
        self._driver.synchronize_stream(self._streams.compute)
        return start + shard.rows(depth + 1, samples)[0], host.copy()
