"""Which gradients leave together: a layer's whole, or in row panels."""

from __future__ import annotations

from dataclasses import dataclass

from nn.plan import RankPart
from pyrt.exchange import Bucket
from pyrt.memory import Layout
from pyrt.regions import share

PANEL_BYTES = 2 * 1024 * 1024
"""Gradients of a layer leave in row panels of about this size: smaller ones can overlap more, but cost more
messages, launches and thinner products. Measured in docs/measurements.md."""


_ROWS = 8  # a panel begins at a multiple of this, so that 16-byte loads of its rows' gradients are aligned

LOSS = 0
"""The layer of a panel that is the loss alone."""


@dataclass(frozen=True)
class Panel:
    """Rows ``start`` to ``stop`` of a layer's weight gradient, and the bucket that leaves with them."""

    layer: int
    start: int
    stop: int
    bucket: Bucket
    over_all: bool = True
    """Whether its sum is over all ranks; else over those of one shard, a rank of each group."""


def gradient_layout(part: RankPart, dtype: str) -> Layout:
    """The flat gradients: as the parameters, then ``loss``: the batch's mean loss is summed with them."""
    return Layout({**part.shapes, "loss": (1,)}, dtype)


def panels(part: RankPart, layout: Layout) -> list[Panel]:
    """The row panels of all layers in the order in which the backward pass makes them.

    A layer's biases leave with its last panel, and the loss with the last layer, or first where that is
    summed over other ranks: each lies behind the rows that it leaves with. Together the buckets cover every
    gradient once.
    """
    plan, depth = part.plan, part.network.depth
    loss_alone = plan.over_all(depth) != plan.loss_over_all
    result = [Panel(LOSS, 0, 0, Bucket(*layout.span("loss")), plan.loss_over_all)] if loss_alone else []
    for layer in reversed(part.network.layers):
        end = "loss" if layer == depth and not loss_alone else f"b{layer}"
        result += _of_layer(layer, layout, layout.span(end)[1], plan.over_all(layer))
    return result


def _of_layer(layer: int, layout: Layout, end: int, over_all: bool) -> list[Panel]:
    rows, columns = layout.shapes[f"W{layer}"]
    first, _ = layout.span(f"W{layer}")
    groups = -(-rows // _ROWS)
    count = min(groups, max(1, round(rows * columns * layout.dtype.itemsize / PANEL_BYTES)))
    result = []
    for index in range(count):
        start, stop = (min(rows, _ROWS * group) for group in share(groups, count, index))
        bucket = Bucket(first + start * columns, end if index == count - 1 else first + stop * columns)
        result.append(Panel(layer, start, stop, bucket, over_all))
    return result
