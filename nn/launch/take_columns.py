"""Some columns of a matrix, copied without gaps: kernels take no others (kernels/nn/take_columns.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.shapes import plane_shape, require_shape
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


@dataclass(frozen=True)
class TakeColumns(Work):
    """Y = X; X (rows, columns) is a view of some columns, Y has no gaps."""

    kind = "take columns"
    X: DeviceArray
    Y: DeviceArray

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return (self.X,)

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.Y,)

    @property
    def flops(self) -> int:
        return 0

    def on_device(self, kernels: Kernels) -> Launch:
        require_shape("take_columns", self.X.shape, Y=self.Y)
        rows, columns = self.X.shape
        kernel = kernels.kernel("nn/take_columns", "take_columns")
        return kernel.bind(*plane_shape(rows, columns), rows, columns, self.X, self.X.ld, self.Y)

    def in_numpy(self) -> Compute:
        return partial(np.copyto, self.Y.host_view(), self.X.host_view())
