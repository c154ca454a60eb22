"""Launches of convolutions with Winograd's transforms around products (kernels/conv/winograd.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nn.launch.conv.convolution import ConvolutionWork, FilterGradient, InputGradient, sample_slices
from nn.launch.conv.gathered import gathered
from nn.launch.conv.window import window_arguments
from nn.launch.gemm import gemm
from nn.launch.gemm.components import Components
from nn.launch.gemm.product import PLAIN, Epilogue, Product
from nn.launch.gemm.wgmma import ComponentProduct
from nn.launch.shapes import line_shape
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.kernels import Argument, Kernel, Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_SIDE = 3
"""Of the windows that it can take."""

OUTS = (2, 4)
"""Sides of a tile of results: F(2x2, 3x3) and F(4x4, 3x3)."""


def fits_winograd(work: ConvolutionWork) -> bool:
    """Return whether it can do the work: windows of 3 x 3 at stride 1."""
    window = work.window
    return (window.rows, window.columns, window.stride) == (_SIDE, _SIDE, 1)


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


@dataclass(frozen=True)
class Operand:
    """One side of the products: a matrix (rows, columns) for each place, one below the other.

    As numbers or, for tensor cores of sm_90, as their components.
    """

    matrix: DeviceArray | Components
    places: int

    @property
    def rows(self) -> int:
        """Rows of the matrix of a place."""
        matrix = self.matrix
        return (matrix.rows if isinstance(matrix, Components) else matrix.shape[0]) // self.places

    def of_rows(self, rows: int) -> Operand:
        """Return the same memory for matrices of fewer rows."""
        return Operand(_some_rows(self.matrix, 0, self.places * rows), self.places)

    def at(self, place: int) -> DeviceArray | Components:
        """Return the matrix of a place."""
        return _some_rows(self.matrix, place * self.rows, (place + 1) * self.rows)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What a kernel writes it by: rows of a place and their distance; numbers; components."""
        matrix = self.matrix
        if isinstance(matrix, Components):
            return self.rows, matrix.ld, None, matrix.array, matrix.count, matrix.distance
        return self.rows, matrix.ld, matrix, None, 0, 0


def _some_rows(matrix: DeviceArray | Components, start: int, stop: int) -> DeviceArray | Components:
    return matrix.some_rows(start, stop) if isinstance(matrix, Components) else matrix.rows(start, stop)


class _Binder:
    """Binds the kernels and products of one convolution."""

    def __init__(self, kernels: Kernels, work: ConvolutionWork, tiles: Tiles, in_components: bool) -> None:
        self._kernels, self._work, self._tiles = kernels, work, tiles
        self._in_components = in_components
        self._bytes = 2 * kernels.components if in_components else work.images.dtype.itemsize

    def slices(self, operands: int, results: int) -> list[tuple[int, int]]:
        """Cut the samples by the columns of operands, and of results, that their tiles have a row of."""
        row = operands * self._bytes + results * self._work.images.dtype.itemsize
        return sample_slices(self._work.samples, self._tiles.each * self._tiles.places * row)

    def numbers(self, rows: int, columns: int) -> DeviceArray:
        """Make room for the products: a matrix for each place, one below the other."""
        shape = self._tiles.places * rows, columns
        return DeviceArray.empty(self._kernels.driver, shape, self._work.images.dtype)

    def operand(self, rows: int, columns: int) -> Operand:
        """Make room for an operand."""
        places = self._tiles.places
        if not self._in_components:
            return Operand(self.numbers(rows, columns), places)
        driver, count = self._kernels.driver, self._kernels.components
        return Operand(Components.empty(driver, count, places * rows, columns), places)

    def kernel(self, name: str) -> Kernel:
        return self._kernels.kernel("conv/winograd", f"winograd_{name}", TILE=self._tiles.out)

    def of_images(self, name: str, samples: int, columns: int, *arguments: Argument) -> Launch:
        """Bind a kernel that transforms the tiles of so many samples."""
        shape = line_shape(samples * self._tiles.each * columns)
        return self.kernel(name).bind(*shape, *window_arguments(samples, self._tiles.window), *arguments)

    def products(self, D: DeviceArray, A: Operand, B: Operand, beta: float | None = None) -> list[Launch]:
        """Bind D = A B^T of each place; with ``beta`` D = A^T B + beta D."""
        rows, launches = D.shape[0] // self._tiles.places, []
        epilogue = PLAIN if beta is None else Epilogue(beta=beta)
        for place in range(self._tiles.places):
            d, a, b = D.rows(place * rows, (place + 1) * rows), A.at(place), B.at(place)
            layout = beta is not None, beta is None
            if isinstance(a, Components) and isinstance(b, Components):
                product = Product(d, a.first, b.first, *layout)
                launches.append(ComponentProduct(product, a, b, epilogue).on_device(self._kernels))
            elif isinstance(a, DeviceArray) and isinstance(b, DeviceArray):
                launches.append(gemm(self._kernels, Product(d, a, b, *layout), epilogue))
        return launches


def bind_winograd(kernels: Kernels, work: ConvolutionWork, tiles: Tiles | None = None) -> Launch:
    """Bind the launches for all samples, a slice at a time; ``tiles``: those of `Tiles.of` by default."""
    tiles = tiles or Tiles.of(work)
    sizes = work.samples * tiles.each, work.filter_count, work.window.channels
    if isinstance(work, FilterGradient):
        sizes = *sizes[1:], sizes[0]
    binder = _Binder(kernels, work, tiles, kernels.gemm_for(*sizes) == "wgmma")
    if isinstance(work, FilterGradient):
        return in_order(_to_filters(binder, work, tiles))
    return in_order(_to_images(binder, work, tiles))


def _to_images(binder: _Binder, work: ConvolutionWork, tiles: Tiles) -> list[Launch]:
    """Bind it forward or to the input: a convolution of the outputs' gradient, with filters turned around."""
    turned = isinstance(work, InputGradient)
    channels, results = work.window.channels, work.filter_count
    source, result = work.images, work.outputs
    if turned:
        channels, results, source, result = results, channels, result, source
    slices = binder.slices(channels, results)
    most = tiles.each * max(stop - start for start, stop in slices)
    U, V, M = binder.operand(results, channels), binder.operand(most, channels), binder.numbers(most, results)
    sizes = work.filter_count, work.window.channels
    shape = line_shape(results * channels)
    launches = [binder.kernel("filters").bind(*shape, *sizes, work.filters, int(turned), *U.arguments)]
    for start, stop in slices:
        count = stop - start
        v, m = V.of_rows(count * tiles.each), M.rows(0, count * tiles.each * tiles.places)
        launches += [
            binder.of_images("images", count, channels, source.rows(start, stop), *v.arguments),
            *binder.products(m, v, U),
            binder.of_images("outputs", count, results, results, m, result.rows(start, stop)),
        ]
    return launches


def _to_filters(binder: _Binder, work: FilterGradient, tiles: Tiles) -> list[Launch]:
    """Bind the gradient of the filters: the products of all tiles are added up before the last transform."""
    channels, filters = work.window.channels, work.filter_count
    slices = binder.slices(channels + filters, 0)
    most = tiles.each * max(stop - start for start, stop in slices)
    S, V, dU = (
        binder.operand(most, filters),
        binder.operand(most, channels),
        binder.numbers(filters, channels),
    )
    launches = []
    for start, stop in slices:
        count = stop - start
        s, v = S.of_rows(count * tiles.each), V.of_rows(count * tiles.each)
        outputs = work.outputs.rows(start, stop)
        launches += [
            binder.of_images("images", count, channels, work.images.rows(start, stop), *v.arguments),
            binder.of_images("gradients", count, filters, filters, outputs, *s.arguments),
            *binder.products(dU, s, v, beta=float(start > 0)),
        ]
    shape = line_shape(filters * channels)
    launches.append(binder.kernel("filter_gradient").bind(*shape, filters, channels, dU, work.filters))
    return launches
