"""What ranks that have rows of images exchange with those that have the rows beside them: halos."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nn.model.layer import Shape
from nn.model.pool import AvgPool2d, MaxPool2d
from nn.model.window import Window
from nn.parallel import space
from nn.parallel.plan import BY_PLACES
from nn.parallel.spreads import Spreads
from pyrt.redistribute import Redistribution


@dataclass(frozen=True)
class PoolHalo:
    """The halos of a pool whose windows overlap, and its windows on what a rank has with them.

    A rank makes its own outputs, and those of others whose windows see its rows: so it knows where the
    largest pixels of all of these are, and on the way back only gradients move.
    """

    window: Window
    """On the images with their halo; it makes all these outputs."""
    window_back: Window
    """From the gradients of all these outputs to that of the rank's own images."""
    images: Redistribution
    gradients: Redistribution
    own: space.Span
    """The columns of the rank's own outputs among all these."""


def pool_halo(spreads: Spreads, index: int, layer: int, place: int, samples: int) -> PoolHalo | None:
    """Return that of the layer at this place behind a layer; None if it needs none."""
    stage = spreads.network.stages[layer]
    pool = stage.followers[place]
    if spreads.made(layer) != BY_PLACES or not isinstance(pool, MaxPool2d | AvgPool2d):
        return None
    shape, made = stage.shapes[place - len(stage.followers) - 1 :][:2]
    window = pool.window(shape)
    if window.rows <= window.stride:
        return None
    rows, outputs = spreads.rows(layer, shape[0]), spreads.rows(layer, made[0])
    windows = [space.seeing(window, own) for own in rows]
    seen = [space.seen(window, all_of_them) for all_of_them in windows]
    first, width = windows[index][0], math.prod(made[1:])
    start, stop = outputs[index]
    return PoolHalo(
        space.local(window, seen[index], windows[index]),
        space.local(window, rows[index], windows[index]),
        _exchange(samples, shape, rows, seen),
        _exchange(samples, made, outputs, windows),
        ((start - first) * width, (stop - first) * width),
    )


def gradient_halo(spreads: Spreads, layer: int, samples: int) -> Redistribution | None:
    """Return the exchange of the gradient of a convolution's own outputs, if that of its images needs it."""
    made, seeing = spreads.rows_made(layer), spreads.rows_seeing(layer)
    shape = spreads.network.stages[layer].made
    return _exchange(samples, shape, made, seeing) if list(made) != list(seeing) else None


def _exchange(
    samples: int, shape: Shape, has: Sequence[space.Span], gets: Sequence[space.Span]
) -> Redistribution:
    """Return the redistribution that brings each rank rows of images of this shape."""
    width = math.prod(shape[1:])
    matrix = samples, shape[0] * width
    return Redistribution(matrix, space.flattened(has, width), space.flattened(gets, width))
