"""The points of `experiments.correctness`, shared by the study and its figures."""

from __future__ import annotations

from experiments.study import Point

DTYPES = ("float32", "float64")

EMBEDDED = 3600
"""Training samples of the embedded digits, less those held out for validation."""

BASE: Point = {
    "lr": 1.0,
    "hidden": 64,
    "batch": 400,
    "samples": EMBEDDED,
    "pixel_scale": 255.0,
    "start": "usual",
}
"""Varied one at a time."""

CHAOTIC = 8.0
"""A learning rate at which the least difference grows; ranks are varied with it, too."""

GRADED: Point = {"hidden": 100, "batch": 800, "pixel_scale": 1.0, "start": "small"}
"""Runs that CME 213 grades: raw pixels, and the small initial weights of the code that it hands out."""

SMALL_DEVIATION = 0.01
"""Standard deviation of small initial weights; biases are zero."""
