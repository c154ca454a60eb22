"""conv/output_gradient.cu, and the same in NumPy: through pooling and activation in one pass, with db."""

from dataclasses import replace

import numpy as np
import pytest

from nn.launch.column_sums import ColumnSums
from nn.launch.conv.output_gradient import OutputGradient
from nn.launch.elementwise import ActivationBackward
from nn.launch.gemm.components import Components, split
from nn.launch.kernels import Kernels
from nn.launch.pool import PoolGradient
from nn.model.window import Window
from tests import few, spread
from tests.nn.model import loops

F = {
    "identity": (lambda z: z, lambda a: np.ones_like(a)),
    "sigmoid": (lambda z: 1 / (1 + np.exp(-z)), lambda a: a * (1 - a)),
    "tanh": (np.tanh, lambda a: 1 - a**2),
    "relu": (lambda z: np.maximum(z, 0), lambda a: (a > 0).astype(a.dtype)),
}

CASES = [
    (1, (1, 1, 1), None),
    (3, (5, 7, 5), None),
    (4, (8, 9, 12), None),
    (2, (3, 3, 300), None),
    (1, (2, 2, 1100), None),  # several blocks across
    (37, (9, 8, 4), None),  # more rows than blocks take at once
    (2, (4, 6, 3), (2, 2)),
    (3, (5, 7, 8), (3, 2)),  # windows over each other, and a rest
    (2, (7, 7, 6), (2, 3)),  # gaps between them
]
"""Samples, shape of an image, size and stride of a pool."""


class Case:
    """One gradient on the host, float32: A = f(Z), perhaps B = the largest of its windows, and dB."""

    def __init__(self, rng, samples, image, pool, activation):
        self.window = Window.over("pool", image, (pool[0], pool[0]), pool[1], 0) if pool else None
        self.activation = activation
        self.A = F[activation][0](rng.normal(0, 1, (samples, *image))).astype(np.float32)
        self.B, self.places = loops.largest(self.window, self.A) if pool else (self.A, None)
        self.dB = rng.normal(0, 1, self.B.shape).astype(np.float32)

    def expected(self):
        """dZ in float64."""
        A, dB = self.A.astype(np.float64), self.dB.astype(np.float64)
        return (loops.to_largest(self.window, A, dB) if self.window else dB) * F[self.activation][1](A)

    def work(self, array, count):
        """The work with so many components; ``array`` makes arrays of host arrays."""
        A, B, dB = (array(flat(host)) for host in (self.A, self.B, self.dB))
        dA, pooling = dB, None
        if self.window:
            dA = array(np.full(A.shape, np.nan, np.float32))
            pooling = PoolGradient(dA, dB, array(flat(self.places.astype(np.uint8))), self.window, B)
        channels = self.A.shape[-1]
        rows = self.A.size // channels
        db = array(np.full(channels, np.nan, np.float32))
        parts = Components.empty(A.driver, count, rows, channels, packed=True) if count else None
        through = ActivationBackward(A, dA, self.activation)
        return OutputGradient(pooling, through, ColumnSums(dA.reshape(rows, channels), db), parts)


def flat(host):
    return host.reshape(len(host), -1)


def results(work):
    """dZ, or the sum of its components, as a matrix; and db."""
    if work.components is None:
        return work.sums.X.to_host(), work.sums.sums.to_host()
    bits = work.components.numbers.to_host().astype(np.uint32) << 16
    parts = bits.view(np.float32).reshape(work.components.count, *work.sums.X.shape)
    return parts.astype(np.float64).sum(axis=0), work.sums.sums.to_host()


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("case", "activation", "count"),
    spread(CASES, few(["identity"], of=["identity", "relu"]), [1, 2, 3], by=3),
    ids=str,
)
def test_from_components_of_what_was_made_it_is_the_same(place, rng, case, activation, count):
    """The same bits; the float32 numbers themselves are not read by a kernel."""
    (array, run), case = place, Case(rng, *case, activation)
    plain, other = case.work(array, 1), case.work(array, 1)
    channels = other.sums.X.shape[1]
    bits, size = split(case.B, count).reshape(-1), case.B.size
    other = replace(other, nearest=Components(array(bits), count, size // channels, channels, channels, size))
    assert all(array.pointer != other.made.pointer for array in other.reads)
    run(plain)
    run(other)
    for one, same in zip(results(plain), results(other), strict=True):
        assert one.tobytes() == same.tobytes()


def test_other_derivatives_are_not_taken_from_components(device, library, rng):
    case = Case(rng, *CASES[1], "tanh")
    work = case.work(device.array, 1)
    with pytest.raises(ValueError, match="f' of tanh is not taken from bf16"):
        replace(work, nearest=work.components).on_device(Kernels(library, "float32"))


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("case", "activation", "count"),
    spread(CASES, few(["identity", "tanh"], of=list(F)), few([0, 3], of=[0, 1, 3]), by=2),
    ids=str,
)
def test_it_is_what_its_operations_are_one_after_another(place, rng, case, activation, count):
    (array, run), case = place, Case(rng, *case, activation)
    first, second = (case.work(array, count) for _ in range(2))
    run(first)
    run(second)
    (found, db), again = results(first), results(second)
    assert [found.tobytes(), db.tobytes()] == [array.tobytes() for array in again]
    # A bf16 component has 8 bits, three of them float32's 24; up to four gradients of a pixel are added up.
    dZ = case.expected().reshape(found.shape)
    eps = {0: 2**-24, 1: 2**-9, 3: 2**-24}[count]
    np.testing.assert_allclose(found, dZ, rtol=0, atol=8 * eps * np.abs(dZ).max())
    roundings = (8 + len(dZ)) * 2**-24 * np.abs(dZ).sum(axis=0) + 2**-24
    assert np.all(np.abs(db - dZ.sum(axis=0)) <= roundings)
