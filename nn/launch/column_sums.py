"""Sums over the rows of a matrix, in a fixed order (kernels/nn/column_sums.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.shapes import Block, Grid, require_shape
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_THREADS = 512
_WIDTH = 8  # columns a block: 32 bytes of float32, the least that memory moves at once


def column_sums_shape(columns: int) -> tuple[Grid, Block]:
    """Return grid and block; few columns leave more threads to share the rows of each."""
    width = min(1 << max(columns - 1, 0).bit_length(), _WIDTH)
    return (blocks(columns, width),), (width, _THREADS // width)


@dataclass(frozen=True)
class ColumnSums(Work):
    """sums[j] = sum of X[:, j]; X (rows, columns), perhaps a column slice, sums (columns,)."""

    kind = "column sums"
    X: DeviceArray
    sums: DeviceArray

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return (self.X,)

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.sums,)

    @property
    def flops(self) -> int:
        return self.X.size

    def on_device(self, kernels: Kernels) -> Launch:
        if len(self.X.shape) != 2:
            raise ValueError(f"column_sums: X has shape {self.X.shape}, not two dimensions")
        rows, columns = self.X.shape
        require_shape("column_sums", (columns,), sums=self.sums)
        kernel = kernels.kernel("nn/column_sums", "column_sums")
        return kernel.bind(*column_sums_shape(columns), rows, columns, self.X, self.X.ld, self.sums)

    def in_numpy(self) -> Compute:
        return partial(np.sum, self.X.host_view(), axis=0, out=self.sums.host_view())
