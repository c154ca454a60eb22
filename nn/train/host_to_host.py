"""The way of a few images through a trained network: page-locked pixels to page-locked logits, in one graph.

    host      | launch |                  waits                   |
    compute            | copy up | operations of the network | copy down |

There is a graph for each number of images. For few there are no copies: a copy takes longer to begin than a
kernel takes to fetch so few pixels from the host's memory itself, and to leave logits there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from nn.input.source import Ready
from nn.launch.gemm.few_rows import MOST_ROWS
from nn.program.rank_model import RankModel
from nn.program.step import bound_all
from pyrt.arrays import DeviceArray, mapped
from pyrt.driver import StreamHandle
from pyrt.exchange import QueueWork
from pyrt.graphs import capture


class HostToHost:
    """Calls that compute logits of images, one for each number of images at a time."""

    def __init__(
        self, model: RankModel, stream: StreamHandle, batch: int, pixels: DTypeLike, graphs: bool
    ) -> None:
        """Make room for ``batch`` images of the dtype ``pixels``; the model has room for as many.

        The model has all of its network. With ``graphs`` each call launches one; else it launches the
        operations one by one.
        """
        assert model.shard.plan.is_data, "no activations come from other ranks"
        driver, inputs, classes = model.driver, model.network.sizes[0], model.network.classes
        self.batch = batch
        self._model, self._driver, self._stream, self._graphs = model, driver, stream, graphs
        with driver.ledger.of("evaluation"):
            self._pixels = mapped(driver, (batch, inputs), pixels)
            self._outputs = mapped(driver, (batch, classes), model.numbers.dtype)
            self._labels = DeviceArray.empty(driver, (batch,), np.int32)
            few = batch <= MOST_ROWS
            self._images = self._pixels.device if few else DeviceArray.empty(driver, (batch, inputs), pixels)
        self._calls: dict[int, Callable[[], None]] = {}

    @property
    def pixels(self) -> np.ndarray:
        """Page-locked memory (batch, D), for images."""
        return self._pixels.host

    @property
    def outputs(self) -> np.ndarray:
        """Page-locked memory (batch, classes), for their logits."""
        return self._outputs.host

    def bind(self, count: int) -> Callable[[], None]:
        """Return what computes the first ``count`` of ``outputs`` from as many of ``pixels``.

        They are there when the call returns. A call allocates nothing. The graph is made the first time that
        it is asked for. Raises ValueError for a count that is not from 1 to ``batch``.
        """
        if count not in self._calls:
            if not 1 <= count <= self.batch:
                raise ValueError(f"{count} images at a time: there is room for 1 to {self.batch}")
            self._calls[count] = self._bound(count)
        return self._calls[count]

    def _bound(self, count: int) -> Callable[[], None]:
        """Bind the work for so many images, and the wait for its end.

        A GPU's context is in CUDA's default mode (CU_CTX_SCHED_AUTO), in which cuStreamSynchronize polls
        unless there are more contexts than cores. To record an event and ask for it from Python would cost
        two calls or more.
        """
        driver, stream, queue = self._driver, self._stream, self._work(count)
        if self._graphs:
            with capture(driver, stream) as graph:
                queue(stream)
            queue = graph.call

        def call() -> None:
            queue(stream)
            driver.synchronize_stream(stream)

        return call

    def _work(self, count: int) -> QueueWork:
        """Bind the operations for so many images, and the copies up and down where they are more than few."""
        few = count <= MOST_ROWS
        images = (self._pixels.device if few else self._images).rows(0, count)
        into = self._outputs.device.rows(0, count) if few else None
        items, logits = self._model.forward(Ready(images, self._labels), count, into)
        calls = bound_all(items, self._model.kernels)
        if not few:
            up = partial(images.queue_upload, self.pixels[:count])
            calls = [up, *calls, partial(logits.queue_download, self.outputs[:count])]

        def queue(stream: StreamHandle) -> None:
            for call in calls:
                call(stream)

        return queue
