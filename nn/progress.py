"""How far a run has come: what it starts from, and what it has to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Epoch:
    """Mean loss over an epoch's samples while it trained; validation after it; seconds it took.

    ``validation_loss`` is None where it is not finite. Without validation the seconds count from one epoch's
    last loss to the next one's, which the host reads some steps later: those of a few short epochs mean
    little.
    """

    epoch: int
    loss: float
    validation_precision: float | None
    validation_loss: float | None
    seconds: float

    @property
    def is_numbers(self) -> bool:
        """Whether that is what it was made of."""
        of_validation = (self.validation_precision, self.validation_loss)
        return (
            type(self.epoch) is int
            and all(isinstance(value, int | float) for value in (self.loss, self.seconds))
            and all(value is None or isinstance(value, int | float) for value in of_validation)
        )


@dataclass(frozen=True)
class Progress:
    """How far a run has come: after so many steps, the epochs that are over, and of the current one the sum
    of its samples' losses."""

    step: int = 0
    epochs: list[Epoch] = field(default_factory=list)
    loss_sum: float = 0.0

    @classmethod
    def parsed(cls, content: Mapping[str, Any]) -> Progress:
        """From JSON; ValueError, TypeError, KeyError or OverflowError for what is none."""
        step, epochs = content["step"], [Epoch(**epoch) for epoch in content["epochs"]]
        if type(step) is not int or step < 0:
            raise ValueError("step")
        if not all(epoch.is_numbers for epoch in epochs):
            raise TypeError("epochs")
        return cls(step, epochs, float(content["loss_sum"]))
