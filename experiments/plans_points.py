"""Kinds of the rows of `experiments.plans`, families of plans, and the rates that they are predicted with."""

from __future__ import annotations

MAP, TIMED, COUNTED = "map", "timed", "counted"

DATA, MODEL, MIXED = FAMILIES = ("data", "model", "mixed")
FORK_AND_JOIN = "fork and join"

HERE = "here"
"""The rates of the machine that measures; else those of a file of nn/autotune/machines."""
FILES = {"h200": 4, "h100-cluster": 64}
"""Those, and for how many GPUs plans are predicted."""
