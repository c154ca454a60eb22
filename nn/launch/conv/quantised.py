"""A convolution of few bits: windows as rows of a matrix (kernels/conv/im2col.cu), times the filters.

Each window is quantised by itself, as a sample of a dense layer is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.conv.convolution import Convolution
from nn.launch.conv.im2col import bind_windows
from nn.launch.quantised import QuantisedProduct, QuantisedRows
from nn.launch.shapes import launches
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray, aligned
from pyrt.kernels import Launch, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


@dataclass(frozen=True)
class QuantisedConvolution(Work):
    """Z = f(the windows of A, times W, + bias): what ``plain`` computes, but with W of few bits.

    W has the filters as rows, ``multiply`` is the product, ``bias`` (filters,) may be None. ``plain`` says
    images, outputs and window; its filters are not read, and need not be there.
    """

    kind = "quantised convolution"
    plain: Convolution
    W: QuantisedRows
    multiply: type[QuantisedProduct]
    bias: DeviceArray | None = None
    activation: str = "identity"

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        bias = (self.bias,) if self.bias is not None else ()
        return self.plain.images, self.W.numbers, self.W.scales, *bias

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.plain.writes

    @property
    def flops(self) -> int:
        return self.plain.flops + 4 * self.plain.outputs.size

    def workspace(self, kernels: Kernels) -> int:
        return aligned(4 * self.plain.matrix_size) + self._workspace_of_product(kernels)

    def _workspace_of_product(self, kernels: Kernels) -> int:
        """Count the bytes that the product of some windows uses at most."""
        sizes = {
            last - first
            for start, stop in self.plain.slices
            for first, last in launches((stop - start) * self.plain.window.places)
        }
        return max(self._product_of(self._nowhere(size)).workspace(kernels) for size in sizes)

    def _nowhere(self, count: int) -> DeviceArray:
        """Make so many windows, (windows, pixels), without memory."""
        pixels, images = self.plain.window.pixels, self.plain.images
        return DeviceArray(images.driver, 0, (count, pixels), images.dtype, pixels)

    def _product_of(self, windows: DeviceArray, outputs: DeviceArray | None = None) -> QuantisedProduct:
        """Return the product of some windows (n, pixels), to outputs (n, filters); None: to nowhere."""
        if outputs is None:
            shape = windows.shape[0], self.plain.filter_count
            outputs = DeviceArray(windows.driver, 0, shape, windows.dtype, shape[1])
        return self.multiply(outputs, windows, self.W, self.bias, self.activation)

    def on_device(self, kernels: Kernels) -> Launch:
        """Bind the kernels, for some samples at a time, whose windows are in the same memory.

        Raises ValueError for another dtype than float32, or arrays that do not fit.
        """
        plain, pixels = self.plain, self.plain.window.pixels
        plain.require_shapes()
        matrix = kernels.workspace((plain.matrix_size,), plain.images.dtype)
        room = kernels.workspace((self._workspace_of_product(kernels),), np.uint8)
        bound: list[Launch] = []
        for start, stop in plain.slices:
            images, outputs = plain.of_samples(start, stop)
            rows = outputs.shape[0]
            windows = matrix.rows(0, rows * pixels).reshape(rows, pixels)
            bound.append(bind_windows(kernels, plain.window, images, windows))
            for part in launches(rows):
                with kernels.lent(room):
                    product = self._product_of(windows.rows(*part), outputs.rows(*part))
                    bound.append(product.on_device(kernels))
        return in_order(bound)

    def in_numpy(self) -> Compute:
        plain, window = self.plain, self.plain.window
        image = window.height, window.width, window.channels
        most = max(stop - start for start, stop in plain.slices)
        room = window.room(most, plain.images.dtype)  # what lies outside the images stays 0
        calls: list[Compute] = []
        for start, stop in plain.slices:
            images, outputs = plain.of_samples(start, stop)
            windows, rows = room[: stop - start], outputs.shape[0]
            product = self._product_of(self._nowhere(rows), outputs)
            calls += [
                partial(window.gather, images.host_view().reshape(-1, *image), windows),
                product.in_numpy_of(windows.reshape(rows, window.pixels)),
            ]

        def compute() -> None:
            for call in calls:
                call()

        return compute
