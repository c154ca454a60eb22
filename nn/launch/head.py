"""The end of the forward pass: output function, loss and its gradient (kernels/nn/head.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.shapes import Block, Grid, matrix_shape, require_shape
from nn.launch.work import Compute, Work
from nn.model import reference
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch, blocks

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

_BLOCK = (32, 4)


def head_shape(rows: int) -> tuple[Grid, Block]:
    """Return grid and block of a kernel with a warp for each row."""
    return (blocks(rows, _BLOCK[1]),), _BLOCK


@dataclass(frozen=True)
class Head(Work):
    """Z becomes dZ, and ``losses`` the loss of each row, both times ``scale``, for logits Z + b.

    ``loss`` is softmax or sigmoid; Z (rows, classes), b (classes,), labels (rows,) int32, losses (rows,).
    """

    kind = "head"
    loss: str
    Z: DeviceArray
    b: DeviceArray
    labels: DeviceArray
    losses: DeviceArray
    scale: float

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.Z, self.b, self.labels

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.Z, self.losses

    @property
    def flops(self) -> int:
        return 8 * self.Z.size

    def on_device(self, kernels: Kernels) -> Launch:
        Z = self.Z
        rows, classes = matrix_shape("head", Z=Z)
        require_shape("head", (classes,), b=self.b)
        require_shape("head", (rows,), labels=self.labels, loss=self.losses)
        kernel = kernels.kernel("nn/head", f"{self.loss}_head")
        shape = head_shape(rows)
        return kernel.bind(*shape, rows, classes, self.scale, Z, self.b, self.labels, Z, self.losses)

    def in_numpy(self) -> Compute:
        z, bias, truth, loss = (array.host_view() for array in (self.Z, self.b, self.labels, self.losses))
        rows, factor = np.arange(len(z)), z.dtype.type(self.scale)

        def compute() -> None:
            np.add(z, bias, out=z)
            # In float64: the losses of ten classes may add up to more than the largest float32.
            loss[:] = reference.losses(z.astype(np.float64), truth, self.loss) * self.scale
            z[:] = reference.probabilities(z, self.loss)
            z[rows, truth] -= 1
            np.multiply(z, factor, out=z)

        return compute
