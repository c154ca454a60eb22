"""nn/tensor_classifier.cu against the equations of nn/model/reference.py in NumPy's float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from nn.launch.classifier import FusedClassifier, fused_classifier_partials
from nn.launch.gemm.components import Components
from nn.launch.kernels import Kernels
from nn.launch.tensor_classifier import shared_bytes, slice_for, tensor_classifier_fits
from nn.model import reference
from tests import few

CASES = [
    (1, 256, 10, "softmax", "relu", 1),
    (16, 512, 3, "sigmoid", "sigmoid", 1),
    (37, 514, 10, "softmax", "sigmoid", 2),  # two columns more than the narrowest slices hold
    (97, 1024, 16, "softmax", "tanh", 2),  # chunks of 16 rows: three full ones, and one of a row
    (75, 2048, 10, "softmax", "sigmoid", 3),
    (11, 1358, 7, "sigmoid", "relu", 5),  # ragged; the last warps have no columns
    (5, 300, 10, "softmax", "sigmoid", 9),  # more blocks than rows
]
"""Rows, hidden units, classes, head, activation, blocks."""

BF16, TF32 = 2.0**-8, 2.0**-11
"""Half of the last bit of numbers, relative to them."""


def rounded(x: np.ndarray) -> np.ndarray:
    """Round to bf16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def as_bits(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@dataclass
class Case:
    """Random inputs; A holds bf16 numbers."""

    A: np.ndarray
    W: np.ndarray
    b: np.ndarray
    labels: np.ndarray
    head: str
    activation: str
    blocks: int
    scale: float = 1 / 3000

    @classmethod
    def random(cls, rng, rows, hidden, classes, head, activation, blocks) -> Case:
        f, _ = reference.ACTIVATIONS[activation]
        A = rounded(f(rng.normal(0, 1.5, (rows, hidden))))
        W = rng.normal(0, 2 / np.sqrt(hidden), (classes, hidden)).astype(np.float32)
        b = rng.normal(0, 1, classes).astype(np.float32)
        return cls(A, W, b, rng.integers(0, classes, rows).astype(np.int32), head, activation, blocks)

    def run(self, kernels, device) -> dict[str, np.ndarray]:
        """Return what the kernels write, by name; all of it is NaN beforehand, as is what pads rows of A."""
        rows, hidden = self.A.shape
        ld = -(-hidden // 64) * 64
        sizes = {"dW": self.W.shape, "db": self.b.shape, "db_hidden": hidden, "loss": 1}
        out = {name: device.poisoned(shape, np.float32) for name, shape in sizes.items()}
        made, dZ = (np.full((rows, ld), 0x7FC0, np.uint16) for _ in range(2))
        made[:, :hidden] = as_bits(self.A)
        made, dZ = (Components(device.array(x.ravel()), 1, rows, hidden, ld, rows * ld) for x in (made, dZ))
        nothing = device.poisoned(self.A.shape, np.float32)  # neither A nor dZ is there in float32
        inputs = (device.array(x) for x in (self.W, self.b, self.labels))
        end = FusedClassifier(
            self.head, self.activation, nothing, *inputs, nothing, *out.values(), self.scale, dZ, made
        )
        _, width = fused_classifier_partials(rows, hidden, len(self.b), np.float32, self.blocks)
        partials = device.poisoned((self.blocks, width), np.float32)
        device.run(end.bind_gradient(kernels, partials), end.bind_sums(kernels, partials))
        result = {name: array.to_host() for name, array in out.items()}
        return {**result, "dZ": to_float(dZ.matrix.to_host()[:, :hidden])}

    def check(self, out: dict[str, np.ndarray]) -> None:
        """Compare each result with float64; allow for W in bf16, G in TF32, and roundings of float32.

        The error of the logits reaches G, whose slope is at most 1: G is as far off as that, relative to 1.
        """
        A, b = self.A.astype(np.float64), self.b.astype(np.float64)
        W = rounded(self.W).astype(np.float64)
        Z = A @ W.T + b
        G = reference.probabilities(Z, self.head)
        G[np.arange(len(G)), self.labels] -= 1
        slope = reference.ACTIVATIONS[self.activation][1](A)
        dZ = (G @ W) * slope
        losses = reference.losses(Z, self.labels, self.head)
        roundings = 40 * np.finfo(np.float32).eps
        logits_off = roundings * (1 + (np.abs(A) @ np.abs(W).T + np.abs(b)).max(axis=1, keepdims=True))
        G_off = logits_off + TF32 * np.abs(G)
        dZ_off = (G_off @ np.abs(W)) * np.abs(slope) + roundings * (np.abs(G) @ np.abs(W))
        bounds = {
            "dZ": (dZ, dZ_off + BF16 * np.abs(dZ)),
            "dW": (G.T @ A, G_off.T @ np.abs(A) + roundings * np.abs(G).T @ np.abs(A)),
            "db": (G.sum(axis=0), (logits_off + roundings * np.abs(G)).sum(axis=0)),
            "db_hidden": (dZ.sum(axis=0), dZ_off.sum(axis=0)),
            "loss": (losses.sum(), len(b) * logits_off.sum() + roundings * losses.sum()),
        }
        for name, (expected, error) in bounds.items():
            assert np.all(np.abs(out[name] - self.scale * expected) <= self.scale * error), name


@pytest.fixture
def kernels(library) -> Kernels:
    return Kernels(library, np.float32)


@pytest.mark.parametrize("case", few([CASES[2], *CASES[5:]], of=CASES), ids=str)
def test_random_inputs(kernels, device, rng, case):
    made = Case.random(rng, *case)
    first, second = (made.run(kernels, device) for _ in range(2))
    made.check(first)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.mark.sanitizer
def test_small(kernels, device, rng):
    made = Case.random(rng, 18, 258, 10, "softmax", "sigmoid", 1)
    made.check(made.run(kernels, device))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_activations_that_are_not_finite_show_in_the_loss(kernels, device, rng, value):
    made = Case.random(rng, 18, 258, 10, "softmax", "sigmoid", 1)
    made.A[17, 257] = value
    assert not np.isfinite(made.run(kernels, device)["loss"])


def test_what_fits():
    room = 227 << 10
    assert [tensor_classifier_fits(hidden, 10, room) for hidden in (254, 256, 511, 2048, 2050)] == [
        *(False, True, False, True, False)
    ]
    assert tensor_classifier_fits(512, 16, room) and not tensor_classifier_fits(512, 17, room)
    assert [slice_for(hidden) for hidden in (256, 512, 514, 1024, 1026, 2048)] == [32, 32, 64, 64, 128, 128]
    assert all(shared_bytes(slice_for(hidden)) <= room for hidden in (512, 1024, 2048))
    assert not tensor_classifier_fits(2048, 10, 99 << 10)


WIDTH = fused_classifier_partials(2, 256, 10, np.float32, 1)[1]
"""Counts the sums that a block leaves of the arrays below."""


def bind(device, kernels, made, dZ, W=None, partials=None):
    """Bind the kernel to 2 rows of 256 hidden units and 10 classes, whose numbers nothing reads."""
    A, b, labels = (device.array(np.zeros(n, dtype)) for n, dtype in ((512, "f4"), (10, "f4"), (2, "i4")))
    A, W = A.reshape(2, 256), device.array(np.zeros((10, 256), "f4")) if W is None else W
    db_hidden, loss = (device.array(np.zeros(n, "f4")) for n in (256, 1))
    end = FusedClassifier(*("softmax", "relu", A, W, b, labels, A, W, b, db_hidden, loss), 1.0, dZ, made)
    if partials is None:
        partials = device.array(np.zeros((1, WIDTH), "f4"))
    end.bind_gradient(kernels, partials)


def components(device, count):
    return Components(device.array(np.zeros(count * 512, np.uint16)), count, 2, 256, 256, 512)


def test_matrices_of_another_form_are_refused(kernels, device):
    one, two = (components(device, count) for count in (1, 2))
    bind(device, kernels, one, one)
    for pair in ((two, two), (one, two), (two, one)):
        with pytest.raises(ValueError, match=r"^tensor_classifier: .*not one component each"):
            bind(device, kernels, *pair)


def test_arrays_that_begin_between_vectors_are_refused(kernels, device):
    """The kernel reads pairs of W, and writes vectors of four sums."""
    one = components(device, 1)

    def shifted(rows, columns, by):
        return (
            device.array(np.zeros(rows * columns + by, "f4"))
            .rows(by, rows * columns + by)
            .reshape(rows, columns)
        )

    with pytest.raises(ValueError, match=r"^tensor_classifier: W at 0x\w+ is not at a multiple of 8 bytes"):
        bind(device, kernels, one, one, W=shifted(10, 256, 1))
    with pytest.raises(ValueError, match=r"^tensor_classifier: partials .* multiple of 16 bytes"):
        bind(device, kernels, one, one, partials=shifted(1, WIDTH, 2))
    bind(device, kernels, one, one, W=shifted(10, 256, 2))
