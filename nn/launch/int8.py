"""Dense layers of signed bytes (kernels/quantised/int8.cu, int8_mma.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.gemm.mma import has_mma
from nn.launch.quantised import THREADS, QuantisedProduct, QuantisedRows
from pyrt.arrays import aligned
from pyrt.driver import Driver
from pyrt.kernels import Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

INT8_VERSIONS = ("thread", "warp", "mma")
"""From the first to the fastest for many samples."""

MOST = 127
"""The largest number of either sign."""

MOST_INPUTS = (2**31 - 1) // MOST**2
"""So many products of the largest numbers fit in int32."""

FEW = 8
"""Samples up to which W is read for each of them anew."""

_STEP = 64  # numbers along a row that int8_mma takes at once; rows are filled up to a multiple
_SIDE = 64  # units and samples of a block of int8_mma
_LEAST_STEPS = 8  # of a part of a row
_BLOCKS = 4  # of int8_mma on a multiprocessor


def quantise(W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise each row: (rows, columns) float32 to int8 numbers, filled up to 64, and scales float32.

    scale = max |w| / 127, q = w / scale to the nearest; a row that is not finite has zeros and such a scale.
    """
    scales = (np.abs(W).max(axis=1, initial=0) / np.float32(MOST)).astype(np.float32)
    usable = (scales > 0) & np.isfinite(scales)
    rows = np.where(usable[:, None], W, np.float32(0))
    numbers = np.rint(rows / np.where(usable, scales, np.float32(1))[:, None]).clip(-MOST, MOST)
    padding = -W.shape[1] % _STEP
    return np.pad(numbers, ((0, 0), (0, padding))).astype(np.int8), scales


def int8_rows(driver: Driver, W: np.ndarray) -> QuantisedRows:
    """Quantise weights (units, inputs) and copy them to the device.

    Raises ValueError for so many inputs that sums may not fit in int32.
    """
    if W.shape[1] > MOST_INPUTS:
        raise ValueError(f"int8: sums of {W.shape[1]} products may be too large, at most {MOST_INPUTS} fit")
    return QuantisedRows.from_host(driver, W.shape[1], *quantise(W))


@dataclass(frozen=True)
class Int8Product(QuantisedProduct):
    """Y = f(scales (X8 W8^T) + bias): X8 and W8 are int8, with a scale for each sample and each unit.

    ``version`` is ``auto`` or one of `INT8_VERSIONS`. Sums are exact.
    """

    kind = "int8 product"
    file = "int8"
    number = np.int8

    def choose(self, kernels: Kernels) -> str:
        if self.version != "auto":
            return self.version
        return "mma" if self.X.shape[0] > FEW and has_mma(kernels.driver.architecture) else "warp"

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.W.numbers.shape[1],)

    def quantise(self, kernels: Kernels, X: QuantisedRows) -> Launch:
        kernel = kernels.kernel("quantised/int8", "quantise_rows", ACTIVATION=self.activation)
        return kernel.bind((X.rows,), (THREADS,), X.columns, *self.sizes, self.X, X.numbers, X.scales)

    def _steps(self, kernels: Kernels) -> tuple[int, int]:
        """Return the steps along k of a block of int8_mma, and the parts that k is cut into."""
        units, length = self.W.numbers.shape
        tiles = blocks(units, _SIDE) * blocks(self.X.shape[0], _SIDE)
        steps = choose_steps(tiles, length // _STEP, kernels.driver.multiprocessors)
        return steps, blocks(length // _STEP, steps)

    def many_workspace(self, kernels: Kernels) -> int:
        _, parts = self._steps(kernels)
        return aligned(4 * parts * self.Y.size)

    def bind_many(self, kernels: Kernels, X: QuantisedRows) -> Launch:
        units, length = self.W.numbers.shape
        grid = blocks(units, _SIDE), blocks(X.rows, _SIDE)
        steps, parts = self._steps(kernels)
        sums = kernels.workspace((parts, X.rows, units), np.int32)
        constants = {"ACTIVATION": self.activation}
        first = kernels.kernel("quantised/int8_mma", "int8_mma", **constants)
        second = kernels.kernel("quantised/int8_mma", "int8_add_parts", **constants)
        sizes = X.rows, units, length, steps
        scales = X.scales, self.W.scales
        return in_order(
            [
                first.bind((*grid, parts), (128,), *sizes, X.numbers, self.W.numbers, sums),
                second.bind(
                    (blocks(units, THREADS), X.rows),
                    (THREADS,),
                    *(X.rows, units, parts, sums, *scales, self.bias, self.Y),
                ),
            ]
        )

    def quantised(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return quantise(x)

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return x.astype(np.float64) @ w.astype(np.float64).T  # exact: integers below 2^53


def choose_steps(tiles: int, steps: int, multiprocessors: int) -> int:
    """Choose the steps along k of a block: with so many tiles, `_BLOCKS` for each multiprocessor."""
    parts = max(1, min(_BLOCKS * multiprocessors // tiles, steps // _LEAST_STEPS))
    return blocks(steps, parts)
