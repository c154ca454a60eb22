"""The operations by which a rank keeps a constraint on weights, between a gradient and its exchange."""

from __future__ import annotations

from nn.launch.constrain import KeepZeros, SumShared
from nn.launch.work import Work
from nn.model.constraint import Constraint
from nn.parallel.shard import Shard
from nn.program.operations import BACKWARD, Operation
from pyrt.arrays import Arena, DeviceArray
from pyrt.errors import UserError


class ConstrainedGradients:
    """A constraint on this rank's part of the weights.

    Each rank changes its own gradients: what is summed over weights may be summed over ranks afterwards, and
    weights that share a value still get the same bits.
    """

    def __init__(self, shard: Shard, constraint: Constraint, parameters: Arena) -> None:
        """Raises UserError where ranks have parts of a layer whose weights share values."""
        if constraint.codes and not shard.plan.is_data:
            raise UserError("--plan: weights that share values must be whole on each rank: use --plan data")
        self._parameters = parameters
        self._members = {layer: _uploaded(constraint, layer, parameters) for layer in constraint.codes}

    def operations(self, layer: int, gradients: Arena) -> list[Operation]:
        """List what follows the product that makes a layer's weight gradient."""
        dW = gradients[f"W{layer}"]
        works: list[Work] = [KeepZeros(self._parameters[f"W{layer}"], dW)]
        if layer in self._members:
            works.append(SumShared(*self._members[layer], dW))
        return [Operation(f"constrain gradient {layer}", BACKWARD, work) for work in works]


def _uploaded(constraint: Constraint, layer: int, parameters: Arena) -> tuple[DeviceArray, DeviceArray]:
    """Put the weights of each value on the device."""
    driver = parameters.flat.driver
    starts, places = (DeviceArray.from_host(driver, array) for array in constraint.members(layer))
    return starts, places
