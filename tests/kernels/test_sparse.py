"""kernels/sparse: each rung against NumPy's float64, on ragged rows, and the packing against loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from nn.launch import sparse
from nn.launch.csr import Csr, SparseMatrix, csr_of
from nn.launch.kernels import Kernels
from nn.launch.sparse import SPARSE_VERSIONS, SparseProduct, choose_parts, choose_tiles
from nn.model import reference
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KernelLibrary
from tests import few, spread


@dataclass(frozen=True)
class Weights:
    """W of a shape, by the chance of a weight to be left in each of its rows, and its codebook's length."""

    units: int
    inputs: int
    kept: tuple[float, ...]
    numbers: int = 32

    def __str__(self) -> str:
        return f"{self.units}x{self.inputs}"

    def csr(self, rng: np.random.Generator) -> Csr:
        chance = np.resize(self.kept, self.units)[:, None]
        places = np.flatnonzero(rng.random((self.units, self.inputs)) < chance)
        codebook = rng.normal(0, 1, self.numbers).astype(np.float32)
        codes = rng.integers(0, self.numbers, len(places))
        return csr_of((self.units, self.inputs), places, codes, codebook)


WEIGHTS = [
    Weights(1, 1, (1.0,), 1),
    Weights(1, 1000, (0.1,)),
    Weights(7, 13, (0.5, 0.0, 1.0), 256),
    Weights(5, 40, (0.0,), 3),
    Weights(97, 101, (0.02,), 2),
    Weights(61, 1031, (0.9, 0.01, 0.0, 0.3), 256),
    Weights(300, 784, (0.08,)),
    Weights(2, 70001, (0.01, 0.2)),
]
"""One row; full, empty and short rows; primes; nothing left; more inputs than uint16 counts."""

SAMPLES = (1, 2, 8, 9, 33, 64, 65)


@pytest.fixture
def kernels(library: KernelLibrary) -> Kernels:
    return Kernels(library, np.float32)


def exact(csr: Csr, X: np.ndarray, bias: np.ndarray | None, activation: str) -> tuple[np.ndarray, np.ndarray]:
    """f(X W^T + b) in float64, and the error that float32 may have.

    A sum of n products has n roundings at most, each relative to the sum of what was added; f is no steeper
    than 1, and takes some more.
    """
    W, X = csr.dense().astype(np.float64), X.astype(np.float64)
    b = np.zeros(len(W)) if bias is None else bias.astype(np.float64)
    longest = max(np.diff(csr.starts))
    allowed = (longest + 8) * np.finfo(np.float32).eps * (np.abs(X) @ np.abs(W).T + np.abs(b) + 1)
    f, _ = reference.ACTIVATIONS[activation]
    return f(X @ W.T + b), allowed


def make(device, csr: Csr, X, bias=None, activation="identity", version="auto") -> SparseProduct:
    """Put a product on the device, its result poisoned and with a row more, which nobody writes."""
    room = device.poisoned((len(X) + 1, csr.shape[0]), np.float32)
    W = SparseMatrix.from_host(device.driver, csr)
    device.arrays += W.arrays
    b = None if bias is None else device.array(bias)
    return SparseProduct(room.rows(0, len(X)), device.array(X), W, b, activation, version)


def check(device, kernels, work: SparseProduct, X, bias=None) -> np.ndarray:
    """Run it twice; compare the bits, and the numbers with NumPy's."""
    launch = work.on_device(kernels)
    device.run(launch)
    found = work.Y.to_host()
    device.run(launch)
    assert found.tobytes() == work.Y.to_host().tobytes()
    expected, allowed = exact(work.W.csr, X, bias, work.activation)
    assert np.all(np.abs(found - expected) <= allowed)
    return found


@pytest.mark.parametrize(
    ("weights", "samples", "version"), spread(WEIGHTS, SAMPLES, SPARSE_VERSIONS, by=12), ids=str
)
def test_random_numbers(kernels, device, rng, weights, samples, version):
    csr = weights.csr(rng)
    X = rng.normal(0, 1, (samples, weights.inputs)).astype(np.float32)
    bias = rng.normal(0, 1, weights.units).astype(np.float32)
    if version == "shared" and weights.inputs > 50000:
        pytest.skip("a sample is larger than shared memory")
    check(device, kernels, make(device, csr, X, bias, version=version), X, bias)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("samples", "activation", "version"), spread([1, 10], ["relu", "sigmoid"], SPARSE_VERSIONS, by=2)
)
def test_small(kernels, device, rng, samples, activation, version):
    """Without a bias, and nothing is written beside Y."""
    csr = Weights(37, 45, (0.5, 0.0, 0.05), 17).csr(rng)
    X = rng.normal(0, 1, (samples, 45)).astype(np.float32)
    work = make(device, csr, X, None, activation, version)
    check(device, kernels, work, X)
    whole = DeviceArray(device.driver, work.Y.pointer, (samples + 1, 37), work.Y.dtype, 37)
    assert np.isnan(whole.to_host()[samples]).all()


@pytest.mark.parametrize("version", SPARSE_VERSIONS)
def test_inputs_that_are_not_finite_meet_only_their_weights(kernels, device, rng, version):
    """What has no weight is not multiplied by 0, nor is the place of another row."""
    csr = Weights(19, 31, (0.4, 0.1)).csr(rng)
    X = rng.normal(0, 1, (9, 31)).astype(np.float32)
    X[3, 0], X[4, 7], X[5, 30] = np.nan, np.inf, -np.inf
    work = make(device, csr, X, version=version)
    device.run(work.on_device(kernels))
    found, W = work.Y.to_host(), csr.dense()
    for sample, column in ((3, 0), (4, 7), (5, 30)):
        assert np.array_equal(np.isfinite(found[sample]), W[:, column] == 0)
    assert np.isfinite(found[[0, 1, 2, 6, 7, 8]]).all()


@pytest.mark.parametrize("version", SPARSE_VERSIONS)
def test_large_and_small_numbers(kernels, device, rng, version):
    """No product on the way is larger than the result, or smaller than a float."""
    csr = replace(Weights(23, 64, (0.3,), 4).csr(rng), codebook=_extreme())
    X = (rng.normal(0, 1, (10, 64)) * 10.0 ** rng.integers(-10, 10, (10, 64))).astype(np.float32)
    check(device, kernels, make(device, csr, X, version=version), X)


def _extreme() -> np.ndarray:
    codebook = np.zeros(256, np.float32)
    codebook[:4] = 1e20, -1e20, 1e-20, 1e-3
    return codebook


@pytest.mark.sanitizer
@pytest.mark.parametrize("threads", [32, 128, 1024])
def test_several_warps_a_row(kernels, device, rng, monkeypatch, threads):
    """In few blocks, so that warps take rows in turns, and rows that need several rings of octets."""
    csr = Weights(11, 4000, (0.9, 0.2, 0.0)).csr(rng)
    X = rng.normal(0, 1, (2, 4000)).astype(np.float32)
    for parts in (1, 2, 4, 32):
        if parts > threads // 32:
            break
        monkeypatch.setattr(sparse, "choose_parts", lambda *sizes, parts=parts: parts)
        work = make(device, csr, X)
        device.run(sparse.bind_shared(kernels, work, threads))
        expected, allowed = exact(csr, X, None, "identity")
        assert np.all(np.abs(work.Y.to_host() - expected) <= allowed)


@pytest.mark.parametrize("samples", [8, 16, pytest.param(17, marks=pytest.mark.sanitizer), 70])
def test_many_tiles(kernels, device, rng, monkeypatch, samples):
    """More tiles, and more rows for a warp than it has lanes; and more entries of a row in a tile."""
    csr = Weights(1100, 130, (0.9, 0.02)).csr(rng)
    X = rng.normal(0, 1, (samples, 130)).astype(np.float32)
    tiles = choose_tiles(kernels, samples, 130, 1100)
    wanted = replace(tiles, width=40, tiles=4, shares=2)
    monkeypatch.setattr(sparse, "choose_tiles", lambda *sizes: wanted)
    check(device, kernels, make(device, csr, X, version="tile"), X)


def test_packing_is_what_loops_find(rng):
    W = np.where(rng.random((13, 29)) < 0.3, rng.integers(1, 5, (13, 29)), 0)
    places = np.flatnonzero(W)
    codebook = np.array([0.5, -2, 3, 7], np.float32)
    csr = csr_of(W.shape, places, W.ravel()[places] - 1, codebook)
    lengths = [int((row != 0).sum()) for row in W]
    assert sorted(csr.unit_of) == list(range(13))
    for r, unit in enumerate(csr.unit_of):
        entries = slice(csr.starts[r], csr.starts[r + 1])
        assert csr.columns[entries].tolist() == np.flatnonzero(W[unit]).tolist()
        assert csr.codes[entries].tolist() == (W[unit][W[unit] != 0] - 1).tolist()
    assert np.diff(csr.starts).tolist() == sorted(lengths, reverse=True)
    assert csr.weights == len(places) and len(csr.columns) % 8 == 0
    assert np.array_equal(csr.dense(), np.where(W > 0, codebook[W - 1], 0))
    cuts = csr.cuts(10)
    for r, unit in enumerate(csr.unit_of):
        inside = [np.count_nonzero(W[unit, t : t + 10]) for t in (0, 10, 20)]
        assert np.diff(cuts[:, r]).tolist() == inside and cuts[0, r] == csr.starts[r]


def turns(csr: Csr) -> float:
    """Count the turns of shared memory that look-ups of inputs take in csr_shared, on average."""
    counts = []
    for r in range(csr.shape[0]):
        first, last = csr.starts[r : r + 2]
        for block in range(first // 8 * 8, last, 256):
            for j in range(8):
                at = block + j + 8 * np.arange(32)
                banks = csr.columns[at[(at >= first) & (at < last)]] % 32
                counts.append(np.bincount(banks, minlength=1).max())
    return np.mean(counts)


def test_interleaved_entries_are_the_same_and_meet_in_fewer_banks(rng):
    csr = Weights(40, 25088, (0.04, 0.01)).csr(rng)
    mixed = csr.interleaved()
    assert np.array_equal(mixed.dense(), csr.dense()) and np.array_equal(mixed.starts, csr.starts)
    assert turns(mixed) < 1.6 and turns(csr) > 2.8


@pytest.mark.parametrize("version", few(["auto", "lanes"], of=["auto", "vector", "lanes"]))
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_interleaved_entries(kernels, device, rng, weights, version):
    csr = weights.csr(rng).interleaved()
    X = rng.normal(0, 1, (3, weights.inputs)).astype(np.float32)
    check(device, kernels, make(device, csr, X, version=version), X)


def test_interleaved_entries_have_no_tiles(kernels, device, rng):
    csr = Weights(3, 5, (1.0,)).csr(rng).interleaved()
    with pytest.raises(ValueError, match="interleaved have no tiles"):
        make(device, csr, np.ones((9, 5), np.float32)).on_device(kernels)


def test_bytes_are_three_a_weight(rng):
    csr = Weights(50, 600, (0.2,)).csr(rng)
    assert csr.nbytes == 3 * csr.weights + 4 * 51 + 4 * 50 + 1024
    wide = Weights(2, 70001, (0.01,)).csr(rng)
    assert wide.columns.dtype == np.int32 and wide.nbytes == 5 * wide.weights + 4 * 3 + 4 * 2 + 1024


@pytest.mark.parametrize(
    ("places", "codes", "numbers", "what"),
    [
        ([3, 2], [0, 0], 1, "do not ascend"),
        ([2, 2], [0, 0], 1, "do not ascend"),
        ([-1, 2], [0, 0], 1, "do not ascend"),
        ([0, 6], [0, 0], 1, "do not ascend from 0 to below 6"),
        ([0, 5], [0, 2], 2, "codes from 0 to 2 of 2 numbers"),
        ([0, 5], [-1, 0], 2, "codes from -1 to 0 of 2 numbers"),
        ([0, 5], [0], 2, r"\(2,\) places and \(1,\) codes"),
        ([0, 5], [0, 0], 257, r"shape \(257,\), not of 1 to 256"),
    ],
)
def test_parts_that_do_not_fit(places, codes, numbers, what):
    with pytest.raises(ValueError, match=what):
        csr_of((2, 3), np.array(places), np.array(codes), np.ones(numbers, np.float32))


def test_nothing_is_left(kernels, device, rng):
    csr = csr_of((3, 5), np.zeros(0, int), np.zeros(0, int), np.zeros(0, np.float32))
    X, bias = np.full((2, 5), np.nan, np.float32), np.array([1, -2, 3], np.float32)
    for version in SPARSE_VERSIONS:
        work = make(device, csr, X, bias, "relu", version)
        device.run(work.on_device(kernels))
        assert work.Y.to_host().tolist() == [[1, 0, 3]] * 2


def test_numpy_does_the_same(rng):
    driver = CpuDriver()
    csr = Weights(61, 103, (0.3, 0.0)).csr(rng)
    X = rng.normal(0, 1, (5, 103)).astype(np.float32)
    bias = rng.normal(0, 1, 61).astype(np.float32)
    Y, x, b = (DeviceArray.from_host(driver, a) for a in (np.zeros((5, 61), np.float32), X, bias))
    SparseProduct(Y, x, SparseMatrix.from_host(driver, csr), b, "tanh").in_numpy()()
    expected, allowed = exact(csr, X, bias, "tanh")
    assert np.all(np.abs(Y.host_view() - expected) <= allowed)


def test_arrays_that_do_not_fit(kernels, library, device, rng):
    csr = Weights(3, 5, (1.0,)).csr(rng)
    X = np.ones((2, 5), np.float32)
    work = make(device, csr, X)
    with pytest.raises(ValueError, match=r"X \(2, 5\) of double and W \(3, 5\) of float"):
        work.on_device(Kernels(library, np.float64))
    with pytest.raises(ValueError, match=r"X \(2, 4\)"):
        replace(work, X=device.array(X[:, :4])).on_device(kernels)
    with pytest.raises(ValueError, match="bias of shape"):
        replace(work, bias=device.array(X[0])).on_device(kernels)
    with pytest.raises(ValueError, match="Y of shape"):
        replace(work, Y=device.array(X)).on_device(kernels)


@pytest.mark.parametrize("samples", [1, 4, 5, 64])
def test_auto_takes_tiles_for_many_samples(samples):
    null = NullDriver(DeviceProperties("a GPU", "sm_90a", 132, 232448))
    kernels = Kernels(KernelLibrary(null), np.float32)
    csr = Weights(4, 9, (0.5,)).csr(np.random.default_rng(0))
    arrays = (DeviceArray.empty(null, (samples, n), np.dtype(np.float32)) for n in (4, 9))
    work = SparseProduct(*arrays, SparseMatrix.from_host(null, csr))
    assert work.choose(kernels) == ("tile" if samples > 4 else "shared")
    assert (work.workspace(kernels) > 0) == (samples > 4)
    assert len(work.on_device(kernels).kernels) == (2 if samples > 4 else 1)


@pytest.mark.parametrize(
    ("samples", "inputs", "units"),
    [(64, 25088, 4096), (64, 4096, 4096), (64, 4096, 1000), (64, 784, 300), (5, 25088, 4096), (1000, 9, 3)],
)
def test_tiles_fit_and_fill_the_device(samples, inputs, units):
    for multiprocessors, memory in ((132, 232448), (108, 166912), (40, 65536)):
        null = NullDriver(DeviceProperties("a GPU", "sm_90a", multiprocessors, memory))
        cut = choose_tiles(Kernels(KernelLibrary(null), np.float32), samples, inputs, units)
        assert cut.shared + 5120 <= memory and cut.width % 8 == 0
        assert (cut.tiles - 1) * cut.width < inputs <= cut.tiles * cut.width
        assert cut.groups * cut.at_once >= samples > (cut.groups - 1) * cut.at_once
        blocks = cut.tiles * cut.shares * cut.groups
        assert blocks <= multiprocessors or cut.shares == 1
        if inputs * units > 100_000:
            assert blocks >= 0.6 * multiprocessors


@pytest.mark.parametrize(
    ("units", "weights", "parts"),
    [(4096, 4_110_000, 1), (1000, 942_000, 2), (300, 19_000, 1), (1, 10**6, 16)],
)
def test_rows_are_shared_where_there_are_few(units, weights, parts):
    assert choose_parts(units, weights, 16, 132) == parts
