"""Parts of the rows of `experiments.profile`, and the groups of phases in them."""

from __future__ import annotations

ITERATION, START = "iteration", "start-up"
"""Parts: rows of the first are microseconds a step, of the second of the whole run."""

WALL = "step (wall)"
"""The name in place of a phase, in the row of a step's wall time."""

IMAGES = "copying images host -> device"
"""A phase of each step, or of the start."""

NETWORK = "--hidden 512 --batch 3000 --lr 1 --momentum 0 --val-fraction 0"

EMPTY, CACHED = "an empty kernel cache", "kernels in the cache"
"""Starts on GPUs."""

OTHER, FORWARD, BACKWARD = "pixels, activations and loss", "forward products", "backward products"
MERGED = "output layer in one kernel"
ROWS = "rows of the batch"
COPIES, SUMS, UPDATE = "copies of gradients", "sums over ranks", "update"
REST = "host and launches"
"""Groups of phases."""

START_GROUPS = {
    "start mpirun": "mpirun",
    "start Python and MPI": "Python and MPI",
    "import packages": "imports",
    "start device": "device",
    "load data": "data",
    "distribute data": "data",
    "compile kernels": "kernels",
    "count memory": "network, exchange and graphs",
    "train setup": "network, exchange and graphs",
    IMAGES: "data",
    "other": "in no phase",
}
"""Phases of a start, in their order, and what they are called in the figure."""
