"""Optimisers: the rules by which parameters follow their gradients, a file each.

Each has its equation once for kernels, in kernels/nn/updates, and once for NumPy, here.
"""

from dataclasses import fields

from nn.optimisers.adam import Adam
from nn.optimisers.sgd import Sgd

__all__ = ["OPTIMISERS", "Adam", "Sgd", "rates_of"]

OPTIMISERS: dict[str, type[Sgd] | type[Adam]] = {"sgd": Sgd, "adam": Adam}
"""By the word that ``--optimiser`` takes."""


def rates_of(optimiser: str) -> list[str]:
    """List the rates that an optimiser of `OPTIMISERS` is made from: options of the same names."""
    return [field.name for field in fields(OPTIMISERS[optimiser])]
