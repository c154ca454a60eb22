"""The gradient of a convolution's sums in one pass (kernels/conv/output_gradient.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.column_sums import ColumnSums
from nn.launch.conv.window import window_arguments
from nn.launch.conv.with_components import component_arguments
from nn.launch.elementwise import ActivationBackward
from nn.launch.gemm.components import Components, split
from nn.launch.pool import PoolGradient
from nn.launch.shapes import Block, Grid
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_THREADS = 512
_BLOCKS_EACH = 2
"""Blocks a multiprocessor: each leaves a row of sums."""


@dataclass(frozen=True)
class OutputGradient(Work):
    """dZ (pixels, filters) from the gradient of what follows, with db; as components where there are any.

    ``pooling`` and ``activation`` are what the gradient goes through, ``sums`` what adds up its columns. With
    ``components``, packed, dZ itself is not written. With ``nearest``, packed components of what f' is taken
    from, that itself is not read, but by NumPy: see `takes_nearest`.
    """

    pooling: PoolGradient | None
    activation: ActivationBackward
    sums: ColumnSums
    components: Components | None
    nearest: Components | None = None

    kind = "output gradient"

    @property
    def made(self) -> DeviceArray:
        """Return what f' is taken from: A or, behind a pool, what the pool made of A."""
        return self.activation.A if self.pooling is None else self.pooling.made

    @property
    def _parts(self) -> Sequence[Work]:
        return [*([self.pooling] if self.pooling is not None else []), self.activation, self.sums]

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        made = self.made if self.nearest is None else self.nearest.numbers
        return made, *((self.activation.dA,) if self.pooling is None else self.pooling.reads)

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.components.numbers if self.components is not None else self.sums.X), self.sums.sums

    @property
    def results(self) -> tuple[DeviceArray | Components, ...]:
        return (self.components if self.components is not None else self.sums.X), self.sums.sums

    @property
    def flops(self) -> int:
        return sum(part.flops for part in self._parts)

    def on_device(self, kernels: Kernels) -> Launch:
        dZ, parts = self.sums.X, self.components
        rows, channels = dZ.shape
        grid, block = output_gradient_shape(rows, channels, kernels.driver)
        partials = DeviceArray.empty(kernels.driver, (grid[0], channels), dZ.dtype)
        name = "through_activation" if self.pooling is None else "through_pooling"
        kernel = kernels.kernel("conv/output_gradient", name, ACTIVATION=self.activation.activation)
        outputs = dZ if parts is None else None, *component_arguments(parts, dZ)
        made = (self.made, None) if self.nearest is None else (None, self._nearest)
        inputs: tuple[int | DeviceArray | None, ...]
        if self.pooling is None:
            inputs = (rows, channels, *made, self.activation.dA)
        else:
            pooling = self.pooling
            sizes = window_arguments(pooling.images.shape[0], pooling.window)
            inputs = (*sizes, pooling.places, *made, pooling.outputs)
        done = DeviceArray.from_host(kernels.driver, np.zeros(grid[1], np.int32))
        return kernel.bind(grid, block, *inputs, *outputs, partials, self.sums.sums, done)

    @property
    def _nearest(self) -> DeviceArray:
        """The first component of what f' is taken from."""
        channels, nearest = self.sums.X.shape[1], self.nearest
        assert nearest is not None
        pixels = self.made.reshape(self.made.size // channels, channels)
        array, _, _ = component_arguments(nearest, pixels)
        if array is None or not takes_nearest(self.activation.activation):
            raise ValueError(f"output gradient: f' of {self.activation.activation} is not taken from bf16")
        return array

    def in_numpy(self) -> Compute:
        calls, parts = [part.in_numpy() for part in self._parts], self.components
        dz = self.sums.X.host_view()

        def compute() -> None:
            for call in calls:
                call()
            if parts is not None:
                parts.numbers.host_view()[:] = split(dz.astype(np.float32), parts.count).reshape(
                    -1, dz.shape[1]
                )

        return compute


def takes_nearest(activation: str) -> bool:
    """Return whether f' is the same where f is rounded to bf16."""
    return activation in ("identity", "relu")


def output_gradient_shape(rows: int, channels: int, driver: Driver) -> tuple[Grid, Block]:
    """Return grid and block: a thread takes four channels, two or one: what divides them."""
    across = channels // next(width for width in (4, 2, 1) if channels % width == 0)
    width = min(1 << (across - 1).bit_length(), _THREADS)
    height = _THREADS // width
    down = min(blocks(rows, height), _BLOCKS_EACH * driver.multiprocessors)
    return (down, blocks(across, width)), (width, height)
