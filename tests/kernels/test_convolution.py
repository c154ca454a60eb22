"""conv/: every version of a convolution, and NumPy's, against loops in float64."""

import itertools

import numpy as np
import pytest

from nn.launch.conv import convolution
from nn.launch.conv.convolution import Convolution, FilterGradient, InputGradient
from nn.launch.conv.versions import CONV_VERSIONS, runs_convolution
from nn.launch.conv.window import window_arguments
from nn.launch.kernels import Kernels
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from tests import few, spread
from tests.nn.model import loops

CASES = {
    "one pixel": ((1, 1, 1), (1, 1), 1, 0, 1, 1),
    "first layer": ((7, 6, 1), (5, 5), 1, 2, 6, 3),
    "first layer, colours": ((9, 11, 3), (3, 3), 1, 1, 8, 2),
    "eleven": ((15, 13, 3), (11, 11), 4, 2, 2, 2),
    "one filter": ((5, 4, 8), (3, 3), 1, 1, 1, 3),
    "17 channels": ((5, 4, 17), (3, 3), 1, 1, 5, 2),
    "64 channels": ((3, 4, 64), (3, 3), 1, 1, 2, 1),
    "1 x 1": ((4, 5, 16), (1, 1), 1, 0, 33, 2),
    "8 channels, padding": ((5, 7, 8), (3, 3), 1, 1, 16, 3),
    "8 channels, stride": ((7, 9, 8), (3, 2), 2, 1, 8, 3),
    "even size": ((5, 6, 2), (2, 4), 1, 0, 3, 2),
    "same, even, stride": ((5, 7, 3), (2, 4), 2, "same", 2, 2),
    "stride that leaves a rest": ((6, 9, 2), (3, 3), 2, 0, 4, 2),
    "stride over gaps": ((5, 8, 4), (1, 1), 3, 0, 3, 2),
    "stride larger than the padded window": ((7, 5, 2), (2, 2), 3, 1, 3, 3),
    "larger than the image": ((2, 3, 2), (5, 5), 1, 2, 4, 2),
    "nothing but padding": ((1, 2, 1), (2, 2), 3, 4, 2, 2),
    "primes": ((11, 13, 3), (3, 5), 2, 1, 7, 5),
    "many windows": ((9, 8, 1), (1, 2), 1, 0, 2, 131),
}
"""Shape of an image, size of the window, stride, padding, filters, samples."""

WIDE = {
    "padding": ((5, 7, 16), (3, 3), 1, 1, 16, 3),
    "no padding": ((6, 7, 16), (2, 3), 1, 0, 24, 3),
    "stride": ((7, 9, 24), (3, 2), 2, 1, 16, 3),
    "large stride": ((9, 9, 16), (1, 2), 5, 1, 16, 4),
    "more than a tile of channels": ((4, 5, 136), (1, 2), 1, "same", 72, 1),
    "larger than the image": ((2, 3, 16), (5, 4), 1, 2, 16, 2),
    "filters that do not fit": ((4, 5, 16), (3, 3), 1, 1, 17, 2),
    "many tiles": ((9, 11, 16), (3, 3), 1, 1, 16, 9),
}
"""The same, of more channels than few."""

KINDS = {"forward": Convolution, "to the input": InputGradient, "to the filters": FilterGradient}


VERSIONS = [
    (version, dtype)
    for version, dtype in itertools.product(CONV_VERSIONS, ("float32", "float64"))
    if runs_convolution(version, dtype, "sm_90a") and version != "winograd"
]
"""All but winograd, which rounds in its own way: test_conv_winograd.py."""


@pytest.fixture(params=VERSIONS, ids="-".join)
def kernels(request, library):
    version, dtype = request.param
    if not runs_convolution(version, dtype, library.driver.architecture):
        pytest.skip("needs tensor cores that this device has not")
    return Kernels(library, dtype, conv=version)


def dtype_of(kernels):
    return np.dtype({"float": np.float32, "double": np.float64}[kernels.real])


class Case:
    """Arrays of one convolution, on the host, and each of its three works on a device."""

    def __init__(self, rng, dtype, image, size, stride, padding, filters, samples):
        self.window = w = Window.over("conv", image, size, stride, padding)
        self.A = rng.uniform(-1, 1, (samples, *image)).astype(dtype)
        self.W = rng.uniform(-1, 1, (filters, *size, image[2])).astype(dtype)
        self.Z = rng.uniform(-1, 1, (samples, w.out_height, w.out_width, filters)).astype(dtype)
        self.shapes = {name: (len(x), x[0].size) for name, x in (("A", self.A), ("Z", self.Z), ("W", self.W))}

    def bind(self, kind, array):
        """The work, and the array that it writes; ``array`` makes those of host arrays."""
        given = {name: getattr(self, name).reshape(shape) for name, shape in self.shapes.items()}
        written = {"forward": "Z", "to the input": "A", "to the filters": "W"}[kind]
        given[written] = np.full_like(given[written], np.nan)
        arrays = {name: array(host) for name, host in given.items()}
        return KINDS[kind](arrays["A"], arrays["Z"], arrays["W"], self.window), arrays[written]

    def expected(self, kind, of=lambda x: x):
        """The result in float64; ``of`` the arrays."""
        A, Z, W = of(self.A), of(self.Z), of(self.W)
        if kind == "forward":
            return loops.convolve(self.window, A, W)
        if kind == "to the input":
            return loops.to_input(self.window, Z, W)
        return loops.to_filters(self.window, A, Z)

    def check(self, kind, result):
        """Compare with the loops, element by element.

        n additions in any order make an error that grows as sqrt(n) roundings of the sum of absolute values;
        twice that, and a few more, as in test_gemm.py. Where nothing is added up, the result is 0.
        """
        place = {"forward": 0, "to the input": 1, "to the filters": 2}[kind]
        terms = loops.terms(self.window, len(self.A), len(self.W))[place]
        roundings = 2 * (4 + np.sqrt(np.bincount(terms).max(initial=0)))
        found = result.to_host()
        expected, magnitude = self.expected(kind), self.expected(kind, np.abs)
        error = np.abs(found.reshape(expected.shape) - expected)
        assert np.all(error <= roundings * np.finfo(found.dtype).eps / 2 * magnitude), (kind, error.max())


def flat(one):
    return (one,) if isinstance(one, str) else one


@pytest.mark.parametrize(
    ("kernels", "name", "kind"),
    spread(VERSIONS, list(CASES), list(KINDS), by=9),
    indirect=["kernels"],
    ids=lambda one: "-".join(flat(one)),
)
def test_every_version_same_bits_twice(kernels, device, rng, name, kind):
    case = Case(rng, dtype_of(kernels), *CASES[name])
    (first, result), (second, again) = (case.bind(kind, device.array) for _ in range(2))
    device.run(first.on_device(kernels), second.on_device(kernels))
    case.check(kind, result)
    assert result.to_host().tobytes() == again.to_host().tobytes()


SOME = ["stride", "more than a tile of channels", "many tiles"]


@pytest.mark.parametrize(("name", "kind"), spread(few(SOME, of=list(WIDE)), list(KINDS), by=3))
def test_many_channels_in_the_fastest_version_same_bits_twice(library, device, rng, name, kind):
    version = "implicit"
    if not runs_convolution(version, "float32", library.driver.architecture):
        pytest.skip("needs tensor cores that this device has not")
    kernels, case = Kernels(library, "float32", conv=version), Case(rng, "float32", *WIDE[name])
    (first, result), (second, again) = (case.bind(kind, device.array) for _ in range(2))
    device.run(first.on_device(kernels), second.on_device(kernels))
    case.check(kind, result)
    assert result.to_host().tobytes() == again.to_host().tobytes()


@pytest.mark.parametrize(
    ("dtype", "name", "kind"),
    spread(["float32", "float64"], list(CASES), list(KINDS), by=2),
    indirect=["dtype"],
)
def test_numpy(rng, dtype, name, kind):
    """Twice with the same arrays: what windows have outside the images is not left from before."""
    case, driver = Case(rng, dtype, *CASES[name]), CpuDriver()
    work, result = case.bind(kind, lambda host: DeviceArray.from_host(driver, host))
    compute = work.in_numpy()
    compute()
    case.check(kind, result)
    result.host_view()[...] = np.nan
    compute()
    case.check(kind, result)


SLICED = ((5, 6, 3), (3, 2), 2, 1, 4, 7)
"""Of 3 x 4 windows of 18 pixels: a matrix of 216 numbers a sample."""


@pytest.fixture(params=[1, 2, 3, 6])
def sliced(request, monkeypatch, rng):
    """Makes a case with room for the windows of so many of 7 samples; for one: of half of it."""

    def make(dtype):
        each = 216 * dtype.itemsize
        room = request.param * each if request.param > 1 else each // 2
        monkeypatch.setattr(convolution, "WORKSPACE_BYTES", room)
        case = Case(rng, dtype, *SLICED)
        assert case.window.places * case.window.pixels == 216
        return case, request.param

    return make


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("kernels", "sliced", "kind"),
    spread(VERSIONS, [1, 2, 3, 6], list(KINDS), by=3),
    indirect=["kernels", "sliced"],
    ids=str,
)
def test_samples_in_slices(kernels, device, sliced, kind):
    case, _ = sliced(dtype_of(kernels))
    work, result = case.bind(kind, device.array)
    assert len(work.slices) > 1
    device.run(work.on_device(kernels))
    case.check(kind, result)


def test_works_take_their_matrix_of_windows_from_what_is_lent(library, device, rng, driver):
    """One after another they share it; with less, or without, each allocates its own."""
    cases = [Case(rng, "float32", *CASES[name]) for name in ("1 x 1", "even size", "17 channels")]
    bound = [case.bind(kind, device.array) for case in cases for kind in KINDS]
    kernels = Kernels(library, "float32", conv="im2col")
    sizes = [work.workspace(kernels) for work, _ in bound]
    lent = device.array(np.zeros(max(sizes), np.uint8))
    for memory, expected in ((lent, 0), (lent.rows(0, min(sizes) - 1), sum(sizes)), (None, sum(sizes))):
        before, launches = driver.ledger.device.total(), []
        for work, _ in bound:
            with kernels.lent(memory):
                launches.append(work.on_device(kernels))
        assert driver.ledger.device.total() - before == expected
        device.run(*launches)
        for (case, kind), (_, result) in zip(itertools.product(cases, KINDS), bound, strict=True):
            case.check(kind, result)
            result.set(np.full(result.shape, np.nan, "f4"))


@pytest.mark.parametrize("kind", KINDS)
def test_samples_in_slices_in_numpy(sliced, dtype, kind):
    case, driver = sliced(dtype)[0], CpuDriver()
    work, result = case.bind(kind, lambda host: DeviceArray.from_host(driver, host))
    compute = work.in_numpy()
    for _ in range(2):
        compute()
        case.check(kind, result)


def test_slices_are_as_equal_as_they_can_be(sliced, dtype):
    (case, most), driver = sliced(dtype), CpuDriver()
    work, _ = case.bind("forward", lambda host: DeviceArray.from_host(driver, host))
    sizes = [stop - start for start, stop in work.slices]
    assert sizes == {1: [1] * 7, 2: [2, 2, 2, 1], 3: [3, 3, 1], 6: [4, 3]}[most]
    assert work.slices[0][0] == 0 and work.slices[-1][1] == 7
    assert all(before[1] == after[0] for before, after in itertools.pairwise(work.slices))


@pytest.mark.parametrize(
    ("kernels", "case"),
    spread(VERSIONS, ["same, even, stride", "8 channels, padding", "1 x 1"], by=2),
    indirect=["kernels"],
    ids=str,
)
def test_what_lies_around_in_memory_is_neither_read_nor_written(kernels, device, rng, case):
    case = Case(rng, dtype_of(kernels), *CASES[case])
    for kind in KINDS:
        wholes = []

        def within(host, wholes=wholes):
            """Rows between rows of NaN."""
            around = np.full_like(host[:1], np.nan)
            wholes.append(device.array(np.concatenate([around, host, around])))
            return wholes[-1].rows(1, 1 + len(host))

        work, result = case.bind(kind, within)
        device.run(work.on_device(kernels))
        case.check(kind, result)
        assert all(np.isnan(whole.to_host()[[0, -1]]).all() for whole in wholes)


@pytest.mark.parametrize("channels", [3, 16])
def test_infinity_stays_in_its_sample(kernels, device, rng, channels):
    case = Case(rng, dtype_of(kernels), (4, 5, channels), (2, 2), 1, 1, 16, 4)
    case.A[2], case.Z[2] = np.inf, np.inf
    for kind in ("forward", "to the input"):
        work, result = case.bind(kind, device.array)
        device.run(work.on_device(kernels))
        finite = np.isfinite(result.to_host())
        assert finite[[0, 1, 3]].all() and not finite[2].any()


@pytest.mark.parametrize(
    ("kernels", "case"),
    spread(VERSIONS, ["primes", "8 channels, padding"], by=2),
    indirect=["kernels"],
    ids=str,
)
def test_gradients_of_nothing_are_nothing(kernels, device, rng, case):
    """Those of the outputs are 0, and so is what is written: not what was there."""
    case = Case(rng, dtype_of(kernels), *CASES[case])
    case.Z[:] = 0
    for kind in ("to the input", "to the filters"):
        work, result = case.bind(kind, device.array)
        device.run(work.on_device(kernels))
        assert not result.to_host().any()


@pytest.mark.sanitizer
@pytest.mark.parametrize("case", few(["primes"], of=["first layer, colours", "primes", "many windows"]))
def test_direct_on_a_small_grid(library, device, rng, real, dtype, case):
    """Each block takes results a whole grid apart; those of filters in blocks of all sizes."""
    case = Case(rng, dtype, *CASES[case])
    sizes = (*window_arguments(len(case.A), case.window), len(case.W))
    launches, results = [], []
    for kind, name in (("forward", "forward"), ("to the input", "input"), ("to the filters", "filters")):
        kernel = library.kernel("conv/direct", f"direct_{name}", REAL=real)
        for block in (64, 1024) if name == "filters" else (96,):
            work, result = case.bind(kind, device.array)
            launches.append(kernel.bind((3,), (block,), *sizes, *work.reads, result))
            results.append((kind, result))
    device.run(*launches)
    for kind, result in results:
        case.check(kind, result)


@pytest.mark.sanitizer
@pytest.mark.parametrize("case", ["same, even, stride", "nothing but padding", "primes"])
def test_im2col_on_a_small_grid(library, device, rng, real, dtype, case):
    """The matrix to the bit; and back, the sum of all that it has of a pixel."""
    case = Case(rng, dtype, *CASES[case])
    w, samples = case.window, len(case.A)
    windows = np.zeros((samples, w.out_height, w.out_width, w.rows, w.columns, w.channels), dtype)
    w.gather(case.A, windows)
    P, dA = device.poisoned(windows.shape, dtype), device.poisoned(case.A.shape, dtype)
    sizes = window_arguments(samples, w)
    there, back = (library.kernel("conv/im2col", name, REAL=real) for name in ("im2col", "col2im"))
    gradients = rng.uniform(-1, 1, windows.shape).astype(dtype)
    device.run(
        there.bind((3,), (96,), *sizes, device.array(case.A), P),
        back.bind((3,), (96,), *sizes, device.array(gradients), dA),
    )
    assert np.array_equal(P.to_host(), windows)
    expected = np.empty(case.A.shape)
    w.scatter(gradients.astype("f8"), expected)
    np.testing.assert_allclose(dA.to_host(), expected, rtol=0, atol=16 * np.finfo(dtype).eps)
