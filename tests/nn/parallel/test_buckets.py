"""nn/parallel/buckets.py: the gradients fall to buckets, without gap or overlap."""

import numpy as np
import pytest

from nn.model.network import Network
from nn.parallel.buckets import PANEL_BYTES, gradient_layout, panels
from nn.parallel.plan import Plan
from nn.parallel.shard import Shard


@pytest.fixture(params=range(40))
def cut(request, monkeypatch):
    """A random network, the layout of its gradients, and its panels, of a random size."""
    rng = np.random.default_rng(request.param)
    monkeypatch.setattr("nn.parallel.buckets.PANEL_BYTES", int(rng.integers(1, 20000)))
    sizes = tuple(int(size) for size in rng.integers(1, 200, rng.integers(2, 6)))
    network = Network.dense(sizes, "sigmoid", "softmax")
    layout = gradient_layout(Shard.alone(network), rng.choice(["float32", "float64"]))
    return network, layout, panels(Shard.alone(network), layout)


def test_buckets_cover_every_gradient_and_the_loss_once_and_overlap_nowhere(cut):
    network, layout, parts = cut
    covered = np.zeros(layout.size, int)
    for panel in parts:
        covered[slice(*panel.bucket)] += 1
    assert covered.max() == 1
    for name in [*network.shapes, "loss"]:
        assert covered[slice(*layout.span(name))].all(), name


def test_panels_cover_the_rows_of_each_layer_in_order_from_the_last_layer_to_the_first(cut):
    network, _, parts = cut
    assert [panel.layer for panel in parts] == sorted((panel.layer for panel in parts), reverse=True)
    for layer in network.numbers:
        mine = [panel for panel in parts if panel.layer == layer]
        rows = [row for panel in mine for row in range(panel.start, panel.stop)]
        assert rows == list(range(network.sizes[layer]))
        assert all(panel.start < panel.stop for panel in mine)


def test_a_bucket_holds_its_panels_rows_and_the_last_of_a_layer_its_biases(cut):
    network, layout, parts = cut
    for panel, following in zip(parts, [*parts[1:], None], strict=True):
        first, _ = layout.span(f"W{panel.layer}")
        columns = network.sizes[panel.layer - 1]
        is_last = following is None or following.layer != panel.layer
        behind = "loss" if panel.layer == network.depth else f"b{panel.layer}"
        stop = layout.span(behind)[1] if is_last else first + panel.stop * columns
        assert panel.bucket == (first + panel.start * columns, stop)


def test_panels_are_as_many_as_the_bytes_of_a_layer_ask_for():
    network = Network.dense((784, 512, 10), "sigmoid", "softmax")
    for dtype, size in [("float32", 4), ("float64", 8)]:
        parts = panels(Shard.alone(network), gradient_layout(Shard.alone(network), dtype))
        assert [panel.layer for panel in parts] == [2] + [1] * round(784 * 512 * size / PANEL_BYTES)


def test_gradients_lie_as_the_parameters_do_and_the_loss_behind_them():
    network = Network.dense((7, 5, 3), "sigmoid", "softmax")
    layout = gradient_layout(Shard.alone(network), "float32")
    assert list(layout.shapes) == ["W1", "b1", "W2", "b2", "loss"]
    assert {name: shape for name, shape in layout.shapes.items() if name != "loss"} == network.shapes


def test_layers_are_whole_where_their_exchange_does_not_overlap():
    """W1 is split over ranks, W2 and W3 are not: they go by different exchanges."""
    plan = Plan(2, 2, ("rows", "samples", "samples"))
    shard = Shard(plan, Network.dense((784, 2048, 1024, 10), "sigmoid", "softmax"), 0)
    layout = gradient_layout(shard, "float32")

    def counts(*exchanges):
        layers = [panel.layer for panel in panels(shard, layout, *exchanges)]
        return [layers.count(layer) for layer in (1, 2, 3)]

    assert counts("host", "device") == [2, 4, 1]
    assert counts("peer", "device") == [2, 1, 1]
    assert counts("host", "local") == [1, 4, 1]
    whole = panels(shard, layout, "peer", "local")
    assert [panel.stop - panel.start for panel in whole] == [10, 1024, 1024]
    assert sum(panel.bucket.stop - panel.bucket.start for panel in whole) == sum(
        panel.bucket.stop - panel.bucket.start for panel in panels(shard, layout)
    )
