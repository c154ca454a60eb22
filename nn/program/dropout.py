"""The operations of dropout, behind layer ``number``; and what all of a training draws from."""

from __future__ import annotations

from dataclasses import dataclass

from nn.input.augment import Augmenter
from nn.launch.augment import Augmented
from nn.launch.dropout import CountStep, Draw, Drop, DropGradient
from nn.model.dropout import Dropout, Part
from nn.program.operations import BACKWARD, FORWARD, Operation
from pyrt.arrays import DeviceArray
from pyrt.redistribute.regions import Region


@dataclass(frozen=True)
class Draws:
    """What the layers of a training step draw from; a group's samples begin at ``first`` of the batch.

    With an ``augmenter`` its images are changed too.
    """

    seed: int
    step: DeviceArray
    """(1,) int32: the step that it is, counted from 1."""
    first: int
    augmenter: Augmenter | None = None

    @property
    def augmented(self) -> Augmented | None:
        """How images are changed, if they are."""
        return Augmented(self.augmenter, self.step) if self.augmenter is not None else None

    def of(self, place: int, held: Region, pixels: int, units: int) -> Draw:
        """Return what decides for the layer at this place; a rank has these samples and units of its outputs.

        There are so many ``units`` in each of the ``pixels`` of a sample.
        """
        samples, own = held.shape
        first = (self.first + held.rows[0]) * pixels * units + held.columns[0]
        return Draw(self.seed, self.step, place, Part(samples * pixels, own, units, first))


def count_step(step: DeviceArray) -> Operation:
    """Count a step that begins, before it draws."""
    return Operation("count step", FORWARD, CountStep(step))


@dataclass(frozen=True)
class DropoutOperations:
    """The operations of one dropout layer while a network trains."""

    layer: Dropout
    number: int
    draw: Draw

    def forward(self, A: DeviceArray, output: DeviceArray, places: DeviceArray | None) -> Operation:
        """Drop some units and scale the others; ``places`` says which are kept."""
        assert places is not None, "dropout keeps which units it keeps"
        part = self.draw.part
        A, output, places = (array.reshape(part.rows, part.columns) for array in (A, output, places))
        return Operation(f"dropout {self.number}", FORWARD, Drop(A, output, places, self.layer, self.draw))

    def backward(
        self, dA: DeviceArray, gradient: DeviceArray, places: DeviceArray | None, made: DeviceArray
    ) -> Operation:
        """The gradient of the output to that of the input."""
        assert places is not None, "dropout keeps which units it keeps"
        work = DropGradient(dA, gradient, places, self.layer)
        return Operation(f"dropout gradient {self.number}", BACKWARD, work)
