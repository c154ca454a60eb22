"""nn/program/step.py: the list of operations against the reference; what it costs and in which order."""

from functools import partial

import numpy as np
import pytest

from nn.input.upload_queue import UploadQueue
from nn.model import reference
from nn.model.initial import initial_values
from nn.model.network import Network
from nn.parallel import buckets as panels_module
from nn.parallel.buckets import gradient_layout, panels
from nn.parallel.shard import Shard
from nn.program.activations import Activations
from nn.program.operations import BucketReady, Operation
from nn.program.passes import Pass
from nn.program.step import EmptyStep, bind
from pyrt.arrays import Arena, DeviceArray, Layout
from pyrt.driver.cpu import CpuDriver
from pyrt.phases import Phases
from pyrt.redistribute.regions import share
from pyrt.streams import Streams
from tests import spread

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


class Model:
    """All that a step on one device is made of, with random parameters."""

    def __init__(self, network, driver, kernels, dtype, rows):
        rng = np.random.default_rng(0)
        self.network, self.driver, self.kernels, self.dtype = network, driver, kernels, np.dtype(dtype).name
        self.shard = Shard.alone(network)
        self.streams = Streams(driver)
        self.host = initial_values(network, self.dtype, 0)
        for layer in network.numbers:
            self.host[f"b{layer}"] = rng.normal(0, 1, network.sizes[layer]).astype(dtype)
        self.parameters = Arena(driver, Layout(network.shapes, self.dtype))
        self.parameters.set(self.host)
        self.gradients = Arena(driver, gradient_layout(self.shard, self.dtype))
        self.panels = panels(self.shard, self.gradients.layout)
        self.activations = Activations(self.parameters, self.shard, rows, partial(DeviceArray.empty, driver))
        self.images = rng.integers(0, 256, (rows, network.sizes[0]), np.uint8)
        self.labels = rng.integers(0, network.classes, rows).astype(np.int32)
        copying = Phases(0.0).phase("copying")
        self.slot = UploadQueue(driver, self.streams, copying, (self.images, self.labels), rows).slot(0)
        self.work = Pass(self.shard, self.parameters, self.activations, self.slot.source, 255.0)

    def fill_slot(self, start, stop):
        self.slot.images.rows(0, stop - start).set(self.images[start:stop])
        self.slot.labels.rows(0, stop - start).set(self.labels[start:stop])

    def items(self, rows, batch):
        return self.work.gradients(self.gradients, self.panels, rows, batch)

    def run(self, items):
        for item in items:
            if isinstance(item, Operation):
                bind(item, self.streams, self.kernels)()
        self.driver.synchronize()

    def gradients_of(self, start, stop, batch):
        """This device's gradients for samples ``start`` to ``stop`` of a batch."""
        self.fill_slot(start, stop)
        self.run(self.items(stop - start, batch))
        return self.gradients.to_host()


@pytest.fixture(params=["numpy", pytest.param("kernels", marks=pytest.mark.kernels)])
def model(request, dtype):
    """Makes a Model, in NumPy on host memory or with the kernels of a GPU."""

    def make(sizes, activation="sigmoid", head="softmax", rows=13):
        network = Network.dense(sizes, activation, head)
        if request.param == "numpy":
            return Model(network, CpuDriver(), None, dtype, rows)
        driver, kernels = request.getfixturevalue("driver"), request.getfixturevalue("kernels")
        return Model(network, driver, kernels, dtype, rows)

    return make


@pytest.fixture
def many_panels(monkeypatch):
    """Cut the gradients of even the smallest layers into panels of a few rows."""
    monkeypatch.setattr(panels_module, "PANEL_BYTES", 100)


def truth(model, rows):
    """Mean loss and gradients of the first ``rows`` samples, without decay, in float64."""
    parameters = {name: array.astype(float) for name, array in model.host.items()}
    return reference.cost_and_gradients(
        parameters,
        model.images[:rows] / 255,
        model.labels[:rows],
        model.network,
        reg=0,
    )


@pytest.mark.parametrize(
    ("sizes", "head", "activation"),
    spread([(7, 5, 3), (31, 17, 9, 6, 10)], ["softmax", "sigmoid"], ["sigmoid", "tanh", "relu"], by=2),
    ids=str,
)
def test_the_list_computes_the_gradients_of_the_reference(model, many_panels, dtype, sizes, activation, head):
    model = model(sizes, activation, head)
    gradients = model.gradients_of(0, 13, 13)
    loss, expected = truth(model, 13)
    assert gradients.pop("loss")[0] == pytest.approx(loss, rel=TOLERANCE[dtype.name])
    for name, gradient in gradients.items():
        error = np.linalg.norm(gradient - expected[name])
        assert error <= TOLERANCE[dtype.name] * np.linalg.norm(expected[name]), name


@pytest.mark.parametrize("ranks", [2, 3, 12])
def test_the_parts_of_a_batch_add_up_to_its_gradients(model, dtype, ranks):
    """Also when the memory of the step still holds another part."""
    model = model((9, 6, 4))
    parts = [model.gradients_of(*share(12, ranks, rank), batch=12) for rank in range(ranks)]
    loss, expected = truth(model, 12)
    assert sum(part["loss"][0] for part in parts) == pytest.approx(loss, rel=TOLERANCE[dtype.name])
    for name, gradient in expected.items():
        error = np.linalg.norm(sum(part[name] for part in parts) - gradient)
        assert error <= TOLERANCE[dtype.name] * np.linalg.norm(gradient), name


def test_logits_are_those_of_the_reference(model, dtype):
    model = model((9, 8, 6, 4), "tanh")
    model.fill_slot(2, 11)
    model.run(model.work.logits(9))
    parameters = {name: array.astype(float) for name, array in model.host.items()}
    _, expected = reference.forward(parameters, model.images[2:11] / 255, model.network)
    logits = model.activations.taken(3, 9).to_host()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=10 * TOLERANCE[dtype.name])


def on_the_host(sizes, rows=13, dtype="float32"):
    return Model(Network.dense(sizes, "sigmoid", "softmax"), CpuDriver(), None, dtype, rows)


def test_flops_of_the_products_are_six_a_weight_and_sample_less_the_first_dA(many_panels):
    sizes, rows = (784, 30, 20, 10), 13
    products = [item for item in on_the_host(sizes).items(rows, rows) if "GEMM" in getattr(item, "name", "")]
    weights = [sizes[layer] * sizes[layer - 1] for layer in (1, 2, 3)]
    assert sum(item.flops for item in products) == 6 * rows * sum(weights) - 2 * rows * weights[0]


def test_flops_of_everything_else_follow_the_sizes_of_the_layers():
    B, D, H, C = 13, 784, 30, 10
    others = [
        item for item in on_the_host((D, H, C)).items(B, B) if "GEMM" not in getattr(item, "name", "GEMM")
    ]
    scaling, hidden, head = B * D, 2 * B * H, 8 * B * C
    backward, sums = 3 * B * H, B + B * C + B * H  # of the losses and of both layers' dZ
    assert sum(item.flops for item in others) == scaling + hidden + head + backward + sums


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float64", 8)])
def test_bytes_are_every_array_read_or_written_once(dtype, size):
    B, D, H, C = 13, 784, 30, 10
    operations = [
        item for item in on_the_host((D, H, C), dtype=dtype).items(B, B) if isinstance(item, Operation)
    ]
    X, W1, A1, W2, Z = B * D, H * D, B * H, C * H, B * C
    forward = X + (X + W1 + A1) + (2 * A1 + H) + (A1 + W2 + Z) + (2 * Z + C + B) + (B + 1)
    backward = (Z + C) + (Z + A1 + W2) + (Z + W2 + A1) + 3 * A1 + (A1 + H) + (A1 + X + W1)
    pixels_and_labels = B * D + 4 * B
    assert sum(item.bytes for item in operations) == size * (forward + backward) + pixels_and_labels


def test_phases_have_the_names_people_know():
    names = [getattr(item, "name", None) for item in on_the_host((784, 30, 10)).items(13, 13)]
    products = [name for name in names if name and "GEMM" in name]
    assert products[:2] == ["forward GEMM 1", "forward GEMM 2"]
    assert products[2:] == ["backward GEMM 1", "backward GEMM 2", "backward GEMM 3"]


def overlaps(array, arena, start, stop):
    """Whether an array touches elements ``start`` to ``stop`` of an arena."""
    size = array.dtype.itemsize
    first = array.pointer - arena.flat.pointer
    return first < stop * size and start * size < first + array.nbytes


def panel_order(model):
    """(items before, bucket, items after) of every place from which a bucket may leave."""
    items = model.items(13, 13)
    marks = [(index, item) for index, item in enumerate(items) if isinstance(item, BucketReady)]
    assert [item.bucket for _, item in marks] == list(range(len(model.panels)))
    for index, item in marks:
        yield items[:index], model.panels[item.bucket].bucket, items[index + 1 :]


def writes_to(items, arena, start, stop):
    operations = [item for item in items if isinstance(item, Operation)]
    return [item.name for item in operations if any(overlaps(a, arena, start, stop) for a in item.writes)]


def test_a_bucket_knows_what_leaves(many_panels):
    model = on_the_host((31, 17, 9, 6, 10))
    for item in model.items(13, 13):
        if isinstance(item, BucketReady):
            start, stop = model.panels[item.bucket].bucket
            assert item.leaves.pointer == model.gradients.flat.pointer + 4 * start
            assert item.leaves.shape == (stop - start,)


def test_a_bucket_leaves_when_all_of_its_gradients_are_written(many_panels):
    model = on_the_host((31, 17, 9, 6, 10))
    for before, (start, stop), after in panel_order(model):
        assert writes_to(before, model.gradients, start, stop)
        assert not writes_to(after, model.gradients, start, stop)


def test_no_parameters_are_read_after_their_bucket_may_leave(many_panels):
    """An exchange may update a bucket's parameters as soon as it is ready."""
    model = on_the_host((31, 17, 9, 6, 10))
    for _, (start, stop), after in panel_order(model):
        late = [
            item.name
            for item in after
            if isinstance(item, Operation)
            and any(overlaps(array, model.parameters, start, stop) for array in item.reads)
        ]
        assert not late


def test_a_rank_without_samples_offers_zeros_for_every_bucket():
    model, offered = on_the_host((7, 5, 3)), []

    class Exchange:
        def ready(self, bucket):
            offered.append((bucket, float(np.abs(model.gradients.flat.to_host()).max())))

    model.gradients.flat.set(np.full(model.gradients.flat.shape, np.nan))
    skipped = []

    skip = [lambda: skipped.append("batch"), lambda: skipped.append("step")]
    EmptyStep(model.gradients, 2, model.streams, Phases(0.0), Exchange(), skip).run()
    assert skipped == ["batch", "step"]
    assert offered == [(0, 0.0), (1, 0.0)]
