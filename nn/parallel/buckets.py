"""Which gradients leave together: a layer's, or those of a row panel where an exchange can begin with it."""

from __future__ import annotations

from dataclasses import dataclass

from nn.parallel.shard import Shard
from pyrt.arrays import Layout
from pyrt.exchange import Bucket
from pyrt.exchange.registry import exchanges
from pyrt.redistribute.regions import share

PANEL_BYTES = 2 * 1024 * 1024
"""Gradients of a layer leave in row panels of about this size: smaller ones can overlap more, but cost more
messages, launches and thinner products. Measured in docs/explain/measurements.md."""


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


def gradient_layout(shard: Shard, dtype: str) -> Layout:
    """Lay out flat gradients as the parameters, then ``loss``: the batch's mean loss is summed with them."""
    return Layout({**shard.shapes, "loss": (1,)}, dtype)


def panels(shard: Shard, layout: Layout, exchange: str = "host", shard_exchange: str = "host") -> list[Panel]:
    """List the panels of all layers in the order in which the backward pass makes them.

    ``exchange`` is the one over all ranks, ``shard_exchange`` the one over those of a shard. A layer whose
    exchange does not overlap with the backward pass is one panel: its gradient is one product and one bucket.

    A layer's biases leave with its last panel. The loss leaves with the last layer, or first if it is summed
    over other ranks. Each lies behind the rows that it leaves with. Together the buckets cover every gradient
    once.
    """
    plan, depth = shard.plan, shard.network.depth
    loss_alone = plan.over_all(depth) != plan.loss_over_all
    result = [Panel(LOSS, 0, 0, Bucket(*layout.span("loss")), plan.loss_over_all)] if loss_alone else []
    for layer in reversed(shard.network.numbers):
        end = "loss" if layer == depth and not loss_alone else f"b{layer}"
        over_all = plan.over_all(layer)
        overlaps = exchanges()[exchange if over_all else shard_exchange].overlaps
        result += _of_layer(layer, layout, layout.span(end)[1], over_all, overlaps)
    return result


def _of_layer(layer: int, layout: Layout, end: int, over_all: bool, overlaps: bool) -> list[Panel]:
    rows, columns = layout.shapes[f"W{layer}"]
    first, _ = layout.span(f"W{layer}")
    groups = -(-rows // _ROWS)
    nbytes = rows * columns * layout.dtype.itemsize
    count = min(groups, max(1, round(nbytes / PANEL_BYTES))) if overlaps else 1
    result = []
    for index in range(count):
        start, stop = (min(rows, _ROWS * group) for group in share(groups, count, index))
        bucket = Bucket(first + start * columns, end if index == count - 1 else first + stop * columns)
        result.append(Panel(layer, start, stop, bucket, over_all))
    return result
