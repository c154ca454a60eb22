"""Which gradients leave together.

Data-parallel: every rank holds all parameters and a part of each batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from nn.network import Network
from pyrt.exchange import Bucket
from pyrt.memory import Layout
from pyrt.regions import share

PANEL_BYTES = 2 * 1024 * 1024
"""Gradients of a layer leave in row panels of about this size: smaller ones can overlap more, but cost more
messages, launches and thinner products. Measured in docs/measurements.md."""


_ROWS = 8  # a panel begins at a multiple of this, so that 16-byte loads of its rows' gradients are aligned


@dataclass(frozen=True)
class Panel:
    """Rows ``start`` to ``stop`` of a layer's weight gradient, and the bucket that leaves with them."""

    layer: int
    start: int
    stop: int
    bucket: Bucket


def gradient_layout(network: Network, dtype: str) -> Layout:
    """The flat gradients: as the parameters, then ``loss``: the batch's mean loss is summed with them."""
    return Layout({**network.shapes, "loss": (1,)}, dtype)


def panels(network: Network, layout: Layout) -> list[Panel]:
    """The row panels of all layers in the order in which the backward pass makes them.

    A layer's biases leave with its last panel, and the loss with the last layer: each lies behind the
    rows that it leaves with. Together the buckets cover every gradient once.
    """
    result = []
    for layer in reversed(network.layers):
        rows, columns = network.shapes[f"W{layer}"]
        first, _ = layout.span(f"W{layer}")
        _, end = layout.span("loss" if layer == network.depth else f"b{layer}")
        groups = -(-rows // _ROWS)
        count = min(groups, max(1, round(rows * columns * layout.dtype.itemsize / PANEL_BYTES)))
        for index in range(count):
            start, stop = (min(rows, _ROWS * group) for group in share(groups, count, index))
            bucket = Bucket(first + start * columns, end if index == count - 1 else first + stop * columns)
            result.append(Panel(layer, start, stop, bucket))
    return result
