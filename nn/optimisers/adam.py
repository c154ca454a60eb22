"""Adam (Kingma and Ba 2015, algorithm 1), where g is gradient + reg p; biases have no ``reg``.

m = beta1 m + (1 - beta1) g
v = beta2 v + (1 - beta2) g^2
p -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)      in step t, counted from 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nn.optimisers.base import Slices


@dataclass(frozen=True)
class Adam:
    """Learning rate, decays of the two averages, the least denominator, and weight decay."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    reg: float = 1e-4

    header = "nn/updates/adam.cuh"
    states = ("m", "v")
    clock = 3

    def __str__(self) -> str:
        betas = f"beta1 {self.beta1:g}, beta2 {self.beta2:g}, eps {self.eps:g}"
        return f"adam, learning rate {self.lr:g}, {betas}, reg {self.reg:g}"

    def clock_at(self, step: int) -> Sequence[float]:
        """Return steps that are over, and beta^t of the one that comes: the bits that devices multiply."""
        return step, _power(self.beta1, step + 1), _power(self.beta2, step + 1)

    def count_step(self, clock: np.ndarray) -> None:
        clock += 1, 0, 0
        clock *= 1, self.beta1, self.beta2

    def packed_format(self, real: str) -> str:
        return f"2d3{real}3P"

    def fields(self, states: Sequence[int], clock: int) -> Sequence[float]:
        return self.beta1, self.beta2, self.lr, self.eps, self.reg, *states, clock

    @property
    def flops(self) -> tuple[int, int]:
        return 13, 2

    def step(
        self, p: np.ndarray, g: np.ndarray, states: Sequence[np.ndarray], step: int
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return new parameters and states, for the reference; g has the decay in it, steps count from 1."""
        m = self.beta1 * states[0] + (1 - self.beta1) * g
        v = self.beta2 * states[1] + (1 - self.beta2) * g * g
        m_hat, v_hat = m / (1 - self.beta1**step), v / (1 - self.beta2**step)
        return p - self.lr * m_hat / (np.sqrt(v_hat) + self.eps), [m, v]

    def in_numpy(self, slices: Slices) -> Callable[[], object]:
        """Bind the update of a part of the arrays, in place: g is changed too."""
        p, g, scratch, decayed, clock = slices.p, slices.g, slices.scratch, slices.decayed, slices.clock
        m, v = slices.states

        def update() -> None:
            np.multiply(p[:decayed], self.reg, out=scratch[:decayed])
            np.add(g[:decayed], scratch[:decayed], out=g[:decayed])
            np.multiply(m, self.beta1, out=m)
            np.multiply(g, 1 - self.beta1, out=scratch)
            np.add(m, scratch, out=m)
            np.multiply(v, self.beta2, out=v)
            np.multiply(g, g, out=g)
            np.multiply(g, 1 - self.beta2, out=g)
            np.add(v, g, out=v)
            np.divide(v, 1 - clock[2], out=scratch, casting="same_kind")
            np.sqrt(scratch, out=scratch)
            np.add(scratch, self.eps, out=scratch)
            np.divide(m, scratch, out=scratch)
            np.multiply(scratch, self.lr / (1 - clock[1]), out=scratch, casting="same_kind")
            np.subtract(p, scratch, out=p)

        return update


def _power(beta: float, times: int) -> float:
    """Multiply so often, one after the other, until nothing changes any more."""
    power = 1.0
    for _ in range(times):
        if (next_power := power * beta) == power:
            break
        power = next_power
    return power
