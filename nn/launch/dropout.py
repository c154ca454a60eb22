"""Dropout, its gradient, and the count of steps that it draws by (kernels/nn/dropout.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nn.launch.shapes import line_shape, require_shape
from nn.launch.work import Compute, Work
from nn.model import dropout
from nn.model.dropout import Part, halves
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


@dataclass(frozen=True)
class Draw:
    """What decides which elements of a layer's outputs are kept."""

    seed: int
    step: DeviceArray
    """(1,) int32: the step of training that it is, counted from 1."""
    place: int
    """Of the layer in the network."""
    part: Part
    """What this rank has of the outputs for the whole batch."""


@dataclass(frozen=True)
class CountStep(Work):
    """A step of training begins."""

    step: DeviceArray

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return (self.step,)

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.step,)

    @property
    def flops(self) -> int:
        return 0

    def on_device(self, kernels: Kernels) -> Launch:
        return kernels.kernel("nn/dropout", "count_step").bind((1,), (1,), self.step)

    def in_numpy(self) -> Compute:
        step = self.step.host_view()
        return lambda: np.add(step, 1, out=step)


@dataclass(frozen=True)
class Drop(Work):
    """B = A scaled where it is kept, else 0; A and B (rows, columns), ``kept`` uint8 says where."""

    kind = "dropout"
    A: DeviceArray
    B: DeviceArray
    kept: DeviceArray
    layer: dropout.Dropout
    draw: Draw

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.A, self.draw.step

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.B, self.kept

    @property
    def flops(self) -> int:
        return self.A.size

    def on_device(self, kernels: Kernels) -> Launch:
        draw, part = self.draw, self.draw.part
        require_shape("dropout", (part.rows, part.columns), A=self.A, B=self.B, kept=self.kept)
        kernel, (lines, length) = kernels.kernel("nn/dropout", "dropout"), part.lines
        return kernel.bind(
            *line_shape(lines * part.blocks),
            *(lines, length, part.blocks, part.first, part.units),
            *(*halves(draw.seed), draw.place, draw.step, self.layer.threshold, self.layer.scale),
            *(self.A, self.B, self.kept),
        )

    def in_numpy(self) -> Compute:
        A, B, kept, step = (array.host_view() for array in (self.A, self.B, self.kept, self.draw.step))
        scale, draw = A.dtype.type(self.layer.scale), self.draw

        def compute() -> None:
            kept[:] = dropout.kept(self.layer, draw.seed, int(step[0]), draw.place, draw.part)
            B.fill(0)
            np.multiply(A, scale, out=B, where=kept.astype(bool))

        return compute


@dataclass(frozen=True)
class DropGradient(Work):
    """dA = dB scaled where it was kept, else 0."""

    kind = "dropout gradient"
    dA: DeviceArray
    dB: DeviceArray
    kept: DeviceArray
    layer: dropout.Dropout

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.dB, self.kept

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.dA,)

    @property
    def flops(self) -> int:
        return self.dA.size

    def on_device(self, kernels: Kernels) -> Launch:
        require_shape("dropout_backward", self.dA.shape, dA=self.dA, dB=self.dB, kept=self.kept)
        kernel, size = kernels.kernel("nn/dropout", "dropout_backward"), self.dA.size
        return kernel.bind(*line_shape(size), size, self.layer.scale, self.kept, self.dB, self.dA)

    def in_numpy(self) -> Compute:
        dA, dB, kept = (array.host_view() for array in (self.dA, self.dB, self.kept))
        scale = dA.dtype.type(self.layer.scale)

        def compute() -> None:
            dA.fill(0)
            np.multiply(dB, scale, out=dA, where=kept.astype(bool))

        return compute
