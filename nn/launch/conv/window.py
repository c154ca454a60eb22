"""How a launch is told of windows on images (kernels/conv/window.cuh)."""

from __future__ import annotations

from dataclasses import astuple

from nn.model.window import Window


def window_arguments(samples: int, window: Window) -> tuple[int, ...]:
    """Return the arguments that a kernel's ``Window`` is made of, behind the number of samples."""
    return (samples, *astuple(window))
