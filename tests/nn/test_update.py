"""nn/update.py: gradient descent with decay and momentum on the flat buffers, panel by panel."""

import numpy as np
import pytest

from nn import panels as panels_module
from nn.launches import Kernels, LossRing
from nn.network import Network
from nn.panels import gradient_layout, panels
from nn.plan import RankPart
from nn.tensor_cores import Terms
from nn.update import SgdUpdate
from pyrt.driver.cpu import CpuDriver
from pyrt.exchange import Bucket
from pyrt.memory import Arena, DeviceArray, Layout

NETWORK = Network((13, 7, 5, 3), "sigmoid", "softmax")
ALONE = RankPart.alone(NETWORK)
RATE, REG, STEPS = 0.3, 0.05, 4


@pytest.fixture(params=["numpy", pytest.param("kernels", marks=pytest.mark.kernels)])
def place(request, dtype):
    """(driver, kernels); kernels is None where NumPy computes."""
    if request.param == "numpy":
        return CpuDriver(), None
    return request.getfixturevalue("driver"), request.getfixturevalue("kernels")


def random(rng):
    return {name: rng.normal(0, 1, shape) for name, shape in NETWORK.shapes.items()}


def ring_of(driver, dtype):
    """For a step whose loss is 0.5: the first of three."""
    loss, losses = (DeviceArray.from_host(driver, np.full(size, 0.5 * (size == 1), dtype)) for size in (1, 3))
    return LossRing(loss, losses, DeviceArray.from_host(driver, np.zeros(1, np.int32)))


def descend(start, gradients, momentum):
    """The same in NumPy, float64, array by array."""
    p = {name: array.astype(float) for name, array in start.items()}
    v = {name: np.zeros_like(array) for name, array in p.items()}
    for gradient in gradients:
        for name in p:
            decay = REG * p[name] if name.startswith("W") else 0
            v[name] = momentum * v[name] + gradient[name] + decay
            p[name] = p[name] - RATE * v[name]
    return p


@pytest.mark.parametrize("panel_bytes", [100, 1 << 20])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_updates_of_all_buckets_are_the_descent_of_all_parameters(
    place, dtype, monkeypatch, momentum, panel_bytes
):
    monkeypatch.setattr(panels_module, "PANEL_BYTES", panel_bytes)
    driver, kernels = place
    rng = np.random.default_rng(0)
    start, gradients = random(rng), [random(rng) for _ in range(STEPS)]
    parameters = Arena(driver, Layout(NETWORK.shapes, dtype))
    parameters.set(start)
    device_gradients = Arena(driver, gradient_layout(ALONE, dtype.name))
    velocity = Arena(driver, parameters.layout) if momentum else None
    update = SgdUpdate(
        NETWORK,
        parameters,
        device_gradients,
        velocity,
        RATE,
        momentum,
        REG,
        kernels,
        ring_of(driver, dtype.name),
    )
    cuts = panels(ALONE, device_gradients.layout)
    assert len(cuts) == 3 or panel_bytes == 100
    calls = [update.bind(panel.bucket) for panel in cuts]
    stream = driver.create_stream()
    for gradient in gradients:
        device_gradients.set({**gradient, "loss": np.ones(1)})
        for call in calls:
            call(stream)
        driver.synchronize()
    expected = descend(start, gradients, momentum)
    for name, array in parameters.to_host().items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=32 * np.finfo(dtype).eps)
    assert device_gradients["loss"].to_host()[0] == 1


def test_padding_stays_zero():
    """It takes part in the sums over ranks: it must never become a number that is not finite."""
    driver = CpuDriver()
    parameters = Arena(driver, Layout(NETWORK.shapes, "float32"))
    gradients = Arena(driver, gradient_layout(ALONE, "float32"))
    parameters.set(random(np.random.default_rng(0)))
    update = SgdUpdate(NETWORK, parameters, gradients, None, RATE, 0.0, REG, None, ring_of(driver, "float32"))
    for panel in panels(ALONE, gradients.layout):
        update.bind(panel.bucket)(None)
    padding = np.ones(parameters.layout.size, bool)
    for name in NETWORK.shapes:
        padding[slice(*parameters.layout.span(name))] = False
    assert padding.any()
    assert not parameters.flat.to_host()[padding].any()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("size", [4, 20, 52])
def test_pieces_of_buckets_give_the_bits_of_whole_ones(place, dtype, momentum, size):
    """Pieces may begin or end anywhere: among weights, among biases, in padding, at the loss."""
    driver, kernels = place
    results = []
    for cut in (False, True):
        rng = np.random.default_rng(0)
        parameters = Arena(driver, Layout(NETWORK.shapes, dtype))
        gradients = Arena(driver, gradient_layout(ALONE, dtype.name))
        velocity = Arena(driver, parameters.layout) if momentum else None
        parameters.set(random(rng))
        ring = ring_of(driver, dtype.name)
        terms = {layer: Terms.empty(driver, 3, *NETWORK.shapes[f"W{layer}"]) for layer in (1, 2)}
        with_terms = terms if kernels is not None and dtype == np.float32 else {}
        update = SgdUpdate(
            NETWORK, parameters, gradients, velocity, RATE, momentum, REG, kernels, ring, with_terms
        )
        buckets = [panel.bucket for panel in panels(ALONE, gradients.layout)]
        if cut:
            buckets = [piece for bucket in buckets for piece in pieces_of(bucket, size)]
        calls = [update.bind(bucket) for bucket in buckets]
        stream = driver.create_stream()
        for _ in range(STEPS):
            gradients.set({**random(rng), "loss": np.ones(1)})
            for call in calls:
                call(stream)
            driver.synchronize()
        arrays = [parameters.flat, *(each.array for each in terms.values())]
        results.append([array.to_host().tobytes() for array in arrays])
    assert results[0] == results[1]


def pieces_of(bucket, size):
    return [Bucket(start, min(start + size, bucket.stop)) for start in range(*bucket, size)]


@pytest.mark.kernels
def test_refreshed_terms_are_those_that_the_update_leaves(driver, library):
    """Of any number of layers; without terms, or in NumPy, there is nothing to do."""
    kernels, stream = Kernels(library, np.float32), driver.create_stream()
    parameters = Arena(driver, Layout(NETWORK.shapes, "float32"))
    gradients = Arena(driver, gradient_layout(ALONE, "float32"))
    parameters.set(random(np.random.default_rng(0)))
    gradients.set({**random(np.random.default_rng(1)), "loss": np.ones(1)})
    ring = ring_of(driver, "float32")

    def empty(*layers):
        return {layer: Terms.empty(driver, 3, *NETWORK.shapes[f"W{layer}"]) for layer in layers}

    def made(terms, kernels=kernels):
        return SgdUpdate(NETWORK, parameters, gradients, None, RATE, 0.0, REG, kernels, ring, terms)

    def bits(terms):
        driver.synchronize()
        return [each.array.to_host().tobytes() for each in terms.values()]

    updated = empty(1, 2, 3)
    made(updated).bind(*(panel.bucket for panel in panels(ALONE, gradients.layout)))(stream)
    for layers in ((), (2,), (1, 3), (1, 2, 3)):
        refreshed = empty(*layers)
        made(refreshed, None).refresh()(stream)
        made(refreshed).refresh()(stream)
        assert bits(refreshed) == bits({layer: updated[layer] for layer in layers})


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_as_an_operation_it_costs_what_it_reads_and_writes(monkeypatch, momentum):
    monkeypatch.setattr(panels_module, "PANEL_BYTES", 100)
    driver = CpuDriver()
    parameters = Arena(driver, Layout(NETWORK.shapes, "float32"))
    gradients = Arena(driver, gradient_layout(ALONE, "float32"))
    velocity = Arena(driver, parameters.layout) if momentum else None
    terms, ring = {1: Terms.empty(driver, 3, 7, 13)}, ring_of(driver, "float32")
    update = SgdUpdate(NETWORK, parameters, gradients, velocity, RATE, momentum, REG, None, ring, terms)
    buckets = [panel.bucket for panel in panels(ALONE, gradients.layout)]
    whole = update.operation(*buckets)
    size = sum(min(stop, parameters.layout.size) - start for start, stop in buckets)
    weights = 7 * 13 + 5 * 7 + 3 * 5
    arrays = 2 if momentum else 1
    assert whole.bytes == 4 * size * (1 + 2 * arrays) + 3 * 7 * 13 * 2
    assert whole.flops == 2 * arrays * size + 2 * weights + 3 * 7 * 13
    last = update.operation(buckets[-1], ends_step=True)
    assert last.bytes == update.operation(buckets[-1]).bytes + update.operation(ends_step=True).bytes
    assert whole.bytes == sum(update.operation(bucket).bytes for bucket in buckets)
    assert whole.flops == sum(update.operation(bucket).flops for bucket in buckets)
    written = [array.pointer for array in whole.writes if array.dtype == np.uint16]
    assert written[0] == terms[1].array.pointer and len(written) % 3 == 0
    loss = Bucket(*gradients.layout.span("loss"))
    assert update.operation(loss, ends_step=True).name == update.operation(ends_step=True).name
    of_biases = update.operation(Bucket(*gradients.layout.span("b1")))
    assert not [array for array in of_biases.writes if array.dtype == np.uint16]
    of_a_piece = update.operation(Bucket(16, 32))  # the end of one row of W1, the beginning of the next
    assert {array.shape for array in of_a_piece.writes if array.dtype == np.uint16} == {(2, 13)}


@pytest.mark.parametrize("buckets", [0, 1, 3])
def test_one_update_ends_the_step(place, dtype, buckets):
    """It may have no parameters."""
    driver, kernels = place
    parameters = Arena(driver, Layout(NETWORK.shapes, dtype))
    gradients, ring = (
        Arena(driver, gradient_layout(ALONE, dtype.name)),
        ring_of(driver, dtype.name),
    )
    parameters.set(random(np.random.default_rng(0)))
    gradients.set({**random(np.random.default_rng(1)), "loss": np.ones(1)})
    before = parameters.to_host()
    update = SgdUpdate(NETWORK, parameters, gradients, None, RATE, 0.0, REG, kernels, ring)
    cuts = [panel.bucket for panel in panels(ALONE, gradients.layout)][:buckets]
    update.bind(*cuts, ends_step=True)(driver.create_stream())
    driver.synchronize()
    assert (ring.losses.to_host().tolist(), ring.place.to_host().tolist()) == ([0.5, 0, 0], [1])
    after = parameters.to_host()
    assert [not np.array_equal(after[f"W{layer}"], before[f"W{layer}"]) for layer in (3, 2, 1)] == [
        index < buckets for index in range(3)
    ]
