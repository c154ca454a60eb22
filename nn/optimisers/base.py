"""What an optimiser is to the rest: its rule in NumPy, and how its struct is packed for kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np


class Optimiser(Protocol):
    """The rule by which parameters follow their gradients, and what it keeps from step to step.

    An optimiser is a file in nn/optimisers and its rule for kernels, in kernels/nn/updates.
    """

    @property
    def reg(self) -> float:
        """The weight decay: L2 regularisation."""

    @property
    def header(self) -> str:
        """The constant UPDATE of kernels: the header with the rule."""

    @property
    def states(self) -> Sequence[str]:
        """Names of the arrays, each as long as the parameters, that it keeps; they begin as zeros."""

    @property
    def clock(self) -> int:
        """Count the float64 numbers that it keeps about steps; 0: it need not know which step it is."""

    def clock_at(self, step: int) -> Sequence[float]:
        """Return these numbers after so many steps."""

    def count_step(self, clock: np.ndarray) -> None:
        """Make these numbers, on the host, those of one step more."""

    def packed_format(self, real: str) -> str:
        """Return the format of the rule's struct, of `struct`; ``real`` is that of a number."""

    def fields(self, states: Sequence[int], clock: int) -> Sequence[float]:
        """Return the values of that struct; states and clock are pointers, 0 where there is none."""

    @property
    def flops(self) -> tuple[int, int]:
        """Count the operations for each parameter, and the further ones for each weight."""

    def in_numpy(self, slices: Slices) -> Callable[[], object]:
        """Bind the rule to a part of the arrays on the host."""


@dataclass(frozen=True)
class Slices:
    """A part of the flat arrays on the host; of the parameters the first ``decayed`` are weights."""

    p: np.ndarray
    g: np.ndarray
    states: Sequence[np.ndarray]
    decayed: int
    clock: np.ndarray
    scratch: np.ndarray


def rates_of(optimiser: Any) -> list[str]:
    """List the rates of an optimiser or its class: fields of the dataclass, named as the options are."""
    return [field.name for field in fields(optimiser)]
