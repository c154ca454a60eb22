"""nn/fused_classifier.cu against the equations of nn/model/reference.py in NumPy's float64."""

import itertools

import numpy as np
import pytest

from nn.launch.classifier import FusedClassifier, fused_classifier_partials
from nn.launch.gemm.components import Components
from nn.launch.kernels import Kernels
from nn.model import reference
from tests import few, spread

ROWS, HIDDEN, CLASSES = [1, 7, 97, 131], [1, 5, 64, 70, 130], [2, 3, 10, 17, 32]
SIZES = [
    *((rows, HIDDEN[(i + j) % 5], CLASSES[j]) for i, rows in enumerate(ROWS) for j in range(5)),
    (9, 512, 10),  # slices of rows
    (40, 140, 32),
]
WIDE = {"float32": 1030, "float64": 514}  # more columns than the threads of a block take at once


class Case:
    """Random inputs, what must come out of them, and how far rounding may move it."""

    def __init__(self, rng, dtype, rows, hidden, classes, kind, activation, scale=1 / 3000):
        f, derivative = reference.ACTIVATIONS[activation]
        self.dtype, self.kind, self.activation, self.scale = np.dtype(dtype), kind, activation, scale
        self.A = f(rng.normal(0, 1.5, (rows, hidden))).astype(dtype)
        self.W = rng.normal(0, 2 / np.sqrt(hidden), (classes, hidden)).astype(dtype)
        self.b = rng.normal(0, 1, classes).astype(dtype)
        self.labels = rng.integers(0, classes, rows).astype(np.int32)
        self.rows, self.hidden, self.classes = rows, hidden, classes
        self.derivative = derivative

    def run(self, kernels, device, blocks, components=0, ld=None):
        """What the kernels write, by name; all of it NaN beforehand."""
        _, width = fused_classifier_partials(self.rows, self.hidden, self.classes, self.dtype, blocks)
        shapes = {
            "dZ": self.A.shape,
            "dW": self.W.shape,
            "db": self.b.shape,
            "db_hidden": self.hidden,
            "loss": 1,
        }
        out = {name: device.poisoned(shape, self.dtype) for name, shape in shapes.items()}
        inputs = (device.array(x) for x in (self.A, self.W, self.b, self.labels))
        split = None
        if components:
            ld = ld or -(-self.hidden // 64) * 64
            bits = device.array(np.full(components * self.rows * ld, 0x7FC0, np.uint16))
            split = Components(bits, components, self.rows, self.hidden, ld, self.rows * ld)
        end = FusedClassifier(self.kind, self.activation, *inputs, *out.values(), self.scale, split)
        partials = device.poisoned((blocks, width), self.dtype)
        device.run(end.bind_gradient(kernels, partials), end.bind_sums(kernels, partials))
        result = {name: array.to_host() for name, array in out.items()}
        if split is not None:
            assert np.isnan(result.pop("dZ")).all()  # the components are in its place
            result["components"] = split.matrix.to_host()
        return result

    def check(self, out):
        """Each sum against float64: `roundings` of its components' magnitudes.

        A sum in a tree, or of partial sums, of a chain of at most 64 rows or as many columns; the error of
        the logits, some `roundings` of |A| |W|, reaches G, whose slope is at most 1, so that G is as far off
        as that, relative to 1, not to itself.
        """
        A, W, b = (x.astype(np.float64) for x in (self.A, self.W, self.b))
        Z = A @ W.T + b
        G = reference.probabilities(Z, self.kind)
        G[np.arange(len(G)), self.labels] -= 1
        slope = self.derivative(A)
        dZ = (G @ W) * slope
        losses = reference.losses(Z, self.labels, self.kind)

        roundings = 24 * np.finfo(self.dtype).eps
        off = roundings * (1 + (np.abs(A) @ np.abs(W).T + np.abs(b)).max(axis=1, keepdims=True))
        G_off = np.broadcast_to(off, G.shape)
        # The derivative's own rounding is relative to 1: 1 - a a may cancel.
        dZ_off = (G_off @ np.abs(W)) * np.abs(slope) + roundings * (np.abs(G) @ np.abs(W))
        bounds = {
            "dZ": (dZ, dZ_off),
            "dW": (G.T @ A, G_off.T @ np.abs(A)),
            "db": (G.sum(axis=0), G_off.sum(axis=0)),
            "db_hidden": (dZ.sum(axis=0), dZ_off.sum(axis=0)),
            "loss": (losses.sum(), self.classes * off.sum() + roundings * losses.sum()),
        }
        for name, (expected, error) in bounds.items():
            if name in out:
                off = np.abs(out[name] - self.scale * expected)
                assert np.all(off <= self.scale * error), name


VARIANTS = [
    (kind, activation, *sizes)
    for kind, activation, sizes in itertools.product(
        ("softmax", "sigmoid"), ("identity", "sigmoid", "tanh", "relu"), ((10, 68), (12, 33))
    )
]
"""Lists the kernel's constants but the dtype; `PYRT_LONG=1 make kernels` compiles all of them."""

KINDS = list(itertools.product(("softmax", "sigmoid"), ("sigmoid", "tanh", "relu")))


@pytest.mark.parametrize(
    ("dtype", "size"),
    spread(["float32", "float64"], few([*SIZES[:20:7], *SIZES[20:]], of=SIZES), by=2),
    indirect=["dtype"],
    ids=str,
)
def test_random_inputs(kernels, device, rng, dtype, size):
    """Heads and activations in turn, those that other tests compile too; as many blocks as a GPU of 8
    multiprocessors would get."""
    rows, hidden, classes = size
    kinds = few([("softmax", "sigmoid"), ("sigmoid", "relu")], of=KINDS)
    kind, activation = kinds[(rows + hidden + classes) % len(kinds)]
    case = Case(rng, dtype, rows, hidden, classes, kind, activation)
    blocks, _ = fused_classifier_partials(rows, hidden, classes, dtype, 8)
    case.check(case.run(kernels, device, blocks))


def test_columns_in_several_passes(kernels, device, rng, dtype):
    case = Case(rng, dtype, 70, WIDE[dtype.name], 10, "softmax", "sigmoid")
    case.check(case.run(kernels, device, 1))


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("dtype", "variant"),
    spread(["float32", "float64"], few(VARIANTS[::9], of=VARIANTS), by=2),
    indirect=["dtype"],
    ids=str,
)
def test_every_variant(kernels, device, rng, dtype, variant):
    kind, activation, classes, hidden = variant
    case = Case(rng, dtype, 9, hidden, classes, kind, activation)
    case.check(case.run(kernels, device, 2))


@pytest.mark.parametrize(
    ("dtype", "blocks"), spread(["float32", "float64"], [1, 2, 7, 97, 200], by=2), indirect=["dtype"]
)
def test_any_grid(kernels, device, rng, dtype, blocks):
    """A block with all rows, in several chunks; blocks without rows; the same bits twice."""
    case = Case(rng, dtype, 97, 36, 10, "softmax", "sigmoid")
    first, second = (case.run(kernels, device, blocks) for _ in range(2))
    case.check(first)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.fixture
def single(library):
    return Kernels(library, np.float32)


def to_float(components):
    return (components.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.sanitizer
@pytest.mark.parametrize("classes", [10, 17])
@pytest.mark.parametrize("hidden, ld", [(64, 64), (70, 192), (33, 64)])
def test_components_add_up(single, device, rng, classes, hidden, ld):
    """Each bf16 component has 8 bits, and its rounding leaves one more to the next."""
    case = Case(rng, np.float32, 11, hidden, classes, "softmax", "tanh")
    plain = case.run(single, device, 2)
    dZ = plain["dZ"].astype(np.float64)
    for count in (1, 2, 3):
        out = case.run(single, device, 2, components=count, ld=ld)
        components = to_float(out["components"]).reshape(count, 11, ld)
        assert np.all(np.abs(components[:, :, :hidden].sum(axis=0) - dZ) <= 2.0 ** (-8 * count) * np.abs(dZ))
        assert np.all(np.isnan(components[:, :, hidden + hidden % 2 :]))  # no further than it is said to
        for name in ("dW", "db", "db_hidden", "loss"):
            assert out[name].tobytes() == plain[name].tobytes()


def test_components_of_what_no_float_holds(single, device, rng):
    """Infinite numbers stay infinite: their other components are zeros, not NaN."""
    case = Case(rng, np.float32, 3, 8, 3, "softmax", "relu", scale=3e38)
    case.A = np.ones_like(case.A)
    case.W[:, ::2] = 1e-3 * case.W[:, ::2]
    case.W[:, 1] = [1e5, 2e5, -3e5]
    dZ = case.run(single, device, 1)["dZ"]
    components = to_float(case.run(single, device, 1, components=3)["components"]).reshape(3, 3, 64)[:, :, :8]
    assert np.any(np.isinf(dZ)) and np.any(np.isfinite(dZ))
    np.testing.assert_array_equal(components.sum(axis=0)[np.isinf(dZ)], dZ[np.isinf(dZ)])


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_huge_logits(kernels, device, rng, dtype, kind):
    """No overflow and no log(0), wherever the label is."""
    case = Case(rng, dtype, 40, 4, 10, kind, "relu")
    case.A = np.abs(case.A) + 1
    case.W = (np.sign(case.W) * 10.0 ** rng.integers(-3, 37, case.W.shape)).astype(dtype)
    case.b[:] = 0
    out = case.run(kernels, device, 3)
    assert all(np.all(np.isfinite(array)) for array in out.values())
    Z = case.A.astype(np.float64) @ case.W.T.astype(np.float64)
    expected = case.scale * reference.losses(Z, case.labels, kind).sum()
    assert out["loss"] == pytest.approx(expected, rel=64 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_activations_that_are_not_finite_show_in_the_loss(kernels, device, rng, dtype, kind, value):
    case = Case(rng, dtype, 13, 7, 10, kind, "relu")
    case.A[12, 3] = value
    assert not np.isfinite(case.run(kernels, device, 2)["loss"])


@pytest.mark.parametrize(
    ("kind", "value", "label"),
    spread(["softmax", "sigmoid"], [np.inf, -np.inf, np.nan], [0, 9], by=2),
    ids=str,
)
def test_logits_that_are_not_finite_show_in_the_loss(kernels, device, rng, dtype, kind, value, label):
    """In the label's class or in another."""
    case = Case(rng, dtype, 5, 7, 10, kind, "sigmoid")
    case.b[9] = value
    case.labels[:] = label
    assert not np.isfinite(case.run(kernels, device, 2)["loss"])
