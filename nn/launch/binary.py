"""Dense layers of signs, XNOR and count (kernels/quantised/binary.cu; Rastegari et al., XNOR-Net, 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.quantised import THREADS, QuantisedProduct, QuantisedRows
from pyrt.driver import Driver
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

BINARY_VERSIONS = ("thread", "warp", "tile")
"""From the first to the fastest for many samples."""

FEW = 8
"""Samples up to which W is read for each of them anew."""

_WORD = 32  # signs
_VECTOR = 4  # words that a lane loads together; rows are filled up to a multiple
_SIDE = 32  # units and samples of a block of binary_tile
_ACROSS = 16  # threads along a side


def binarise(W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Take signs and scales of each row: (rows, columns) float32 to bits in uint32 words, and mean |w|.

    A bit is 1 where a number is negative; column 32 i + j is bit j of word i. Rows are filled up with zeros
    to whole 4 words.
    """
    rows, columns = W.shape
    bits = np.pad(W < 0, ((0, 0), (0, -columns % (_WORD * _VECTOR))))
    words = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    return words.reshape(rows, -1), np.abs(W).mean(axis=1, dtype=np.float64).astype(np.float32)


def signs(bits: np.ndarray, columns: int) -> np.ndarray:
    """Return the signs (rows, columns) that bits stand for, float64."""
    flat = np.unpackbits(bits.astype("<u4").view(np.uint8), axis=1, count=columns, bitorder="little")
    return 1.0 - 2.0 * flat


def binary_rows(driver: Driver, W: np.ndarray) -> QuantisedRows:
    """Binarise weights (units, inputs) and copy them to the device."""
    return QuantisedRows.from_host(driver, W.shape[1], *binarise(W))


@dataclass(frozen=True)
class BinaryProduct(QuantisedProduct):
    """Y = f(alpha beta (sign(X) sign(W)^T) + bias): alpha the mean of |W| of a unit, beta of |X| of a sample.

    ``version`` is ``auto`` or one of `BINARY_VERSIONS`. Sums of signs are exact; the sign of 0 is +1.
    """

    kind = "binary product"
    file = "binary"
    number = np.uint32

    def choose(self, kernels: Kernels) -> str:
        if self.version != "auto":
            return self.version
        return "tile" if self.X.shape[0] > FEW else "warp"

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.W.columns, self.W.numbers.shape[1]

    def quantise(self, kernels: Kernels, X: QuantisedRows) -> Launch:
        kernel = kernels.kernel("quantised/binary", "binarise_rows", ACTIVATION=self.activation)
        return kernel.bind((X.rows,), (THREADS,), *self.sizes, self.X, X.numbers, X.scales)

    def bind_many(self, kernels: Kernels, X: QuantisedRows) -> Launch:
        kernel = kernels.kernel("quantised/binary", "binary_tile", ACTIVATION=self.activation)
        grid = blocks(self.W.rows, _SIDE), blocks(X.rows, _SIDE)
        sizes = X.rows, self.W.rows, *self.sizes
        return kernel.bind(grid, (_ACROSS, _ACROSS), *sizes, *self.operands(X), self.bias, self.Y)

    def quantised(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return binarise(x)

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return signs(x, self.W.columns) @ signs(w, self.W.columns).T
