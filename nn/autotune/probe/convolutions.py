"""Convolutions of 3 x 3 pixels of a grid of sizes, forward and both ways back, as a step runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import cast

import numpy as np

from nn.autotune.listed_step import kernels_on
from nn.autotune.probe.clock import Clock, medians
from nn.autotune.probe.context import Convolved, Extent, ProbeContext
from nn.autotune.probe.lender import Lender
from nn.autotune.rates import CONVOLUTIONS, Convolutions
from nn.launch.conv.convolution import Convolution, FilterGradient, InputGradient
from nn.launch.gemm.components import Components
from nn.launch.work import Work
from nn.model.window import SAME, Window
from nn.program.fuse import fuse
from nn.program.operations import FORWARD, Operation
from nn.program.step import bound_all
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver

_SIDE = 3
"""Rows and columns of a window."""

_CHUNK = 1 << 22
"""Random numbers that are drawn; more repeat them."""


def convolution_times(setting: ProbeContext, extent: Extent) -> Convolutions:
    """Time convolutions of all sizes. Collective."""
    sizes = extent.convolved
    clock = Clock(setting.driver, setting.job)
    seconds: list[float] = []
    with closing(Lender(setting.driver)) as lender:
        arrays = _Arrays(cast(Driver, lender), sizes, setting.task.dtype)
        for samples, channels in np.ndindex(len(sizes.samples), len(sizes.channels)):
            for work in arrays.works(sizes.samples[samples], sizes.channels[channels]):
                # Free this work's components and workspaces before the next one allocates its own.
                with closing(Lender(setting.driver)) as beside:
                    driver = cast(Driver, beside)
                    kernels = kernels_on(driver, setting.task)
                    operation = Operation(work.kind, FORWARD, work)
                    items = fuse([operation], kernels, partial(Components.empty, driver))
                    *before, last = bound_all(items, kernels)
                    seconds.append(clock.seconds(last, before))
    shape = len(sizes.samples), len(sizes.channels), len(CONVOLUTIONS), len(sizes.filters)
    us = 1e6 * np.reshape(medians(setting.job, seconds), shape).transpose(2, 0, 3, 1)
    return Convolutions(
        [samples * sizes.side**2 for samples in sizes.samples],
        list(sizes.filters),
        [_SIDE**2 * channels for channels in sizes.channels],
        {kind: times.tolist() for kind, times in zip(CONVOLUTIONS, us, strict=True)},
    )


_WRITTEN: Mapping[Callable[[DeviceArray, DeviceArray, DeviceArray, Window], Work], int] = {
    Convolution: 1,
    InputGradient: 0,
    FilterGradient: 2,
}
"""Which of images, outputs and filters each writes."""


class _Arrays:
    """Random numbers for the largest images, outputs and filters; smaller ones are at their beginning.

    Results are elsewhere: what is read stays as it is, however often it is read.
    """

    def __init__(self, driver: Driver, sizes: Convolved, dtype: str) -> None:
        self._sizes = sizes
        channels, filters = sizes.channels[-1], sizes.filters[-1]
        images = sizes.samples[-1] * sizes.side**2
        counts = images * channels, images * filters, filters * _SIDE**2 * channels
        # Of zeros a GPU makes more: they cost less power.
        numbers = np.random.default_rng(0).standard_normal(min(_CHUNK, max(counts))).astype(dtype)
        self._flat = [_filled(driver, count, numbers) for count in counts]
        self._results = DeviceArray.empty(driver, (max(counts),), dtype)

    def works(self, samples: int, channels: int) -> Iterator[Work]:
        """Yield the convolutions of so many images: of each kind, with each number of filters."""
        side = self._sizes.side
        window = Window.over("probe", (side, side, channels), (_SIDE, _SIDE), 1, SAME)
        for work, written in _WRITTEN.items():
            flat = [self._results if place == written else array for place, array in enumerate(self._flat)]
            for filters in self._sizes.filters:
                shapes = (samples, side**2 * channels), (samples, side**2 * filters), (filters, window.pixels)
                images, outputs, weights = (
                    array.rows(0, rows * columns).reshape(rows, columns)
                    for array, (rows, columns) in zip(flat, shapes, strict=True)
                )
                yield work(images, outputs, weights, window)


def _filled(driver: Driver, count: int, numbers: np.ndarray) -> DeviceArray:
    """Return a flat array of these numbers, again and again."""
    array = DeviceArray.empty(driver, (count,), numbers.dtype)
    for start in range(0, count, len(numbers)):
        part = array.rows(start, min(start + len(numbers), count))
        part.set(numbers[: part.size])
    return array
