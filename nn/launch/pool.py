"""Pooling of images, and its gradients (kernels/conv/pool.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.conv.window import window_arguments
from nn.launch.conv.with_components import component_arguments
from nn.launch.gemm.components import Components
from nn.launch.shapes import line_shape, require_shape
from nn.launch.work import Compute, Work
from nn.model import pool
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


@dataclass(frozen=True)
class PoolWork(Work):
    """``images`` (samples, height width channels) and ``outputs``, or the gradients of both.

    ``places`` are those of the largest pixels in their windows, a byte an output; None: of means.
    """

    images: DeviceArray
    outputs: DeviceArray
    places: DeviceArray | None
    window: Window

    @property
    def _places(self) -> tuple[DeviceArray, ...]:
        return (self.places,) if self.places is not None else ()

    @property
    def _word(self) -> str:
        return "max" if self.places is not None else "mean"

    @property
    def flops(self) -> int:
        return self.outputs.size * self.window.rows * self.window.columns

    def _arguments(self) -> tuple[int, ...]:
        window, samples = self.window, self.images.shape[0]
        size, outputs = (window.channels * places for places in (window.height * window.width, window.places))
        require_shape("pool", (samples, size), images=self.images)
        require_shape("pool", (samples, outputs), outputs=self.outputs)
        return window_arguments(samples, window)

    def _host_views(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Images, outputs and places as arrays of four dimensions."""
        window = self.window
        outputs = -1, window.out_height, window.out_width, window.channels
        return (
            self.images.host_view().reshape(-1, window.height, window.width, window.channels),
            self.outputs.host_view().reshape(outputs),
            self.places.host_view().reshape(outputs) if self.places is not None else None,
        )


@dataclass(frozen=True)
class Pool(PoolWork):
    """The largest pixel, or the mean, of each window."""

    kind = "pooling"

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return (self.images,)

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.outputs, *self._places

    def on_device(self, kernels: Kernels) -> Launch:
        return self.bind(kernels)

    def bind(self, kernels: Kernels, components: Components | None = None) -> Launch:
        """Bind the kernel, which can leave packed components of the outputs beside them."""
        kernel, shape = kernels.kernel("conv/pool", f"{self._word}_pool"), line_shape(self.outputs.size)
        channels = self.window.channels
        outputs = self.outputs.reshape(self.outputs.size // channels, channels)
        return kernel.bind(
            *shape,
            *self._arguments(),
            *(self.images, self.outputs, *self._places),
            *component_arguments(components, outputs),
        )

    def in_numpy(self) -> Compute:
        images, outputs, places = self._host_views()

        def compute() -> None:
            if places is None:
                outputs[:] = pool.means(self.window, images)
            else:
                outputs[:], places[:] = pool.largest(self.window, images)

        return compute


@dataclass(frozen=True)
class PoolGradient(PoolWork):
    """The gradient of the images, from that of the outputs; ``made`` are the outputs themselves."""

    kind = "pooling gradient"
    made: DeviceArray

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.outputs, *self._places

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.images,)

    def on_device(self, kernels: Kernels) -> Launch:
        kernel = kernels.kernel("conv/pool", f"{self._word}_pool_backward")
        shape = line_shape(self.images.size)
        return kernel.bind(*shape, *self._arguments(), *self._places, self.outputs, self.images)

    def in_numpy(self) -> Compute:
        images, outputs, places = self._host_views()

        def compute() -> None:
            if places is None:
                images[:] = pool.to_means(self.window, outputs)
            else:
                images[:] = pool.to_largest(self.window, places, outputs)

        return compute
