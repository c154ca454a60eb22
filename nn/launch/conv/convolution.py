"""The work of a convolutional layer: its outputs, and the gradients of its input and its filters.

Arrays are matrices: images and gradients (samples, height width channels), filters (filters, rows columns
channels), as nn/model/conv2d.py has them flattened.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.shapes import require_shape
from nn.launch.work import Compute, Work
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

WORKSPACE_BYTES = 256 << 20
"""The most memory for windows, or for transformed tiles: those of more samples are made in slices."""


def sample_slices(samples: int, each: int, most: int) -> list[tuple[int, int]]:
    """Return start and stop of nearly equal slices of samples, each of so many bytes.

    A slice has at most ``most`` bytes, but one sample at least.
    """
    count = blocks(samples, max(1, most // each))
    size = blocks(samples, count)
    return [(start, min(start + size, samples)) for start in range(0, samples, size)]


@dataclass(frozen=True)
class ConvolutionWork(Work):
    """``images`` A, or their gradient; ``outputs`` Z, or theirs; ``filters`` W, or theirs.

    Two of the three are read, the third is written.
    """

    images: DeviceArray
    outputs: DeviceArray
    filters: DeviceArray
    window: Window

    @property
    def samples(self) -> int:
        return self.images.shape[0]

    @property
    def filter_count(self) -> int:
        return self.filters.shape[0]

    @property
    def convolution(self) -> ConvolutionWork:
        return self

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Windows, filters, and pixels of a window: M, N, K of the product that it is, forward."""
        return self.samples * self.window.places, self.filter_count, self.window.pixels

    @property
    def flops(self) -> int:
        """Two for each window, filter and pixel, those of padding included."""
        return 2 * self.samples * self.window.places * self.filters.size

    @property
    def slices(self) -> list[tuple[int, int]]:
        """Start and stop of the samples whose windows are made at once, at most `WORKSPACE_BYTES` of them."""
        window = self.window
        each = window.places * window.pixels * self.images.dtype.itemsize
        return sample_slices(self.samples, each, WORKSPACE_BYTES)

    @property
    def matrix_size(self) -> int:
        """Count the elements of the matrix of windows of the largest slice."""
        most = max(stop - start for start, stop in self.slices)
        return most * self.window.places * self.window.pixels

    def of_samples(self, start: int, stop: int) -> tuple[DeviceArray, DeviceArray]:
        """Return the images of some samples, and their outputs as a matrix (windows, filters)."""
        outputs = self.outputs.rows(start, stop)
        windows = (stop - start) * self.window.places
        return self.images.rows(start, stop), outputs.reshape(windows, self.filter_count)

    def require_shapes(self) -> None:
        """Raise ValueError unless the arrays fit the window."""
        window = self.window
        size = window.height * window.width * window.channels
        require_shape("convolution", (self.samples, size), images=self.images)
        outputs = self.samples, window.places * self.filter_count
        require_shape("convolution", outputs, outputs=self.outputs)
        require_shape("convolution", (self.filter_count, window.pixels), filters=self.filters)

    def workspace(self, kernels: Kernels) -> int:
        from nn.launch.conv import workspace_of

        return workspace_of(kernels, self)

    def on_device(self, kernels: Kernels) -> Launch:
        from nn.launch.conv import convolve

        self.require_shapes()
        return convolve(kernels, self)

    def in_numpy(self) -> Compute:
        """Bind NumPy: windows laid out as a matrix, slice by slice."""
        window, dtype = self.window, self.images.dtype
        most = max(stop - start for start, stop in self.slices)
        windows = window.room(most, dtype)  # what lies outside the images stays 0
        image = window.height, window.width, window.channels
        calls = []
        for number, (start, stop) in enumerate(self.slices):
            images, outputs = (array.host_view() for array in self.of_samples(start, stop))
            calls.append(
                self.slice_in_numpy(images.reshape(-1, *image), outputs, windows[: stop - start], number)
            )

        def compute() -> None:
            for call in calls:
                call()

        return compute

    @abstractmethod
    def slice_in_numpy(
        self, images: np.ndarray, outputs: np.ndarray, windows: np.ndarray, number: int
    ) -> Callable[[], object]:
        """Bind it for the samples of a slice: images, outputs (windows, filters), room for windows."""


@dataclass(frozen=True)
class Convolution(ConvolutionWork):
    """The outputs, without bias: Z = the windows of A, times W."""

    kind = "convolution"

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.images, self.filters

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.outputs,)

    def slice_in_numpy(
        self, images: np.ndarray, outputs: np.ndarray, windows: np.ndarray, number: int
    ) -> Callable[[], object]:
        w, matrix = self.filters.host_view(), windows.reshape(-1, self.window.pixels)

        def compute() -> None:
            self.window.gather(images, windows)
            np.matmul(matrix, w.T, out=outputs)

        return compute


@dataclass(frozen=True)
class InputGradient(ConvolutionWork):
    """The gradient of the images: dA, from dZ and W."""

    kind = "convolution to the input"

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.outputs, self.filters

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.images,)

    def slice_in_numpy(
        self, images: np.ndarray, outputs: np.ndarray, windows: np.ndarray, number: int
    ) -> Callable[[], object]:
        w, matrix = self.filters.host_view(), windows.reshape(-1, self.window.pixels)

        def compute() -> None:
            np.matmul(outputs, w, out=matrix)
            self.window.scatter(windows, images)

        return compute


@dataclass(frozen=True)
class FilterGradient(ConvolutionWork):
    """The gradient of the filters: dW, from A and dZ."""

    kind = "convolution to the filters"

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.images, self.outputs

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.filters,)

    def slice_in_numpy(
        self, images: np.ndarray, outputs: np.ndarray, windows: np.ndarray, number: int
    ) -> Callable[[], object]:
        dw, matrix = self.filters.host_view(), windows.reshape(-1, self.window.pixels)

        def compute() -> None:
            self.window.gather(images, windows)
            if number:
                np.add(dw, outputs.T @ matrix, out=dw)
            else:
                np.matmul(outputs.T, matrix, out=dw)

        return compute
