"""Optimisers: the rules by which parameters follow their gradients, a file each.

Each has its equation once for kernels, in kernels/nn/updates, and once for NumPy, here.
"""

from nn.optimisers.adam import Adam
from nn.optimisers.sgd import Sgd

__all__ = ["OPTIMISERS", "Adam", "Sgd"]

OPTIMISERS: dict[str, type[Sgd] | type[Adam]] = {"sgd": Sgd, "adam": Adam}
"""By the word that ``--optimiser`` takes."""
