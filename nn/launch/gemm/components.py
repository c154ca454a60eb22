"""A float32 matrix as the sum of bf16 matrices, its components, which tensor cores of sm_90 multiply.

Three components hold all 24 bits of a float32, two hold 16, one holds 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nn.launch.shapes import MAX_GRID_Y
from nn.launch.work import Compute, Work
from nn.model.network import LARGEST
from pyrt.arrays import DeviceArray, Empty
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.kernels import Argument, Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

COMPONENTS = {"float32": 3, "tf32": 2, "bf16": 1}
"""Components of an operand for each accuracy: 24, 16 and 8 bits."""

COLUMN_STEP = 8
"""A view of some columns begins at a multiple of this: 16 bytes of bf16."""

TILE_BYTES = 128
"""Bytes of a tile along k."""

_LINE = 64  # elements to which leading dimensions are rounded up: a transposed tile reads whole lines of them
_SPLIT_BLOCK = (64, 4)
_SPLIT_WIDTH = 4  # neighbours that a thread splits


@dataclass(frozen=True, eq=False)
class Components:
    """A matrix (rows, columns) as the sum of ``count`` bf16 matrices: their bits, one behind the other.

    ``ld`` is the leading dimension, ``distance`` the elements from one term to the next.
    """

    array: DeviceArray
    count: int
    rows: int
    columns: int
    ld: int
    distance: int

    @classmethod
    def empty(
        cls, driver: Driver, count: int, rows: int, columns: int, *, packed: bool = False
    ) -> Components:
        """Room for the components of a matrix of this shape; zeros.

        Rows are padded to whole lines, but where they are ``packed``: these are images.
        """
        made = cls.within(partial(DeviceArray.empty, driver), count, rows, columns, packed=packed)
        stream = driver.create_stream()
        driver.fill(made.array.pointer, 0, made.array.nbytes, stream)
        driver.synchronize_stream(stream)
        return made

    @classmethod
    def within(
        cls,
        empty: Empty,
        count: int,
        rows: int,
        columns: int,
        *,
        packed: bool = False,
    ) -> Components:
        """Make components in an array that ``empty`` makes. No kernel uses what pads its rows."""
        ld = columns if packed else -(-max(columns, 1) // _LINE) * _LINE
        if max(rows, 1) * ld > LARGEST:
            raise UserError(
                f"the components of a {rows} x {columns} matrix are more than 2^31 elements apart: use a "
                "smaller --batch or --hidden, or more ranks"
            )
        # A transposed tile of a view of some columns reads whole lines, past the end of the last row.
        array = empty((count * max(rows, 1) * ld + _LINE,), np.uint16)
        return cls(array, count, rows, columns, ld, max(rows, 1) * ld)

    @classmethod
    def tf32(cls, X: DeviceArray) -> Components:
        """Take a float32 matrix as its one component; tensor cores see 11 bits of it. See `reads_tf32`."""
        rows, columns = X.shape
        return cls(X, 1, rows, columns, X.ld, rows * X.ld)

    @property
    def number(self) -> str:
        """The constant NUMBER of gemm/wgmma.cu."""
        return "tf32" if self.array.dtype == np.float32 else "bfloat16"

    @property
    def matrix(self) -> DeviceArray:
        """All components as one matrix, (count * rows, ld)."""
        return self.array.rows(0, self.count * self.distance).reshape(self.count * self.rows, self.ld)

    @property
    def numbers(self) -> DeviceArray:
        """The same without what pads the rows, (count * rows, columns)."""
        return replace(self.array, shape=(self.count * self.rows, self.columns), ld=self.ld)

    def to_float32(self) -> np.ndarray:
        """Return the sum (rows, columns) of the components, on a device whose memory the host can use."""
        if self.array.dtype == np.float32:
            return self.numbers.host_view()
        bits = self.numbers.host_view().astype(np.uint32) << 16
        return bits.view(np.float32).reshape(self.count, self.rows, self.columns).sum(axis=0)

    def some_columns(self, start: int, stop: int) -> Components:
        """Return a view of columns ``start`` to ``stop``; ``start`` is a multiple of `COLUMN_STEP`."""
        if not 0 <= start <= stop <= self.columns or start % COLUMN_STEP:
            raise IndexError(f"columns {start}:{stop} of {self.columns}")
        return replace(self, array=self.array.rows(start, self.array.size), columns=stop - start)

    def tensor_map(self, transposed: bool, lines: int, width: int = TILE_BYTES) -> DeviceArray:
        """Make the map by which the device finds tiles of all components: ``lines``, ``width`` bytes along k.

        A line is a row or, if the operand is transposed, a column: k then runs down the rows. See `fetch` in
        gemm/wgmma.cu.
        """
        itemsize = self.array.dtype.itemsize
        halves = itemsize // 2  # a float32 is copied as two bf16 elements
        row, term = self.ld * itemsize, self.distance * itemsize
        rows, columns = max(self.rows, 1), max(self.columns, 1)
        if transposed:
            sizes = (_LINE, rows, -(-columns // _LINE), self.count)
            strides, box = (row, _LINE * itemsize, term), (_LINE, width // 2, lines // _LINE, self.count)
        else:
            sizes, strides = (columns * halves, rows, 1, self.count), (row, term, term)
            box = (width // 2, lines, 1, self.count)
        packed = self.array.driver.tensor_map(self.array.pointer, sizes, strides, box)
        return DeviceArray.from_host(self.array.driver, np.frombuffer(packed, np.uint8))


def reads_tf32(X: DeviceArray) -> bool:
    """Return whether tensor cores can read a float32 matrix as it is: rows begin at multiples of 16 bytes."""
    return X.pointer % 16 == 0 and X.ld % 4 == 0 and X.size > 0


SPLIT_AT_ONCE = 2
"""Matrices that one launch splits."""


@dataclass(frozen=True)
class Split(Work):
    """Splits one matrix, or two, into components, in one launch (kernels/gemm/split.cu)."""

    matrices: Sequence[tuple[DeviceArray, Components]]

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return tuple(X for X, _ in self.matrices)

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return tuple(components.numbers for _, components in self.matrices)

    @property
    def results(self) -> tuple[Components, ...]:
        return tuple(components for _, components in self.matrices)

    @property
    def flops(self) -> int:
        return sum(X.size * components.count for X, components in self.matrices)

    def on_device(self, kernels: Kernels) -> Launch:
        kernel = kernels.kernel("gemm/split", "split_into_components")
        matrices = [_widened(*pair) for pair in self.matrices]
        rows, columns = (max(X.shape[axis] for X, _ in matrices) for axis in (0, 1))
        across, down = _SPLIT_BLOCK
        grid = blocks(rows, down), min(blocks(columns, across * _SPLIT_WIDTH), MAX_GRID_Y), len(self.matrices)
        arguments: list[Argument] = []
        for X, into in (matrices[0], matrices[-1]):
            arguments += [*X.shape, X, X.ld, into.count, into.array, into.ld, into.distance]
        return kernel.bind(grid, _SPLIT_BLOCK, *arguments)

    def in_numpy(self) -> Compute:
        pairs = [(X.host_view(), components) for X, components in self.matrices]

        def compute() -> None:
            for x, components in pairs:
                components.numbers.host_view()[:] = split(x, components.count).reshape(-1, x.shape[1])

        return compute


def _widened(X: DeviceArray, into: Components) -> tuple[DeviceArray, Components]:
    """View what has no gaps, as images of few channels, with rows that a block's threads fill."""
    (rows, columns), width = X.shape, _SPLIT_BLOCK[0] * _SPLIT_WIDTH
    if not X.is_contiguous or into.ld != columns:
        return X, into
    while columns < width and rows % 2 == 0:
        rows, columns = rows // 2, columns * 2
    return X.reshape(rows, columns), replace(into, rows=rows, columns=columns, ld=columns)


def split(x: np.ndarray, count: int) -> np.ndarray:
    """Return the bits of so many bf16 components of float32 numbers, (count, *x.shape) uint16.

    Each is the nearest bf16 number, ties to even, to what the ones before leave. Where the first is not
    finite the others are 0.
    """
    result = np.empty((count, *x.shape), np.uint16)
    rest = x.astype(np.float32)
    for place in range(count):
        bits = np.ascontiguousarray(rest).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        result[place] = np.where(np.isnan(rest), bits >> 16 | 0x40, rounded)
        value = (result[place].astype(np.uint32) << 16).view(np.float32)
        with np.errstate(invalid="ignore"):
            rest = np.where(np.isfinite(value), rest - value, np.float32(0))
    return result


class TakeComponents(Protocol):
    """Makes room for components."""

    def __call__(self, count: int, rows: int, columns: int, *, packed: bool = False) -> Components: ...
