"""Some channels of images, copied for a rank that convolves these alone (kernels/conv/take_channels.cu)."""

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
class TakeChannels(Work):
    """Y = X; X (pixels, channels) is a view of some columns, Y has no gaps."""

    kind = "take channels"
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
        require_shape("take_channels", self.X.shape, Y=self.Y)
        pixels, channels = self.X.shape
        kernel = kernels.kernel("conv/take_channels", "take_channels")
        return kernel.bind(*plane_shape(pixels, channels), pixels, channels, self.X, self.X.ld, self.Y)

    def in_numpy(self) -> Compute:
        return partial(np.copyto, self.Y.host_view(), self.X.host_view())
