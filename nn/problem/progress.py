"""How far a run has come: what it starts from, and what it has to tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Epoch:
    """Mean loss over an epoch's samples while it trained; validation after it; seconds that both took.

    ``validation_loss`` is None where it is not finite. The seconds are those of this epoch alone: what a
    program does between two epochs, and checkpoints there, belong to none. Of an epoch in which the run was
    resumed they count from there.
    """

    epoch: int
    loss: float
    validation_precision: float | None
    validation_loss: float | None
    seconds: float

    @property
    def accuracy(self) -> float | None:
        """The part of the validation samples that is right; None without validation."""
        return self.validation_precision

    def line(self, epochs: int) -> str:
        """Say it in a line, as one of so many epochs."""
        line = f"epoch {self.epoch:{len(str(epochs))}d}/{epochs}  loss {self.loss:.6f}"
        if self.validation_precision is not None:
            line += f"  validation precision {self.validation_precision:.4f}"
        return f"{line}  {self.seconds:.3f} s"


@dataclass(frozen=True)
class Progress:
    """How far a run has come: after so many steps, the epochs that are over, and of the current one the sum
    of its samples' losses."""

    step: int = 0
    epochs: list[Epoch] = field(default_factory=list)
    loss_sum: float = 0.0

    def table(self) -> np.ndarray:
        """Make a row for each epoch, float64: loss, validation precision and loss (NaN for None), seconds.

        A long run has very many epochs: text would take ten times the memory.
        """
        rows = [(one.loss, one.validation_precision, one.validation_loss, one.seconds) for one in self.epochs]
        return np.array(rows, np.float64).reshape(-1, 4)

    @classmethod
    def parsed(cls, content: Mapping[str, Any], table: np.ndarray) -> Progress:
        """Make it from JSON and the table.

        Raises ValueError, TypeError, KeyError or OverflowError if these are malformed.
        """
        step = content["step"]
        if type(step) is not int or step < 0:
            raise ValueError("step")
        if table.dtype != np.float64 or table.shape[1:] != (4,) or not np.isfinite(table[:, ::3]).all():
            raise ValueError("epochs")
        rows = enumerate(table.tolist(), 1)
        epochs = [
            Epoch(number, loss, _known(precision), _known(of_validation), seconds)
            for number, (loss, precision, of_validation, seconds) in rows
        ]
        return cls(step, epochs, float(content["loss_sum"]))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
