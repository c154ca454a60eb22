"""nn/fused_step.cu against the equations of nn/model/reference.py in NumPy's float64."""

import itertools

import numpy as np
import pytest

from nn.input.source import BatchCursor
from nn.launch.fused_step import FusedStep, FusedStepShape, fused_step_fits
from nn.launch.kernels import Kernels
from nn.model import reference
from pyrt.arrays import DeviceArray
from tests import few, spread

ROWS, INPUTS, HIDDEN, CLASSES = [1, 3, 64, 65, 256], [5, 97, 784], [1, 7, 32, 33, 128], [2, 10, 32]
SIZES = [
    (rows, INPUTS[(i + j) % 3], HIDDEN[(i + 2 * j) % 5], CLASSES[j])
    for i, rows in enumerate(ROWS)
    for j in range(3)
]
BIG = [(64, 784, 32, 10), (256, 784, 128, 10)]
"""Those of bench/nets.py."""

H200 = 132
"""Multiprocessors."""

NAMES = ("dW1", "db1", "dW2", "db2", "loss")


@pytest.fixture
def single(library):
    return Kernels(library, np.float32)


class Case:
    """Random inputs, what must come out of them, and how far rounding may move it."""

    def __init__(self, rng, sizes, loss="softmax", activation="sigmoid", pixel=np.uint8):
        rows, inputs, hidden, classes = self.sizes = sizes
        self.loss, self.activation = loss, activation
        count = rows + 5
        self.images = rng.integers(0, 256, (count, inputs)).astype(pixel)
        self.labels = rng.integers(0, classes, count).astype(np.int32)
        self.order = rng.permutation(np.arange(2 * count) % count).astype(np.int32)
        self.W1 = rng.normal(0, 2 / np.sqrt(inputs), (hidden, inputs)).astype("f4")
        self.b1 = rng.normal(0, 1, hidden).astype("f4")
        self.W2 = rng.normal(0, 2 / np.sqrt(hidden), (classes, hidden)).astype("f4")
        self.b2 = rng.normal(0, 1, classes).astype("f4")
        self.place, self.scale = 3, 1 / rows

    def bind(self, kernels, device, blocks):
        """The launch, the arrays that it writes, NaN beforehand, and the cursor."""
        rows, inputs, hidden, classes = self.sizes
        shapes = ((hidden, inputs), hidden, (classes, hidden), classes, 1)
        out = {name: device.poisoned(shape, "f4") for name, shape in zip(NAMES, shapes, strict=True)}
        cursor = BatchCursor(device.array(np.array([self.place, 0], np.int32)), rows, len(self.order))
        step = FusedStep(
            self.loss,
            self.activation,
            rows,
            *(device.array(array) for array in (self.images, self.labels, self.order)),
            cursor,
            255.0,
            False,
            *(device.array(array) for array in (self.W1, self.b1, self.W2, self.b2)),
            *out.values(),
            self.scale,
        )
        return step.on_device(kernels, blocks), out, cursor.state

    def run(self, kernels, device, blocks=H200):
        launch, out, cursor = self.bind(kernels, device, blocks)
        device.run(launch)
        assert cursor.to_host().tolist() == [(self.place + self.sizes[0]) % len(self.order), 0]
        return {name: array.to_host() for name, array in out.items()}

    def check(self, out):
        """Each sum against float64, to some roundings of its terms' magnitudes.

        X W1^T is the sum of at most 16 sums of at most 128 terms, in halves: its error reaches A by f', at
        most 1, and Z2 by |W2|, and so G, whose slope is at most 1. Sums over rows are of chains of at most
        64.
        """
        rows = self.sizes[0]
        mine = self.order[self.place : self.place + rows]
        X, labels = self.images[mine].astype(np.float64) / 255, self.labels[mine]
        W1, b1, W2, b2 = (array.astype(np.float64) for array in (self.W1, self.b1, self.W2, self.b2))
        f, derivative = reference.ACTIVATIONS[self.activation]
        A = f(X @ W1.T + b1)
        Z = A @ W2.T + b2
        G = reference.probabilities(Z, self.loss)
        G[np.arange(rows), labels] -= 1
        slope = derivative(A)
        dZ = (G @ W2) * slope
        losses = reference.losses(Z, labels, self.loss)

        eps = np.finfo(np.float32).eps
        A_off = 24 * eps * (1 + X @ np.abs(W1).T + np.abs(b1))
        Z_off = A_off @ np.abs(W2).T + 24 * eps * (np.abs(A) @ np.abs(W2).T + np.abs(b2))
        G_off = np.broadcast_to(8 * eps + 2 * Z_off.max(axis=1, keepdims=True), G.shape)
        # f' changes by at most 2 a change of A; that of relu jumps at 0, near which no sum may lie.
        dZ_off = (G_off @ np.abs(W2)) * np.abs(slope) + (np.abs(G) @ np.abs(W2)) * (2 * A_off + 24 * eps)
        rounding = 32 * eps
        bounds = {
            "dW1": (dZ.T @ X, dZ_off.T @ X + rounding * np.abs(dZ).T @ X),
            "db1": (dZ.sum(axis=0), dZ_off.sum(axis=0) + rounding * np.abs(dZ).sum(axis=0)),
            "dW2": (G.T @ A, G_off.T @ np.abs(A) + np.abs(G).T @ (A_off + rounding * np.abs(A))),
            "db2": (G.sum(axis=0), G_off.sum(axis=0) + rounding * np.abs(G).sum(axis=0)),
            "loss": (losses.sum(), self.sizes[3] * Z_off.sum() + rounding * (losses.sum() + rows)),
        }
        for name, (expected, error) in bounds.items():
            off = np.abs(out[name] - self.scale * expected)
            assert np.all(off <= self.scale * error), (name, float((off / (self.scale * error)).max()))


KINDS = few(
    [("softmax", "sigmoid"), ("sigmoid", "tanh")],
    of=list(itertools.product(("softmax", "sigmoid"), ("sigmoid", "tanh"))),
)


@pytest.mark.parametrize("sizes", few(SIZES[::7], of=[*SIZES, *BIG]), ids=str)
def test_random_inputs(single, device, rng, sizes):
    """Tiles, chunks and tasks as many as an H200 has multiprocessors."""
    case = Case(rng, sizes, *KINDS[sum(sizes) % len(KINDS)])
    case.check(case.run(single, device))


ACTIVATIONS = ("identity", "sigmoid", "tanh", "relu")
VARIANTS = list(itertools.product(("softmax", "sigmoid"), ACTIVATIONS, ("u1", "f4"), (32, 60, 128)))


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "loss, activation, pixel, hidden",
    few(
        [("softmax", "identity", "f4", 60), ("sigmoid", "relu", "u1", 32), ("softmax", "relu", "u1", 32)],
        of=VARIANTS,
    ),
)
def test_every_variant(single, device, rng, loss, activation, pixel, hidden):
    case = Case(rng, (9, 20, hidden, 3), loss, activation, pixel)
    case.check(case.run(single, device, 5))


@pytest.mark.parametrize("blocks", [1, 2, 7, H200])
def test_any_grid(single, device, rng, blocks):
    """Blocks with several tiles, and with none; the same bits twice, from one launch after another."""
    case = Case(rng, (65, 44, 40, 10))
    launch, out, cursor = case.bind(single, device, blocks)
    runs = []
    for _ in range(2):
        cursor.set(np.array([case.place, 0], np.int32))
        device.run(launch)
        runs.append({name: array.to_host() for name, array in out.items()})
        for array in out.values():
            array.set(np.full(array.shape, np.nan, "f4"))
    case.check(runs[0])
    assert all(runs[0][name].tobytes() == runs[1][name].tobytes() for name in NAMES)


@pytest.mark.sanitizer
def test_the_next_batch_is_the_next_launch(single, device, rng):
    """Nothing of an earlier launch is taken for news: places are used again in the next one, or the third."""
    case = Case(rng, (3, 10, 7, 3))
    launch, out, _ = case.bind(single, device, 5)
    for _ in range(4):
        device.run(launch)
        case.check({name: array.to_host() for name, array in out.items()})
        case.place += 3


def test_what_was_told_is_forgotten(single, device, rng, monkeypatch):
    """At the end of a launch nothing is there but what it told of its rows, in one of two places in turn."""
    made, make = [], DeviceArray.from_host
    monkeypatch.setattr(DeviceArray, "from_host", lambda *given: made.append(make(*given)) or made[-1])
    rows, _, _, classes = sizes = (3, 10, 7, 4)
    launch, *_ = Case(rng, sizes).bind(single, device, 5)
    news, _ = made[-2:]
    shape = FusedStepShape.of(sizes, 5)
    for number in range(3):
        device.run(launch)
        is_there = news.to_host().view(np.uint32) != 0xFFFFFFFF
        sums, of_rows = np.split(is_there, [rows * shape.units * shape.chunks])
        now, before = np.roll(of_rows.reshape(2, -1), number % 2, axis=0)
        assert not sums.any() and not before.any()
        assert now.sum() == rows * (2 * shape.units + classes + 1)


@pytest.mark.parametrize(
    ("loss", "value"), spread(["softmax", "sigmoid"], [np.nan, np.inf, -np.inf], by=2), ids=str
)
def test_what_is_not_finite_shows_in_the_loss(single, device, rng, loss, value):
    case = Case(rng, (5, 12, 7, 10), loss, "relu")
    case.b2[9] = value
    assert not np.isfinite(case.run(single, device, 5)["loss"])
    case.b2[9], case.b1[3] = 0, np.nan
    assert not np.isfinite(case.run(single, device, 5)["loss"])


@pytest.mark.parametrize("name", ["W1", "b1", "b2"])
def test_a_NaN_that_looks_like_a_missing_number_comes(single, device, rng, name):
    """Of all ones, which processors pass on."""
    case = Case(rng, (5, 12, 7, 10))
    getattr(case, name).view(np.uint32)[...] = 0xFFFFFFFF
    assert all(np.isnan(array).all() for array in case.run(single, device, 5).values())


def test_huge_logits(single, device, rng):
    """No overflow and no log(0), wherever the label is."""
    case = Case(rng, (40, 12, 4, 10), "softmax", "relu")
    case.W2 = (np.sign(case.W2) * 10.0 ** rng.integers(-3, 30, case.W2.shape)).astype("f4")
    assert all(np.all(np.isfinite(array)) for array in case.run(single, device, 5).values())


def test_what_fits():
    """Those that bench/nets.py times do, on an H200 and on half of an A100; larger ones do not."""
    for sizes in BIG:
        assert fused_step_fits(sizes, H200, 227 << 10) and fused_step_fits(sizes, 54, 163 << 10)
        assert FusedStepShape.of(sizes, H200).tasks <= H200
    assert not fused_step_fits((257, 784, 32, 10), H200, 227 << 10)
    assert not fused_step_fits((256, 784, 129, 10), H200, 227 << 10)
    assert not fused_step_fits((64, 784, 32, 33), H200, 227 << 10)
    assert not fused_step_fits((256, 3072, 128, 10), H200, 227 << 10)
    assert not fused_step_fits((256, 784, 128, 10), H200, 48 << 10)


def test_arrays_of_other_shapes_are_refused(single, device, rng):
    case = Case(rng, (4, 10, 7, 3))
    case.b1 = case.b1[:6]
    with pytest.raises(ValueError, match="b1"):
        case.run(single, device)
