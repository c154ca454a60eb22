"""Changes gradients so that pruned weights stay 0 and shared ones equal (kernels/nn/constrain.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.shapes import line_shape, require_shape
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_THREADS = 256
"""In a block that sums, as kernels/nn/constrain.cu has it."""


@dataclass(frozen=True)
class KeepZeros(Work):
    """dW becomes 0 where W is 0; two arrays of one shape."""

    W: DeviceArray
    dW: DeviceArray

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.W, self.dW

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.dW,)

    @property
    def flops(self) -> int:
        return 0

    def on_device(self, kernels: Kernels) -> Launch:
        require_shape("keep_zeros", self.W.shape, dW=self.dW)
        kernel = kernels.kernel("nn/constrain", "keep_zeros")
        return kernel.bind(*line_shape(self.W.size), self.W.size, self.W, self.dW)

    def in_numpy(self) -> Compute:
        W, dW = self.W.host_view(), self.dW.host_view()
        return lambda: np.copyto(dW, 0, where=W == 0)


@dataclass(frozen=True)
class SumShared(Work):
    """Each gradient becomes the sum of those of the weights that share its value.

    ``starts`` (values + 1,) and ``places``, int32: of the weights of each value, flat, as
    `nn.model.constraint.Constraint.members` lists them.
    """

    starts: DeviceArray
    places: DeviceArray
    dW: DeviceArray

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.starts, self.places, self.dW

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.dW,)

    @property
    def flops(self) -> int:
        return self.places.size

    def on_device(self, kernels: Kernels) -> Launch:
        kernel = kernels.kernel("nn/constrain", "sum_shared")
        values = self.starts.size - 1
        return kernel.bind((values,), (_THREADS,), self.starts, self.places, self.dW)

    def in_numpy(self) -> Compute:
        starts, places = self.starts.host_view(), self.places.host_view()
        gradients = self.dW.host_view().reshape(-1)

        def compute() -> None:
            values = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
            sums = np.bincount(values, weights=gradients[places], minlength=1)
            gradients[places] = sums[values]

        return compute
