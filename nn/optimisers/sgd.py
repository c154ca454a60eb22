"""Stochastic gradient descent with momentum: v = momentum v + g, p -= lr v, where g is gradient + reg p.

Biases have no ``reg``. Without momentum p -= lr g, and there is no v.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nn.optimisers.base import Slices


@dataclass(frozen=True)
class Sgd:
    """Learning rate, momentum and weight decay."""

    lr: float = 0.07
    momentum: float = 0.9
    reg: float = 1e-4

    header = "nn/updates/sgd.cuh"
    clock = 0

    def __str__(self) -> str:
        return f"learning rate {self.lr:g}, momentum {self.momentum:g}, reg {self.reg:g}"

    @property
    def states(self) -> Sequence[str]:
        """Name the velocity; none without momentum."""
        return ("v",) if self.momentum else ()

    def clock_at(self, step: int) -> Sequence[float]:
        return ()

    def count_step(self, clock: np.ndarray) -> None:
        pass

    def packed_format(self, real: str) -> str:
        return f"3{real}P"

    def fields(self, states: Sequence[int], clock: int) -> Sequence[float]:
        return self.lr, self.momentum, self.reg, *(states or [0])

    @property
    def flops(self) -> tuple[int, int]:
        return 4 if self.momentum else 2, 2

    def step(
        self, p: np.ndarray, g: np.ndarray, states: Sequence[np.ndarray], step: int
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return new parameters and states, for the reference; g has the decay in it, steps count from 1."""
        if not states:
            return p - self.lr * g, []
        v = self.momentum * states[0] + g
        return p - self.lr * v, [v]

    def in_numpy(self, slices: Slices) -> Callable[[], object]:
        """Bind the update of a part of the arrays, in place: g is changed too."""
        p, g, scratch, decayed = slices.p, slices.g, slices.scratch, slices.decayed
        v = slices.states[0] if slices.states else None
        lr, momentum, reg = self.lr, self.momentum, self.reg

        def update() -> None:
            np.multiply(p[:decayed], reg, out=scratch[:decayed])
            np.add(g[:decayed], scratch[:decayed], out=g[:decayed])
            change = g
            if v is not None:
                np.multiply(v, momentum, out=v)
                np.add(v, g, out=v)
                change = v
            np.multiply(change, lr, out=scratch)
            np.subtract(p, scratch, out=p)

        return update
