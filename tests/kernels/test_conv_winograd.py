"""conv/winograd.cu: its matrices, both tiles, ragged ones, slices, products of numbers and of components."""

import itertools
import re
from fractions import Fraction

import numpy as np
import pytest

from nn.launch.conv import winograd
from nn.launch.conv.convolution import Convolution, FilterGradient, InputGradient
from nn.launch.conv.winograd import Tiles, bind_winograd, fits_winograd
from nn.launch.kernels import Kernels
from nn.model.conv2d import Conv2d
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KERNELS, KernelLibrary
from tests import few, spread

WORKS = Convolution, InputGradient, FilterGradient
H100 = DeviceProperties("H100", "sm_90a", 132, 227 << 10)

CASES = [
    (Conv2d(1, 3, padding=1), (1, 1, 1), 1),
    (Conv2d(2, 3, padding=4), (1, 2, 3), 2),  # tiles of nothing but padding
    (Conv2d(5, 3), (3, 3, 2), 3),  # one window
    (Conv2d(7, 3, padding="same"), (5, 11, 17), 2),
    (Conv2d(3, 3), (13, 8, 1), 2),  # the last tiles are partly outside, on both sides
    (Conv2d(64, 3, padding=1), (8, 8, 40), 2),
]
"""Layers, images, samples."""

POINTS = {2: [0, 1, -1], 4: [0, 1, -1, 2, -2]}
"""Where polynomials are evaluated, beside infinity, by the side of a tile."""

GAIN = {2: 1, 4: 8}
"""How many times the roundings of plain sums a tile has: the large one multiplies by numbers up to 8."""


KERNELS_OF = [("float32", "tiled"), ("float64", "tiled"), ("float32", "wgmma")]


@pytest.fixture(params=KERNELS_OF, ids="-".join)
def kernels(request, library):
    dtype, gemm = request.param
    return Kernels(library, dtype, gemm=gemm, conv="winograd")


class Case:
    """Arrays of one layer on the host, and its works on a device."""

    def __init__(self, rng, kernels, layer, image, samples):
        self.layer, self.window = layer, layer.window(image)
        shapes = (samples, *image), (samples, *layer.output_shape(image)), layer.parameter_shapes(image)["W"]
        dtype = {"float": np.float32, "double": np.float64}[kernels.real]
        self.A, self.dZ, self.W = (rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes)

    def bind(self, kind, array):
        """The work, and the array that it writes; ``array`` makes those of host arrays."""
        hosts = [np.array(host.reshape(len(host), -1)) for host in (self.A, self.dZ, self.W)]
        place = {Convolution: 1, InputGradient: 0, FilterGradient: 2}[kind]
        hosts[place][:] = np.nan
        arrays = [array(host) for host in hosts]
        return kind(*arrays, self.window), arrays[place]

    def expected(self, kind, of=lambda x: x):
        """The result by nn/model/conv2d.py in float64; ``of`` the arrays."""
        A, dZ, W = (of(array.astype(np.float64)) for array in (self.A, self.dZ, self.W))
        parameters = {"W": W, "b": np.zeros(len(W))}
        if kind is Convolution:
            return self.layer.forward(parameters, A)
        dA, gradients = self.layer.backward(parameters, A, np.zeros_like(dZ), dZ)
        return dA if kind is InputGradient else gradients["W"]

    def check(self, kind, result, out):
        """Compare with float64, relative to the largest sum of absolute values.

        The numbers of a tile share roundings. Sums of n terms have as many as in test_convolution.py.
        """
        found, expected, size = result.to_host(), self.expected(kind), self.expected(kind, np.abs).max()
        terms = 9 * max(self.A.shape[-1], len(self.W)) if kind is not FilterGradient else self.dZ[..., 0].size
        bound = GAIN[out] * 2 * (4 + np.sqrt(terms)) * np.finfo(found.dtype).eps / 2 * size
        np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("kernels", "out", "case"),
    [
        pytest.param(kernels, out, case, marks=[pytest.mark.sanitizer] if case is CASES[-1] else [])
        for kernels, out, case in spread(KERNELS_OF, [2, 4], CASES, by=4)
    ],
    indirect=["kernels"],
    ids=str,
)
def test_both_tiles_against_float64_same_bits_twice(kernels, device, rng, case, out):
    case = Case(rng, kernels, *case)
    for kind in WORKS:
        (first, result), (second, again) = (case.bind(kind, device.array) for _ in range(2))
        device.run(*(bind_winograd(kernels, work, Tiles.of(work, [out])) for work in (first, second)))
        case.check(kind, result, out)
        assert result.to_host().tobytes() == again.to_host().tobytes()


@pytest.mark.parametrize(("size", "samples"), few([(3, 5)], of=[(1, 2), (1, 5), (2, 5), (3, 5), (4, 5)]))
def test_samples_in_slices(kernels, device, rng, monkeypatch, size, samples):
    """So many samples at once, or one where not even one fits; the sums to the filters go on."""
    channels = 33 if kernels.uses_components else 3  # fewer have no components
    case = Case(rng, kernels, Conv2d(channels, 3, padding=1), (13, 18, channels), samples)
    for kind, out in zip(WORKS, (4, 4, 2), strict=True):
        work, result = case.bind(kind, device.array)
        tiles, real = Tiles.of(work, [out]), work.images.dtype.itemsize
        number = 2 * kernels.components if kernels.uses_components else real
        row = channels * (number + (number if kind is FilterGradient else real))
        each = tiles.each * tiles.places * row
        for name in ("SLICE_BYTES", "FILTER_SLICE_BYTES"):
            monkeypatch.setattr(winograd, name, size * each if size > 1 else each // 2)
        launch = bind_winograd(kernels, work, tiles)
        assert launch.kernels.count("winograd_images") == -(-samples // size)
        assert any("batch" in name for name in launch.kernels) == kernels.uses_components
        device.run(launch)
        case.check(kind, result, out)


def test_what_lies_around_in_memory_is_neither_read_nor_written(kernels, device, rng):
    case = Case(rng, kernels, Conv2d(5, 3, padding=1), (5, 7, 3), 2)
    for kind, out in itertools.product(WORKS, (2, 4)):
        wholes = []

        def within(host, wholes=wholes):
            """Rows between rows of NaN."""
            around = np.full_like(host[:1], np.nan)
            wholes.append(device.array(np.concatenate([around, host, around])))
            return wholes[-1].rows(1, 1 + len(host))

        work, result = case.bind(kind, within)
        device.run(bind_winograd(kernels, work, Tiles.of(work, [out])))
        case.check(kind, result, out)
        assert all(np.isnan(whole.to_host()[[0, -1]]).all() for whole in wholes)


def test_infinity_stays_in_its_sample(kernels, device, rng):
    """And there in the tiles that see it."""
    case = Case(rng, kernels, Conv2d(3, 3), (14, 6, 2), 3)
    case.A[1, 0, 0, 0] = np.inf
    work, result = case.bind(Convolution, device.array)
    device.run(bind_winograd(kernels, work, Tiles.of(work, [4])))
    finite = np.isfinite(result.to_host().reshape(case.dZ.shape))
    assert finite[[0, 2]].all() and finite[1, 4:].all() and not finite[1, 0, 0].any()


def test_gradients_of_nothing_are_nothing(kernels, device, rng):
    case = Case(rng, kernels, Conv2d(5, 3, padding=1), (6, 5, 3), 2)
    case.dZ[:] = 0
    for kind in (InputGradient, FilterGradient):
        work, result = case.bind(kind, device.array)
        device.run(work.on_device(kernels))
        assert not result.to_host().any()


def matrices(out):
    """B^T, G and A^T as conv/winograd.cu has them."""
    text = (KERNELS / "conv" / "winograd.cu").read_text()
    tables = re.findall(r"constexpr real (?:B_T|G|A_T)\[.*?\]\[.*?\] =\s*\{(.*?)\};", text, re.DOTALL)
    found = []
    for table in tables[:3] if out == 2 else tables[3:]:
        rows = re.findall(r"\{([^{}]+)\}", table)
        found.append([[Fraction(eval(x, {"real": Fraction})) for x in row.split(",")] for row in rows])
    return found


@pytest.mark.parametrize("out", POINTS)
def test_the_matrices_are_those_of_toom_and_cook(out):
    """Derived from the points: the rows of B^T and of G but for a factor that they share."""
    points = [Fraction(point) for point in POINTS[out]]
    B_T, G, A_T = matrices(out)
    for row, point in enumerate(points):
        others = [other for other in points if other != point]
        scale = np.prod([point - other for other in others])
        polynomial = np.array([Fraction(1)])  # product of (x - other), its coefficients from 1 on
        for other in others:
            polynomial = np.convolve(polynomial, [-other, Fraction(1)])
        powers = np.array([point**power for power in range(3)]) / scale
        assert np.array_equal(np.outer(G[row], B_T[row]), np.outer(powers, [*polynomial, Fraction(0)]))
        assert [A_T[power][row] for power in range(out)] == [point**power for power in range(out)]
    whole = np.array([Fraction(1)])
    for point in points:
        whole = np.convolve(whole, [-point, Fraction(1)])
    assert B_T[-1] == list(whole) and G[-1] == [0, 0, 1]
    assert [row[-1] for row in A_T] == [0] * (out - 1) + [1]


@pytest.mark.parametrize(
    ("side", "out"), [(1, 2), (2, 2), (3, 4), (4, 4), (5, 2), (6, 2), (7, 4), (9, 4), (14, 4), (224, 4)]
)
def test_the_tile_of_fewer_multiplications(side, out):
    """16 for each 2 x 2, 36 for each 4 x 4; of as many, the one that rounds less."""
    kernels = Kernels(KernelLibrary(NullDriver(H100)), np.float32, conv="winograd")
    for kind in WORKS:
        work = on_null(kernels, kind, side)
        assert Tiles.of(work).out == out
        assert kernels.choose(work) == "winograd"


@pytest.mark.parametrize(("size", "stride"), [((3, 3), 2), ((3, 2), 1), ((1, 3), 1), ((5, 5), 1)])
def test_other_windows_are_im2col(size, stride):
    kernels = Kernels(KernelLibrary(NullDriver(H100)), np.float32, conv="winograd")
    for kind in WORKS:
        work = on_null(kernels, kind, 8, size, stride)
        assert not fits_winograd(work) and kernels.choose(work) == "im2col"
        assert "winograd_images" not in work.on_device(kernels).kernels


def on_null(kernels, kind, side, size=(3, 3), stride=1):
    """A work of 64 channels and filters on a device that only counts."""
    window = Window.over("conv", (side, side, 64), size, stride, "same")
    sizes = (5, side * side * 64), (5, window.places * 64), (64, window.pixels)
    return kind(*(DeviceArray.empty(kernels.driver, shape, np.float32) for shape in sizes), window)
