"""conv/implicit_mma.cu: windows gathered by copies of 16 bytes and of 4, phases, parts of K, the epilogue.

On a GPU these tests run the instructions, on the emulated device their twins. Errors: `Case.check`.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nn.launch.conv import implicit_mma
from nn.launch.conv.convolution import Convolution, FilterGradient, InputGradient
from nn.launch.conv.implicit_mma import bind_implicit_mma, choose, products_of
from nn.launch.gemm.mma import MmaTiling, has_mma
from nn.launch.gemm.product import Epilogue
from nn.launch.kernels import Kernels
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KernelLibrary
from tests import few
from tests.kernels.test_convolution import CASES, KINDS, WIDE, Case

MORE = {
    "quads of channels": ((5, 7, 12), (3, 3), 2, 1, 20, 3),
    "pairs of channels": ((6, 5, 10), (2, 3), 3, 1, 14, 3),
    "a stride larger than images": ((2, 3, 12), (4, 4), 5, 3, 9, 3),
    "phases of many sizes": ((7, 8, 20), (5, 3), 3, "same", 12, 5),
    "more than a tile of everything": ((6, 7, 68), (2, 2), 1, 1, 70, 2),
}
"""As `CASES` and `WIDE`."""

A100 = DeviceProperties("A100", "sm_80", 108, 163 << 10)
TILINGS = MmaTiling(64, 64, 1), MmaTiling(64, 64, 3), MmaTiling(128, 128, 1), MmaTiling(128, 128, 2)


@pytest.fixture
def kernels(library):
    if not has_mma(library.driver.architecture):
        pytest.skip("needs the tensor cores of sm_80")
    return Kernels(library, np.float32, "mma", conv="implicit")


@pytest.fixture
def cut(monkeypatch):
    """Makes all products be cut like this."""
    return lambda tiling: monkeypatch.setattr(implicit_mma, "choose", lambda kernels, work: tiling)


EVERY = {**CASES, **WIDE, **MORE}
CUTS = list(itertools.product(EVERY, KINDS, TILINGS))
SOME = [
    ("17 channels", "forward", TILINGS[0]),
    ("phases of many sizes", "to the input", TILINGS[2]),
    ("a stride larger than images", "to the filters", TILINGS[1]),
    ("more than a tile of everything", "to the filters", TILINGS[3]),
]


@pytest.mark.parametrize(("name", "kind", "tiling"), few(SOME, of=CUTS), ids=str)
def test_every_cut_same_bits_twice(kernels, device, rng, cut, name, kind, tiling):
    cut(tiling)
    case = Case(rng, "float32", *EVERY[name])
    (first, result), (second, again) = (case.bind(kind, device.array) for _ in range(2))
    device.run(bind_implicit_mma(kernels, first), bind_implicit_mma(kernels, second))
    case.check(kind, result)
    assert result.to_host().tobytes() == again.to_host().tobytes()


def within(device, host, first):
    """A copy that begins ``first`` floats into an array of NaN: what is beyond it is not to be read."""
    there = device.array(np.pad(host.ravel(), (first, 5), constant_values=np.nan))
    return there.rows(first, first + host.size).reshape(*host.shape)


@pytest.mark.sanitizer
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("first", "tiling"), [(1, MmaTiling(64, 64, 2)), (4, MmaTiling(128, 128, 1))])
def test_arrays_between_others(kernels, device, rng, cut, first, tiling, kind):
    """At a multiple of 16 bytes, and at none: then copies are of 4 bytes, whatever the channels are."""
    cut(tiling)
    case = Case(rng, "float32", (4, 5, 12), (3, 2), 2, 1, 8, 2)
    work, result = case.bind(kind, lambda host: within(device, host, first))
    device.run(bind_implicit_mma(kernels, work))
    case.check(kind, result)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("activation", few(["tanh"], of=["identity", "sigmoid", "tanh", "relu"]))
def test_bias_and_activation(kernels, device, rng, cut, activation, parts):
    cut(MmaTiling(64, 64, parts))
    case, bias = Case(rng, "float32", (4, 3, 12), (2, 2), 1, 1, 9, 2), rng.uniform(-1, 1, 9).astype("f4")
    work, result = case.bind("forward", device.array)
    device.run(bind_implicit_mma(kernels, work, Epilogue(bias=device.array(bias), activation=activation)))
    z = case.expected("forward") + bias
    f = {"identity": lambda z: z, "sigmoid": lambda z: 1 / (1 + np.exp(-z)), "tanh": np.tanh}
    expected = f.get(activation, lambda z: np.maximum(z, 0))(z)
    # Sums of 48 products below 1: a few roundings of what they reach.
    np.testing.assert_allclose(result.to_host().reshape(expected.shape), expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("kind", few(list(KINDS)[2:], of=list(KINDS)))
def test_tf32_is_as_accurate_as_it_says(library, kernels, device, rng, kind):
    """Errors of 2^-11 of each number, not less: that would mean products that nobody asked for."""
    case = Case(rng, "float32", (5, 6, 16), (3, 3), 1, 1, 16, 2)
    work, result = case.bind(kind, device.array)
    device.run(bind_implicit_mma(Kernels(library, np.float32, "mma", "tf32"), work))
    expected = case.expected(kind)
    error = np.abs(result.to_host().reshape(expected.shape) - expected).max() / np.abs(expected).max()
    assert 2e-6 < error < 1e-3


@pytest.mark.parametrize("parts", [1, 3])
def test_a_rank_without_samples(kernels, device, cut, parts):
    """The gradient of the filters is 0; nothing else is there."""
    cut(MmaTiling(64, 64, parts))
    window = Window.over("conv", (4, 5, 12), (3, 3), 2, 1)
    images, outputs = np.empty((0, 240), "f4"), np.empty((0, window.places * 9), "f4")
    for kind in (Convolution, InputGradient, FilterGradient):
        filters = device.poisoned((9, window.pixels), "f4")
        device.run(
            bind_implicit_mma(kernels, kind(device.array(images), device.array(outputs), filters, window))
        )
    assert np.all(filters.to_host() == 0)


def on_null(device):
    """Kernels on a device that only counts."""
    return Kernels(KernelLibrary(NullDriver(device)), np.float32)


def works(kernels, image, stride, samples):
    """The three of 64 filters of 3 x 3."""
    window = Window.over("conv", image, (3, 3), stride, 1)
    sizes = (samples, int(np.prod(image))), (samples, window.places * 64), (64, window.pixels)
    arrays = [DeviceArray.empty(kernels.driver, size, np.float32) for size in sizes]
    return [kind(*arrays, window) for kind in KINDS.values()]


class TestChoice:
    def test_parts_where_results_are_few(self):
        """Of 128 images of 32 x 32 x 64, 3 x 3, on an A100: to the filters K is 131072 and dW 9 tiles."""
        kernels = on_null(A100)
        forward, to_input, to_filters = works(kernels, (32, 32, 64), 1, 128)
        assert choose(kernels, forward) == choose(kernels, to_input) == MmaTiling(64, 64, 1)
        assert choose(kernels, to_filters).parts > 16

    def test_phases_are_counted(self):
        """At stride 2 dA has four phases; each has a quarter of the pixels, and of the products."""
        kernels = on_null(A100)
        _, work, _ = works(kernels, (33, 32, 64), 2, 3)
        assert products_of(work) == (4, 3 * 17 * 16, 9 * 64 // 4)
