"""Launches of convolutions with Winograd's transforms around products (kernels/conv/winograd.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from nn.launch.conv.convolution import (
    Convolution,
    ConvolutionWork,
    FilterGradient,
    InputGradient,
    sample_slices,
)
from nn.launch.conv.gathered import gathered
from nn.launch.conv.window import window_arguments
from nn.launch.gemm import gemm
from nn.launch.gemm.batch import Batch, bind_batch
from nn.launch.gemm.components import Components
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.shapes import line_shape
from nn.model.window import Window
from pyrt.arrays import DeviceArray, Empty, aligned
from pyrt.kernels import Argument, Kernel, Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_SIDE = 3
"""Of the windows that it can take."""

_MANY_FORWARD, _MANY_BACKWARD = 512, 256
"""Channels and filters from which on fewer products are worth the transforms.

Forward more, as `implicit` has bias and activation in its epilogue.
"""

SLICE_BYTES, FILTER_SLICE_BYTES = 96 << 20, 256 << 20
"""The most memory for transformed tiles: those of more samples are made in slices.

The L2 cache keeps a part of a small slice; to the filters few tiles are a short sum.
"""

OUTS = (2, 4)
"""Sides of a tile of results: F(2x2, 3x3) and F(4x4, 3x3)."""


def fits_winograd(work: ConvolutionWork) -> bool:
    """Return whether it can do the work: windows of 3 x 3 at stride 1."""
    window = work.window
    return (window.rows, window.columns, window.stride) == (_SIDE, _SIDE, 1)


def gains_by_winograd(work: ConvolutionWork) -> bool:
    """Return whether F(2x2) is faster than `implicit` in float32: where products take most of its time."""
    many = _MANY_FORWARD if isinstance(work, Convolution) else _MANY_BACKWARD
    return fits_winograd(work) and min(work.window.channels, work.filter_count) >= many


@dataclass(frozen=True)
class Tiles:
    """How results are cut: into tiles of ``out`` x ``out``, the last ones perhaps partly outside."""

    window: Window
    out: int

    @classmethod
    def of(cls, work: ConvolutionWork, outs: Sequence[int] = OUTS) -> Tiles:
        """Choose the tile, of these sides, with which an image takes fewer multiplications.

        That is the large one, but where much of the last tiles is outside a small image. Of two that take as
        many, the small one rounds less.
        """
        window, _ = gathered(work)
        return min((cls(window, out) for out in outs), key=lambda tiles: tiles.places * tiles.each)

    @property
    def places(self) -> int:
        """Places of a transformed tile: as many products are done."""
        return (self.out + _SIDE - 1) ** 2

    @property
    def each(self) -> int:
        """Tiles of an image."""
        return blocks(self.window.out_height, self.out) * blocks(self.window.out_width, self.out)


Operand = DeviceArray | Batch
"""One side of the products: a matrix (rows, columns) for each place, one below the other.

Numbers or, for tensor cores of sm_90, their components.
"""


class _Binder:
    """Binds the kernels and the products of one convolution."""

    def __init__(self, kernels: Kernels, work: ConvolutionWork, tiles: Tiles) -> None:
        self._kernels, self._work, self._tiles = kernels, work, tiles
        self._in_components = kernels.gemm_for(*self._sizes()) == "wgmma"

    def _sizes(self) -> tuple[int, int, int]:
        """M, N and K of the products of a place, of all samples at once."""
        count, filters = self._work.samples * self._tiles.each, self._work.filter_count
        channels = self._work.window.channels
        if isinstance(self._work, FilterGradient):
            return filters, channels, count
        return (
            (count, channels, filters)
            if isinstance(self._work, InputGradient)
            else (count, filters, channels)
        )

    def slices(self, operands: int, results: int) -> list[tuple[int, int]]:
        """Cut the samples by the columns of operands, and of results, that their tiles have a row of."""
        itemsize = self._work.images.dtype.itemsize
        each = 2 * self._kernels.components if self._in_components else itemsize
        row = operands * each + results * itemsize
        most = FILTER_SLICE_BYTES if isinstance(self._work, FilterGradient) else SLICE_BYTES
        return sample_slices(self._work.samples, self._tiles.each * self._tiles.places * row, most)

    def numbers(self, empty: Empty, rows: int, columns: int) -> DeviceArray:
        """Make room for numbers: a matrix for each place, one below the other."""
        return empty((self._tiles.places * rows, columns), self._work.images.dtype)

    def operand(self, empty: Empty, rows: int, columns: int) -> Operand:
        """Make room for an operand."""
        if not self._in_components:
            return self.numbers(empty, rows, columns)
        count, places = self._kernels.components, self._tiles.places
        return Batch(places, Components.within(empty, count, places * rows, columns))

    def rooms(self, empty: Empty) -> tuple[Operand, Operand, DeviceArray]:
        """Make room for both operands, and the results, of the products of the largest slice."""
        channels, filters = self._work.window.channels, self._work.filter_count
        if isinstance(self._work, FilterGradient):
            most = self._most(self.slices(channels + filters, 0))
            operands = self.operand(empty, most, filters), self.operand(empty, most, channels)
            return *operands, self.numbers(empty, filters, channels)
        if isinstance(self._work, InputGradient):
            channels, filters = filters, channels
        most = self._most(self.slices(channels, filters))
        operands = self.operand(empty, filters, channels), self.operand(empty, most, channels)
        return *operands, self.numbers(empty, most, filters)

    def _most(self, slices: Sequence[tuple[int, int]]) -> int:
        """Count the tiles of the largest slice."""
        return self._tiles.each * max(stop - start for start, stop in slices)

    def of_samples(self, operand: Operand, samples: int) -> Operand:
        """Return the same memory for the tiles of so many samples."""
        rows = samples * self._tiles.each
        if isinstance(operand, Batch):
            return operand.of_rows(rows)
        return operand.rows(0, self._tiles.places * rows)

    def kernel(self, name: str) -> Kernel:
        return self._kernels.kernel("conv/winograd", f"winograd_{name}", TILE=self._tiles.out)

    def on_tiles(self, name: str, samples: int, columns: int, *arguments: Argument) -> Launch:
        """Bind a kernel for so many columns of the tiles of so many samples."""
        shape = line_shape(samples * self._tiles.each * columns)
        return self.kernel(name).bind(*shape, *window_arguments(samples, self._tiles.window), *arguments)

    def written(self, operand: Operand) -> tuple[Argument, ...]:
        """Return what a kernel writes an operand by: rows of a place, their distance; numbers; components."""
        if isinstance(operand, Batch):
            matrix = operand.matrix
            return operand.rows, matrix.ld, None, matrix.array, matrix.count, matrix.distance
        return operand.shape[0] // self._tiles.places, operand.ld, operand, None, 0, 0

    def products(self, D: DeviceArray, A: Operand, B: Operand, beta: float | None = None) -> list[Launch]:
        """Bind D = A B^T of each place; with ``beta`` D = A^T B + beta D."""
        transposed, beta = beta is not None, beta or 0.0
        if isinstance(A, Batch) and isinstance(B, Batch):
            return [bind_batch(self._kernels, D, A, B, transposed=transposed, beta=beta)]
        assert isinstance(A, DeviceArray) and isinstance(B, DeviceArray)
        launches = []
        for place in range(self._tiles.places):
            d, a, b = (self._at(place, matrices) for matrices in (D, A, B))
            product = Product(d, a, b, transpose_a=transposed, transpose_b=not transposed)
            launches.append(gemm(self._kernels, product, Epilogue(beta=beta)))
        return launches

    def _at(self, place: int, matrices: DeviceArray) -> DeviceArray:
        """Return the matrix of a place."""
        rows = matrices.shape[0] // self._tiles.places
        return matrices.rows(place * rows, (place + 1) * rows)


def bind_winograd(kernels: Kernels, work: ConvolutionWork, tiles: Tiles | None = None) -> Launch:
    """Bind the launches for all samples, a slice at a time; ``tiles``: those of `Tiles.of` by default."""
    tiles = tiles or Tiles.of(work)
    binder = _Binder(kernels, work, tiles)
    if isinstance(work, FilterGradient):
        return in_order(_to_filters(binder, work, tiles, kernels.workspace))
    return in_order(_to_images(binder, work, tiles, kernels.workspace))


def winograd_workspace(kernels: Kernels, work: ConvolutionWork, outs: Sequence[int]) -> int:
    """Count the bytes of transformed tiles, as `bind_winograd` takes them for tiles of one of these sides."""
    taken = 0

    def count(shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        nonlocal taken
        array = DeviceArray(kernels.driver, 0, shape, np.dtype(dtype), shape[-1])
        taken += aligned(array.nbytes)
        return array

    _Binder(kernels, work, Tiles.of(work, outs)).rooms(count)
    return taken


def bind_small_winograd(kernels: Kernels, work: ConvolutionWork) -> Launch:
    """Bind F(2x2), which rounds no more than other versions."""
    return bind_winograd(kernels, work, Tiles.of(work, [2]))


def _to_images(binder: _Binder, work: ConvolutionWork, tiles: Tiles, empty: Empty) -> list[Launch]:
    """Bind it forward or to the input: a convolution of the outputs' gradient, with filters turned around."""
    turned = isinstance(work, InputGradient)
    channels, results = work.window.channels, work.filter_count
    source, result = work.images, work.outputs
    if turned:
        channels, results, source, result = results, channels, result, source
    slices = binder.slices(channels, results)
    U, V, M = binder.rooms(empty)
    inputs = work.filter_count, work.window.channels, work.filters, int(turned)
    shape = line_shape(results * channels)
    launches = [binder.kernel("filters").bind(*shape, *inputs, *binder.written(U))]
    for start, stop in slices:
        count = stop - start
        v, m = binder.of_samples(V, count), M.rows(0, tiles.places * count * tiles.each)
        launches += [
            binder.on_tiles("images", count, channels, source.rows(start, stop), *binder.written(v)),
            *binder.products(m, v, U),
            binder.on_tiles("outputs", count, results, results, m, result.rows(start, stop)),
        ]
    return launches


def _to_filters(binder: _Binder, work: FilterGradient, tiles: Tiles, empty: Empty) -> list[Launch]:
    """Bind the gradient of the filters: the products of all tiles are added up before the last transform."""
    channels, filters = work.window.channels, work.filter_count
    slices = binder.slices(channels + filters, 0)
    S, V, dU = binder.rooms(empty)
    launches = []
    for start, stop in slices:
        count, images, outputs = stop - start, work.images.rows(start, stop), work.outputs.rows(start, stop)
        s, v = binder.of_samples(S, count), binder.of_samples(V, count)
        launches += [
            binder.on_tiles("images", count, channels, images, *binder.written(v)),
            binder.on_tiles("gradients", count, filters, filters, outputs, *binder.written(s)),
            *binder.products(dU, s, v, beta=float(start > 0)),
        ]
    shape = line_shape(filters * channels)
    launches.append(binder.kernel("filter_gradient").bind(*shape, filters, channels, dU, work.filters))
    return launches
