"""nn/program/update.py: the update by an optimiser's rule on the flat buffers, panel by panel."""

import numpy as np
import pytest

from nn.launch.gemm.components import Components
from nn.launch.kernels import Kernels
from nn.launch.update import LossRing
from nn.model.network import Network
from nn.optimisers import Adam, Sgd
from nn.parallel import buckets as panels_module
from nn.parallel.buckets import gradient_layout, panels
from nn.parallel.shard import Shard
from nn.program.update import OptimiserState, ParameterUpdate
from pyrt.arrays import Arena, DeviceArray, Layout
from pyrt.driver.cpu import CpuDriver
from pyrt.exchange import Bucket
from tests import few

NETWORK = Network.dense((13, 7, 5, 3), "sigmoid", "softmax")
ALONE = Shard.alone(NETWORK)
RATE, REG, STEPS = 0.3, 0.05, 4
PLAIN = Sgd(RATE, 0.0, REG)
OPTIMISERS = [PLAIN, Sgd(RATE, 0.9, REG), Adam(0.03, 0.8, 0.95, 1e-4, REG)]

of_all_optimisers = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=["plain", "momentum", "adam"])


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


def update_of(driver, optimiser, parameters, gradients, kernels, ring=None, components=()):
    """The update of arenas, the first one."""
    state = OptimiserState(driver, optimiser, parameters.layout)
    return ParameterUpdate(NETWORK, optimiser, parameters, gradients, state, kernels, ring, dict(components))


def descend(start, gradients, optimiser):
    """The same in NumPy, float64, array by array."""
    p = {name: array.astype(float) for name, array in start.items()}
    m, v = ({name: np.zeros_like(array) for name, array in p.items()} for _ in range(2))
    for step, gradient in enumerate(gradients, 1):
        for name in p:
            g = gradient[name] + (REG * p[name] if name.startswith("W") else 0)
            if isinstance(optimiser, Sgd):
                v[name] = optimiser.momentum * v[name] + g
                p[name] = p[name] - RATE * v[name]
                continue
            m[name] = 0.8 * m[name] + 0.2 * g
            v[name] = 0.95 * v[name] + 0.05 * g**2
            unbiased = m[name] / (1 - 0.8**step), v[name] / (1 - 0.95**step)
            p[name] = p[name] - 0.03 * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-4)
    return p


@pytest.mark.parametrize("panel_bytes", [100, 1 << 20])
@of_all_optimisers
def test_updates_of_all_buckets_are_the_descent_of_all_parameters(
    place, dtype, monkeypatch, optimiser, panel_bytes
):
    monkeypatch.setattr(panels_module, "PANEL_BYTES", panel_bytes)
    driver, kernels = place
    rng = np.random.default_rng(0)
    start, gradients = random(rng), [random(rng) for _ in range(STEPS)]
    parameters = Arena(driver, Layout(NETWORK.shapes, dtype))
    parameters.set(start)
    device_gradients = Arena(driver, gradient_layout(ALONE, dtype.name))
    ring = ring_of(driver, dtype.name)
    update = update_of(driver, optimiser, parameters, device_gradients, kernels, ring)
    cuts = panels(ALONE, device_gradients.layout)
    assert len(cuts) == 3 or panel_bytes == 100
    calls = [update.bind(panel.bucket) for panel in cuts] + [update.bind(ends_step=True)]
    stream = driver.create_stream()
    for gradient in gradients:
        device_gradients.set({**gradient, "loss": np.ones(1)})
        for call in calls:
            call(stream)
        driver.synchronize()
    expected = descend(start, gradients, optimiser)
    for name, array in parameters.to_host().items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=32 * np.finfo(dtype).eps)
    assert device_gradients["loss"].to_host()[0] == 1


@of_all_optimisers
def test_padding_stays_zero(optimiser):
    """It takes part in the sums over ranks: it must never become a number that is not finite."""
    driver = CpuDriver()
    parameters = Arena(driver, Layout(NETWORK.shapes, "float32"))
    gradients = Arena(driver, gradient_layout(ALONE, "float32"))
    parameters.set(random(np.random.default_rng(0)))
    update = update_of(driver, optimiser, parameters, gradients, None, ring_of(driver, "float32"))
    for panel in panels(ALONE, gradients.layout):
        update.bind(panel.bucket)(None)
    padding = np.ones(parameters.layout.size, bool)
    for name in NETWORK.shapes:
        padding[slice(*parameters.layout.span(name))] = False
    assert padding.any()
    for arena in (parameters, *update.state.arenas.values()):
        assert not arena.flat.to_host()[padding].any()


@of_all_optimisers
@pytest.mark.parametrize("size", few([52], of=[4, 20, 52]))
def test_pieces_of_buckets_give_the_bits_of_whole_ones(place, dtype, optimiser, size):
    """Pieces may begin or end anywhere: among weights, among biases, in padding, at the loss."""
    driver, kernels = place
    results = []
    for cut in (False, True):
        rng = np.random.default_rng(0)
        parameters = Arena(driver, Layout(NETWORK.shapes, dtype))
        gradients = Arena(driver, gradient_layout(ALONE, dtype.name))
        parameters.set(random(rng))
        ring = ring_of(driver, dtype.name)
        components = {layer: Components.empty(driver, 3, *NETWORK.shapes[f"W{layer}"]) for layer in (1, 2)}
        kept = components if kernels is not None and dtype == np.float32 else {}
        update = update_of(driver, optimiser, parameters, gradients, kernels, ring, kept)
        buckets = [panel.bucket for panel in panels(ALONE, gradients.layout)]
        if cut:
            buckets = [piece for bucket in buckets for piece in pieces_of(bucket, size)]
        calls = [update.bind(bucket) for bucket in buckets] + [update.bind(ends_step=True)]
        stream = driver.create_stream()
        for _ in range(STEPS):
            gradients.set({**random(rng), "loss": np.ones(1)})
            for call in calls:
                call(stream)
            driver.synchronize()
        states = (arena.flat for arena in update.state.arenas.values())
        arrays = [parameters.flat, *states, *(each.array for each in components.values())]
        results.append([array.to_host().tobytes() for array in arrays])
    assert results[0] == results[1]


def pieces_of(bucket, size):
    return [Bucket(start, min(start + size, bucket.stop)) for start in range(*bucket, size)]


@pytest.mark.kernels
def test_refreshed_components_are_those_that_the_update_leaves(driver, library):
    """Of any number of layers; without components, or in NumPy, there is nothing to do."""
    kernels, stream = Kernels(library, np.float32), driver.create_stream()
    parameters = Arena(driver, Layout(NETWORK.shapes, "float32"))
    gradients = Arena(driver, gradient_layout(ALONE, "float32"))
    parameters.set(random(np.random.default_rng(0)))
    gradients.set({**random(np.random.default_rng(1)), "loss": np.ones(1)})
    ring = ring_of(driver, "float32")

    def empty(*layers):
        return {layer: Components.empty(driver, 3, *NETWORK.shapes[f"W{layer}"]) for layer in layers}

    def made(components, kernels=kernels):
        return update_of(driver, PLAIN, parameters, gradients, kernels, ring, components)

    def bits(components):
        driver.synchronize()
        return [each.array.to_host().tobytes() for each in components.values()]

    updated = empty(1, 2, 3)
    made(updated).bind(*(panel.bucket for panel in panels(ALONE, gradients.layout)))(stream)
    for layers in ((), (2,), (1, 3), (1, 2, 3)):
        refreshed = empty(*layers)
        made(refreshed, None).refresh()(stream)
        made(refreshed).refresh()(stream)
        assert bits(refreshed) == bits({layer: updated[layer] for layer in layers})


@of_all_optimisers
def test_as_operations_it_costs_what_it_reads_and_writes(monkeypatch, optimiser):
    monkeypatch.setattr(panels_module, "PANEL_BYTES", 100)
    driver = CpuDriver()
    parameters = Arena(driver, Layout(NETWORK.shapes, "float32"))
    gradients = Arena(driver, gradient_layout(ALONE, "float32"))
    components, ring = {1: Components.empty(driver, 3, 7, 13)}, ring_of(driver, "float32")
    update = update_of(driver, optimiser, parameters, gradients, None, ring, components)

    def operations(*buckets, **end):
        return update.operations(*buckets, **end)

    def cost(*buckets, **end):
        listed = operations(*buckets, **end)
        return sum(item.bytes for item in listed), sum(item.flops for item in listed)

    buckets = [panel.bucket for panel in panels(ALONE, gradients.layout)]
    (whole,) = operations(*buckets)
    size = sum(min(stop, parameters.layout.size) - start for start, stop in buckets)
    weights = 7 * 13 + 5 * 7 + 3 * 5
    arrays, flops = {0: (1, 2), 1: (2, 4), 2: (3, 13)}[len(optimiser.states)]
    assert whole.bytes == 4 * size * (1 + 2 * arrays) + 3 * 7 * 13 * 2
    assert whole.flops == flops * size + 2 * weights + 3 * 7 * 13
    (end,) = operations(ends_step=True)
    assert end.bytes == (4 + 4) + (4 + 4) + 2 * 8 * optimiser.clock  # loss, its place; what counts steps
    assert cost(buckets[-1], ends_step=True) == tuple(
        map(sum, zip(cost(buckets[-1]), cost(ends_step=True), strict=True))
    )
    assert (whole.bytes, whole.flops) == tuple(map(sum, zip(*map(cost, buckets), strict=True)))
    written = [array.pointer for array in whole.writes if array.dtype == np.uint16]
    assert written[0] == components[1].array.pointer and len(written) % 3 == 0
    loss = Bucket(*gradients.layout.span("loss"))
    assert [item.name for item in operations(loss, ends_step=True)] == [end.name]
    assert operations(loss) == []
    (of_biases,) = operations(Bucket(*gradients.layout.span("b1")))
    assert not [array for array in of_biases.writes if array.dtype == np.uint16]
    (of_a_piece,) = operations(Bucket(16, 32))  # the end of one row of W1, the beginning of the next
    assert {array.shape for array in of_a_piece.writes if array.dtype == np.uint16} == {(2, 13)}


@of_all_optimisers
@pytest.mark.parametrize("buckets", few([0, 3], of=[0, 1, 3]))
def test_one_update_ends_the_step(place, dtype, buckets, optimiser):
    """It may have no parameters. Where the rule counts steps, this one is counted."""
    driver, kernels = place
    parameters = Arena(driver, Layout(NETWORK.shapes, dtype))
    gradients, ring = (
        Arena(driver, gradient_layout(ALONE, dtype.name)),
        ring_of(driver, dtype.name),
    )
    parameters.set(random(np.random.default_rng(0)))
    gradients.set({**random(np.random.default_rng(1)), "loss": np.ones(1)})
    before = parameters.to_host()
    update = update_of(driver, optimiser, parameters, gradients, kernels, ring)
    update.state.start(3)
    cuts = [panel.bucket for panel in panels(ALONE, gradients.layout)][:buckets]
    update.bind(*cuts)(driver.create_stream())
    assert ring.place.to_host().tolist() == [0]
    parameters.set(before)
    update.bind(*cuts, ends_step=True)(driver.create_stream())
    driver.synchronize()
    if optimiser.clock:
        np.testing.assert_allclose(update.state.clock.to_host(), optimiser.clock_at(4), rtol=1e-15)
    assert (ring.losses.to_host().tolist(), ring.place.to_host().tolist()) == ([0.5, 0, 0], [1])
    after = parameters.to_host()
    assert [not np.array_equal(after[f"W{layer}"], before[f"W{layer}"]) for layer in (3, 2, 1)] == [
        index < buckets for index in range(3)
    ]
