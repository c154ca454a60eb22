"""How good the parameters are on a set: logits from the device, losses and precisions from the logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tabulate import tabulate

from nn import reference
from nn.feed import Feed, Slot
from nn.fuse import fuse
from nn.machine import Machine
from nn.model import Model
from nn.operations import Operation
from nn.step import bind, logits_items
from pyrt.memory import pinned
from pyrt.regions import share

TOP = 5

Samples = tuple[np.ndarray, np.ndarray]
"""Images (n, D) and their labels (n,)."""


@dataclass(frozen=True)
class Scores:
    """Mean loss, precision (correct / total), top-5 precision, precision of each class (None: no sample)."""

    samples: int
    loss: float
    precision: float
    top5: float
    per_class: Sequence[float | None]

    def table(self) -> str:
        """All of it for people."""
        rows = [(label, value) for label, value in enumerate(self.per_class) if value is not None]
        summary = f"{self.samples} test samples: loss {self.loss:.6f}, top-{TOP} precision {self.top5:.4f}"
        return f"{tabulate(rows, headers=['class', 'precision'], floatfmt='.4f')}\n\n{summary}"


def score(logits: np.ndarray, labels: np.ndarray, head: str) -> Scores:
    """Scores of logits (n, classes) against labels (n,)."""
    logits = logits.astype(np.float64)
    correct = logits.argmax(axis=1) == labels
    true = logits[np.arange(len(labels)), labels]
    # Ties, and logits that are not numbers, count against the label.
    in_top = (~(logits < true[:, None])).sum(axis=1) <= TOP
    per_class = [
        float(correct[labels == label].mean()) if (labels == label).any() else None
        for label in range(logits.shape[1])
    ]
    loss = float(reference.losses(logits, labels, head).mean())
    return Scores(len(labels), loss, float(correct.mean()), float(in_top.mean()), per_class)


class Evaluator:
    """The forward pass over one set, each rank its contiguous part, a few rows at a time."""

    def __init__(
        self,
        model: Model,
        samples: Samples,
        pixel_scale: float,
        machine: Machine,
    ) -> None:
        job, driver, streams, phases = machine.job, machine.driver, machine.streams, machine.phases
        self._phase = phases.phase("evaluation")
        self._network, self._job, self._streams = model.network, job, streams
        self._driver = driver
        images, self.labels = samples
        self._start, self._stop = share(len(images), job.size, job.rank)
        chunk = max(1, min(model.activations.rows, self._stop - self._start))
        self._chunks = [
            (start, min(start + chunk, self._stop)) for start in range(self._start, self._stop, chunk)
        ]
        copying = phases.phase("evaluation images host -> device", streams.upload)
        self._feed = Feed(driver, streams, copying, images, self.labels, chunk)
        self._logits = model.activations.A[-1]
        self._host = pinned(driver, (chunk, model.network.classes), self._logits.dtype)

        def forward(slot: Slot, rows: int) -> list[Callable[[], object]]:
            items = logits_items(model.network, model.parameters, model.activations, slot, rows, pixel_scale)
            fused = fuse(items, machine.kernels, model.pool, model.known)
            return [bind(item, streams, machine.kernels) for item in fused if isinstance(item, Operation)]

        sizes = {stop - start for start, stop in self._chunks}
        self._calls = {(slot, rows): forward(slot, rows) for slot in self._feed.slots for rows in sizes}

    def logits(self) -> np.ndarray | None:
        """Logits (n, classes) of the whole set on rank 0, None on the others. Collective."""
        with self._phase:
            mine = [self._chunk(number, *rows) for number, rows in enumerate(self._chunks)]
            empty = np.empty((0, self._network.classes), self._host.dtype)
            self._job.wait_for_all()
            parts = self._job.comm.gather(np.concatenate([empty, *mine]))
            return np.concatenate(parts) if parts is not None else None

    def scores(self) -> Scores:
        """The scores of the whole set, on every rank. Collective."""
        logits = self.logits()
        with self._phase:
            scores = score(logits, self.labels, self._network.head) if logits is not None else None
            self._job.wait_for_all()
            return self._job.comm.bcast(scores)

    def _chunk(self, number: int, start: int, stop: int) -> np.ndarray:
        rows, slot = stop - start, self._feed.slot(number)
        self._feed.gather(number, np.arange(start, stop))
        self._feed.send(number)
        self._feed.begin(number)
        for call in self._calls[slot, rows]:
            call()
        self._feed.end(number)
        self._driver.copy_to_host(self._host[:rows], self._logits.pointer, self._streams.compute)
        self._driver.synchronize_stream(self._streams.compute)
        return self._host[:rows].copy()
