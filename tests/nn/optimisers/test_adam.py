"""Adam: its rule in kernels and NumPy against float64; runs by every exchange; resumed, the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nn.launch.gemm.components import Components
from nn.launch.gemm.versions import runs_gemm
from nn.launch.kernels import Kernels
from nn.launch.update import EndStep, LossRing, Segment, Update, UpdateArrays
from nn.optimisers import OPTIMISERS, Adam
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.exchange.device import verdict
from pyrt.exchange.registry import choices
from pyrt.job import join
from tests import LONG, few, spread, standing_still
from tests.nn.checkpoints.runs import Runs
from tests.nn.small_runs import saved, using
from train import train

RULE = Adam(lr=0.03, beta1=0.8, beta2=0.95, eps=1e-3, reg=0.05)


class Place:
    """A device on which parameters are updated; ``kernels`` is None where NumPy does it."""

    def __init__(self, driver, kernels, dtype):
        self.driver, self.kernels, self.dtype = driver, kernels, dtype
        self.stream = driver.create_stream()

    def array(self, host, dtype=None):
        return DeviceArray.from_host(self.driver, np.ascontiguousarray(host, dtype or self.dtype))

    def arrays(self, rule, p, g, m, v, step):
        """Copies on the device, after so many steps."""
        states = {"m": self.array(m), "v": self.array(v)}
        clock = self.array(np.array(rule.clock_at(step)), np.float64)
        return UpdateArrays(rule, self.array(p), self.array(g), states, clock)

    def run(self, *works):
        for work in works:
            if self.kernels is None:
                work.in_numpy()()
            else:
                work.on_device(self.kernels)(self.stream)
        self.driver.synchronize()


@pytest.fixture(params=["numpy", pytest.param("kernels", marks=pytest.mark.kernels)])
def place(request, dtype):
    if request.param == "numpy":
        return Place(CpuDriver(), None, dtype)
    return Place(request.getfixturevalue("driver"), request.getfixturevalue("kernels"), dtype)


@pytest.fixture
def rng(request):
    return np.random.default_rng(list(request.node.name.encode()))


def expected(rule, p, g, m, v, step, decayed):
    """p, m and v after one more step in float64, and how far rounding may move each.

    ``step`` steps are over. Roundings are relative to the terms of a sum, not to the sum, whose terms may
    cancel.
    """
    p, g, m, v = (x.astype(np.float64) for x in (p, g, m, v))
    decay = np.where(np.arange(len(p)) < decayed, rule.reg, 0) * p
    change, of_change = g + decay, np.abs(g) + np.abs(decay)
    t = step + 1
    mean = rule.beta1 * m + (1 - rule.beta1) * change
    of_mean = rule.beta1 * np.abs(m) + (1 - rule.beta1) * of_change
    square = rule.beta2 * v + (1 - rule.beta2) * change**2
    of_square = rule.beta2 * v + (1 - rule.beta2) * (change**2 + 2 * np.abs(change) * of_change)
    m_hat, v_hat = mean / (1 - rule.beta1**t), square / (1 - rule.beta2**t)
    root = np.sqrt(v_hat) + rule.eps
    # A quotient is off by the relative errors of both: that of a root is half that of its number.
    of_root = of_square / (1 - rule.beta2**t) / (2 * np.sqrt(v_hat) + 1e-300)
    step_size = of_mean / (1 - rule.beta1**t) / root
    of_p = np.abs(p) + rule.lr * (step_size + np.abs(m_hat) / root * (1 + of_root / root))
    return (p - rule.lr * m_hat / root, mean, square), (of_p, of_mean, of_square)


def check(arrays, truth, bounds, part):
    """Six roundings, of the kind `expected` describes."""
    eps = np.finfo(arrays.parameters.dtype).eps
    for array, exact, bound in zip(
        (arrays.parameters, arrays.states["m"], arrays.states["v"]), truth, bounds, strict=True
    ):
        assert np.all(np.abs(array.to_host()[part] - exact) <= 6 * eps * bound)


def drawn(rng, size, dtype):
    """Parameters, gradients and averages of all sizes; of squares none is negative."""
    p, g, m = (rng.normal(0, 10.0 ** rng.integers(-3, 2, size), size).astype(dtype) for _ in range(3))
    return p, g, m, (rng.normal(0, 1, size) ** 2 * 10.0 ** rng.integers(-6, 2, size)).astype(dtype)


SIZES = [(1, 0), (1, 1), (256, 128), (257, 255), (10007, 9001), (500, 500)]


@pytest.mark.parametrize(
    ("step", "start", "sizes"), spread(few([0, 5000], of=[0, 1, 7, 5000]), [0, 3], SIZES, by=2), ids=str
)
def test_one_step_of_a_segment(place, rng, start, sizes, step):
    """And of nothing before or behind it. The kernel leaves the gradients as they are."""
    size, decayed = sizes
    before = drawn(rng, start + size + 5, place.dtype)
    arrays, part = place.arrays(RULE, *before, step), slice(start, start + size)
    place.run(Update(arrays, [Segment(start, size, decayed)]))
    check(arrays, *expected(RULE, *(x[part] for x in before), step, decayed), part)
    after = arrays.parameters, arrays.gradients, arrays.states["m"], arrays.states["v"]
    for one, other in zip(before, after, strict=True):
        assert np.delete(one, part).tobytes() == np.delete(other.to_host(), part).tobytes()
    if place.kernels is not None:
        assert arrays.gradients.to_host().tobytes() == before[1].tobytes()
    np.testing.assert_array_equal(
        arrays.clock.to_host(), RULE.clock_at(step)
    )  # the end of the step counts it


def test_segments_in_one_launch_have_the_bits_of_one_each(place, rng):
    before = drawn(rng, 1000, place.dtype)
    segments = [Segment(0, 8, 8), Segment(100, 613, 400), Segment(997, 3, 1)]
    together, apart = (place.arrays(RULE, *before, 4) for _ in range(2))
    place.run(Update(together, segments))
    place.run(*(Update(apart, [segment]) for segment in segments))
    for name in ("parameters", "gradients"):
        one, other = (getattr(arrays, name).to_host() for arrays in (together, apart))
        assert one.tobytes() == other.tobytes()
    for name in RULE.states:
        assert together.states[name].to_host().tobytes() == apart.states[name].to_host().tobytes()


def test_many_steps_are_those_of_the_rule(place, rng):
    """From zeros on; each ends with its loss in the ring and one more in the count."""
    p = rng.normal(0, 1, 77).astype(place.dtype)
    zeros = np.zeros_like(p)
    arrays = place.arrays(RULE, p, zeros, zeros, zeros, 0)
    loss = place.array([0.0])
    ring = LossRing(loss, place.array(np.zeros(30)), place.array([0], np.int32))
    works = Update(arrays, [Segment(0, 77, 50)]), EndStep(arrays, ring)
    truth = p.astype(np.float64), np.zeros(77), np.zeros(77)
    for step in range(20):
        g = rng.normal(0, 1, 77).astype(place.dtype)
        (new, mean, square), _ = expected(RULE, truth[0], g, *truth[1:], step, 50)
        truth = new, mean, square
        arrays.gradients.set(g)
        loss.set(np.array([step + 0.5], place.dtype))
        place.run(*works)
        np.testing.assert_array_equal(arrays.clock.to_host(), RULE.clock_at(step + 1))
    after = arrays.parameters, arrays.states["m"], arrays.states["v"]
    for array, exact in zip(after, truth, strict=True):
        np.testing.assert_allclose(array.to_host(), exact, rtol=0, atol=100 * np.finfo(place.dtype).eps)
    assert ring.losses.to_host()[:20].tolist() == [step + 0.5 for step in range(20)]
    assert ring.place.to_host().tolist() == [20]


def test_the_first_step_has_the_length_of_the_rate(place):
    """Whatever the size of a gradient that eps is small beside; without a gradient there is no step."""
    g = np.array([1e-3, -1e-3, 1, -1, 1e3, -1e3, 0], place.dtype)
    zeros = np.zeros(7, place.dtype)
    rule = Adam(lr=0.25, eps=1e-30, reg=0.5)
    arrays = place.arrays(rule, zeros, g, zeros, zeros, 0)
    place.run(Update(arrays, [Segment(0, 7, 0)]))
    steps = 0.25 * np.sign(g)
    np.testing.assert_allclose(arrays.parameters.to_host(), -steps, rtol=8 * np.finfo(place.dtype).eps)


def test_weights_decay_and_biases_do_not(place):
    """Without a gradient, weights go towards zero by the rate and biases stay."""
    p, zeros = np.array([4, -4, 4, -4], place.dtype), np.zeros(4, place.dtype)
    arrays = place.arrays(Adam(lr=0.5, eps=1e-12, reg=0.1), p, zeros, zeros, zeros, 0)
    place.run(Update(arrays, [Segment(0, 4, 2)]))
    np.testing.assert_allclose(arrays.parameters.to_host(), [3.5, -3.5, 4, -4], rtol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_no_number_shows_in_its_parameter(place, rng, value):
    before = drawn(rng, 12, place.dtype)
    before[1][5] = value
    arrays = place.arrays(RULE, *before, 2)
    place.run(Update(arrays, [Segment(0, 12, 7)]))
    assert np.isfinite(arrays.parameters.to_host()).tolist() == [i != 5 for i in range(12)]


@pytest.mark.parametrize("steps", [0, 1, 10, 1000, 10**6])
def test_the_count_goes_on_from_any_step(place, steps):
    """As after a resume: devices and the host multiply to the same bits."""
    zeros = np.zeros(4, place.dtype)
    arrays = place.arrays(Adam(), zeros, zeros, zeros, zeros, steps)
    place.run(EndStep(arrays, None), EndStep(arrays, None))
    np.testing.assert_array_equal(arrays.clock.to_host(), Adam().clock_at(steps + 2))
    assert arrays.clock.to_host()[0] == steps + 2
    np.testing.assert_allclose(
        Adam().clock_at(steps)[1:], [0.9 ** (steps + 1), 0.999 ** (steps + 1)], 1e-12, 1e-300
    )


@pytest.mark.kernels
@pytest.mark.parametrize("rows, columns", [(7, 12), (5, 13), (64, 64)])
@pytest.mark.parametrize("first_row", [0, 4])
def test_components_follow_the_weights(driver, library, rng, rows, columns, first_row):
    place = Place(driver, Kernels(library, np.float32), np.float32)
    weights, first = rows * columns, first_row * columns
    before = drawn(rng, weights + 3, np.float32)
    arrays = place.arrays(RULE, *before, 2)
    components = Components.empty(driver, 3, rows, columns)
    place.run(Update(arrays, [Segment(first, weights + 3 - first, weights - first, first, components)]))
    bits = components.matrix.to_host().reshape(3, rows, components.ld)[:, :, :columns]
    sums = (bits.astype(np.uint32) << 16).view(np.float32).astype("f8").sum(axis=0)
    new = arrays.parameters.to_host()[:weights].reshape(rows, columns)
    np.testing.assert_allclose(sums[first_row:], new[first_row:], rtol=2.0**-24)
    assert not sums[:first_row].any()


@pytest.mark.sanitizer
@pytest.mark.kernels
def test_small_grid(driver, library, kernels, dtype, rng):
    place, before = Place(driver, kernels, dtype), drawn(rng, 1009, dtype)
    arrays = place.arrays(RULE, *before, 3)
    kernel = kernels.kernel("nn/update", "update", UPDATE=RULE.header)
    segment = kernels.upload(Segment(0, 1009, 700).packed())
    kernel.bind((3,), (64,), segment, arrays.packed(kernels, None), arrays.gradients)(place.stream)
    place.run(EndStep(arrays, None))
    check(arrays, *expected(RULE, *before, 3, 700), slice(None))
    np.testing.assert_allclose(arrays.clock.to_host(), RULE.clock_at(4), rtol=1e-13)


def test_the_word_of_the_option_names_it():
    assert OPTIMISERS["adam"] is Adam and Adam().states == ("m", "v") and Adam().clock == 3


# whole runs


@pytest.fixture
def digits(shared: Path) -> str:
    """50 random images of 3 x 4 pixels in three classes, and 3 to test."""
    if join().rank == 0:
        rng = np.random.default_rng(0)
        images = {f"x_{name}": rng.integers(0, 256, (n, 3, 4)).astype(np.uint8) for name, n in SETS.items()}
        labels = {f"y_{name}": np.arange(n) % 3 for name, n in SETS.items()}
        np.savez(shared / "digits.npz", **images, **labels)
    join().comm.barrier()
    return str(shared / "digits.npz")


SETS = {"train": 50, "test": 3}

ADAM = {"optimiser": "adam", "lr": 0.01, "eps": 1e-4, "reg": 0.01, "hidden": (9, 7), "epochs": 3}
"""Of a gradient that is all rounding a step of Adam is as long as of any other, were it not for eps."""

RAGGED = {"samples": 45, "batch": 20}
CASES = [
    {**RAGGED, "dtype": "float32"},
    {**RAGGED, "dtype": "float64", "eps": 1e-8, "beta1": 0.5, "beta2": 0.9},
    {"samples": 7, "batch": 3, "dtype": "float64", "activation": "tanh"},  # ranks without samples
]


def failed(source, exchanges, **where):
    """The runs that end at other parameters than the reference."""
    found = []
    for turn, exchange in enumerate(exchanges if join().size > 1 else exchanges[:1]):
        nodes = {"ranks_per_node": 2} if exchange == "hierarchical" else {}
        turn = (turn + join().size) % len(CASES)
        for case in few([CASES[turn]], of=CASES):
            options = using(data=source, exchange=exchange, check=True, **{**ADAM, **case}, **nodes, **where)
            report = train(options)
            standing_still.allow()
            if not report.passed:
                found.append((exchange, case, str(report.check)))
    return found


@pytest.mark.parallel(few([1, 3], of=[1, 2, 3, 4]))
def test_every_exchange_trains_the_network_of_the_reference(digits):
    exchanges = [name for name in choices() if name not in ("peer", "hierarchical")]
    assert not failed(digits, exchanges)


@pytest.mark.parallel(few([2], of=[1, 2, 4]))
def test_so_it_does_with_kernels(driver, digits):
    """The sums of the first three are on the host, as those above are."""
    exchanges = [name for name in choices() if name != "device" or verdict(join(), driver).is_proven]
    without = [name for name in exchanges if name not in ("root", "blocking", "host")]
    assert not failed(digits, few(without, of=exchanges), device=driver.name, share_gpus=True)


@pytest.mark.long
@pytest.mark.parallel(few([4], of=[2, 4]))
@pytest.mark.parametrize("exchange", few(["peer"], of=["host", "peer"]))
def test_so_it_does_where_layers_are_split(driver, digits, exchange):
    """Of some layers' gradients the sums are over all ranks, of others over some: one step ends for both."""
    grid = {2: "1x2", 4: "2x2"}[join().size]
    where = {"plan": "model", "grid": grid, "device": driver.name, "share_gpus": True}
    assert not failed(digits, [exchange], **where)


@pytest.mark.long
@pytest.mark.parametrize("gemm", few(["mma"], of=["mma", "wgmma"]))
def test_so_it_does_on_tensor_cores(driver, gemm):
    if not runs_gemm(gemm, driver.architecture):
        pytest.skip("needs other tensor cores")
    options = using(device=driver.name, gemm=gemm, check=True, samples=55, batch=45)
    report = train(using(options, **{**ADAM, "hidden": (40, 36)}))
    assert report.passed, str(report.check)


@pytest.mark.long
@pytest.mark.parallel(few([2], of=[1, 2]))
def test_graphs_placements_and_orders_give_the_same_bits(driver, digits, shared):
    weights = set()
    ways = [
        {"graph": graph, "placement": place} for graph in (False, True) for place in ("stream", "resident")
    ]
    if driver.name == "emulated":
        ways += [{"sanitize": True}, {"order_seed": 3}]
    exchanges = ("host", "peer") if join().size > 1 else ("host",)
    for exchange, way in spread(exchanges, ways, by=2):
        where = {"device": driver.name, "share_gpus": True, "exchange": exchange}
        train(using(data=digits, save=shared / "w.npz", **{**ADAM, **RAGGED}, **where, **way))
        join().comm.Barrier()
        weights.add((exchange, *saved(shared / "w.npz").items()))
        join().comm.Barrier()
    assert len(weights) == len(exchanges)


# resumed


@pytest.fixture
def runs(shared: Path, digits, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(shared, digits, monkeypatch)


def check_bits(runs: Runs, stops: Sequence[int], **changes: object) -> None:
    """A run that stops after each of these steps, and goes on, is one that never stops."""
    changes = {**ADAM, **RAGGED, **changes}
    whole = runs.outcome(runs(**changes))
    for stop in stops:
        assert runs.kept(stop=stop, checkpoint_every=str(stop), **changes).preempted
        assert runs.outcome(runs.resumed(**changes)) == whole, (stop, changes)
        assert f"resumed at step {stop}" in runs.said.lines
        runs.clear()
        standing_still.allow()


@pytest.mark.parametrize("dtype", few(["float32"], of=["float32", "float64"]))
def test_any_step_can_be_the_last_before_a_break(runs: Runs, dtype: str) -> None:
    check_bits(runs, few([3], of=range(1, 6)), dtype=dtype, val_fraction=0.0)


@pytest.mark.kernels
@pytest.mark.parametrize("graph", few([True], of=[True, False]))
def test_a_device_goes_on_with_the_same_bits(runs: Runs, driver, graph: bool) -> None:
    check_bits(runs, few([4], of=[2, 4]), device=driver.name, graph=graph)


@pytest.mark.parallel(few([3], of=[2, 3]))
def test_ranks_go_on_with_the_same_bits(runs: Runs) -> None:
    for exchange in few([], of=["root", "blocking", "host"]):
        check_bits(runs, [4], exchange=exchange)
    check_bits(runs, [4], plan="model", exchange="host")


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel(few([2], of=[2, 4]))
def test_ranks_on_a_device_go_on_with_the_same_bits(runs: Runs, driver) -> None:
    where = {"device": driver.name, "share_gpus": True}
    names = ["peer", *(["device"] if verdict(join(), driver).is_proven else [])]
    for exchange in few(names[1:], of=names):  # peer is below
        check_bits(runs, [4], exchange=exchange, **where)
    if LONG:
        check_bits(runs, [4], exchange="hierarchical", ranks_per_node=2, **where)
    check_bits(runs, [4], plan="model", exchange="peer", **where)


def test_a_step_that_is_counted_wrongly_shows(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above would not see, were it of no account."""
    changes = {**ADAM, **RAGGED}
    whole = runs.outcome(runs(**changes))
    runs.kept(stop=4, **changes)
    clock_at = Adam.clock_at
    monkeypatch.setattr(Adam, "clock_at", lambda rule, step: clock_at(rule, step + (step == 4)))
    weights, _, _ = runs.outcome(runs.resumed(**changes))
    assert weights != whole[0]
