"""kernels/quantised: bytes and bits of rows as NumPy has them, and each rung's products against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nn.launch import shapes
from nn.launch.binary import BINARY_VERSIONS, BinaryProduct, binarise, binary_rows, signs
from nn.launch.conv import convolution
from nn.launch.conv.convolution import Convolution
from nn.launch.conv.quantised import QuantisedConvolution
from nn.launch.gemm.mma import has_mma
from nn.launch.int8 import INT8_VERSIONS, Int8Product, choose_steps, int8_rows, quantise
from nn.launch.kernels import Kernels
from nn.launch.quantised import QuantisedProduct, QuantisedRows
from nn.model import reference
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KERNELS, KernelLibrary
from tests import spread
from tests.pyrt.sources import folder_of

KINDS = {"int8": (Int8Product, int8_rows), "binary": (BinaryProduct, binary_rows)}
VERSIONS = [*(("int8", one) for one in INT8_VERSIONS), *(("binary", one) for one in BINARY_VERSIONS)]
SIZES = [(1, 1), (3, 5), (37, 64), (130, 129), (67, 1031)]
SAMPLES = (1, 2, 9, 33, 64, 65)


@pytest.fixture
def kernels(library: KernelLibrary) -> Kernels:
    return Kernels(library, np.float32)


def make(device, kind: str, W, X, bias=None, activation="identity", version="auto") -> QuantisedProduct:
    """Put a product on the device, its result poisoned."""
    if version == "mma" and not has_mma(device.driver.architecture):
        pytest.skip("needs the tensor cores of sm_80")
    product, rows = KINDS[kind]
    matrix = rows(device.driver, W)
    device.arrays += [matrix.numbers, matrix.scales]
    b = None if bias is None else device.array(bias)
    Y = device.poisoned((len(X), len(W)), np.float32)
    return product(Y, device.array(X), matrix, b, activation, version)


def exact(kind: str, W, X) -> np.ndarray:
    """Return the quantised product in float64, with the quantised numbers of NumPy."""
    inputs = W.shape[1]
    if kind == "int8":
        (x, x_scales), (w, w_scales) = quantise(X), quantise(W)
        sums = x.astype(np.float64) @ w.astype(np.float64).T
    else:
        (x, x_scales), (w, w_scales) = binarise(X), binarise(W)
        sums = signs(x, inputs) @ signs(w, inputs).T
    return x_scales.astype(np.float64)[:, None] * w_scales.astype(np.float64) * sums


def check(device, kernels, work: QuantisedProduct, expected: np.ndarray, bias=0.0) -> np.ndarray:
    """Run it twice; compare the bits, and the numbers with float64.

    Sums are exact; after them come five roundings, and before them those of the mean of |x|, in a chain of
    four and a tree of eight.
    """
    launch = work.on_device(kernels)
    device.run(launch)
    found = work.Y.to_host()
    device.run(launch)
    assert found.tobytes() == work.Y.to_host().tobytes()
    f, _ = reference.ACTIVATIONS[work.activation]
    allowed = 20 * np.finfo(np.float32).eps * (np.abs(expected) + np.abs(bias) + 0.1)
    assert np.all(np.abs(found - f(expected + bias)) <= allowed)
    return found


@pytest.mark.parametrize(("size", "samples", "version"), spread(SIZES, SAMPLES, VERSIONS, by=9), ids=str)
def test_random_numbers(kernels, device, rng, size, samples, version):
    units, inputs = size
    W = rng.normal(0, 0.1, size).astype(np.float32)
    X = rng.normal(0.2, 1, (samples, inputs)).astype(np.float32)
    bias = rng.normal(0, 1, units).astype(np.float32)
    work = make(device, version[0], W, X, bias, version=version[1])
    check(device, kernels, work, exact(version[0], W, X), bias)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("activation", "version"), spread(["relu", "sigmoid"], VERSIONS, by=2), ids=str)
def test_small(kernels, device, rng, activation, version):
    """Without a bias; several tiles along k, and more steps than are on their way."""
    W = rng.normal(0, 0.1, (19, 1100)).astype(np.float32)
    X = rng.normal(0, 1, (10, 1100)).astype(np.float32)
    work = make(device, version[0], W, X, None, activation, version[1])
    check(device, kernels, work, exact(version[0], W, X))


@pytest.mark.parametrize("version", VERSIONS, ids="-".join)
def test_extreme_numbers(kernels, device, rng, version):
    """Rows of zeros, equal numbers, the largest products; and rows that are not finite show, alone."""
    W = rng.normal(0, 1, (9, 300)).astype(np.float32)
    W[0], W[1], W[2] = 0, 1, -1
    X = rng.normal(0, 1, (12, 300)).astype(np.float32)
    X[0], X[1], X[2], X[3] = 0, 1, -1, 1e-44
    X[4], X[5] = 1e30, -3e-38
    X[6, 7], X[7, 299], X[8, 0] = np.nan, np.inf, -np.inf
    work = make(device, version[0], W, X, version=version[1])
    device.run(work.on_device(kernels))
    found, fine = work.Y.to_host(), [0, 1, 2, 3, 4, 5, 9, 10, 11]
    expected = exact(version[0], W, X[fine])
    assert np.all(np.abs(found[fine] - expected) <= 2e-6 * np.abs(expected) + 1e-5)
    assert not np.isfinite(found[[6, 7, 8]]).any()


def test_rows_become_the_bytes_and_bits_of_numpy(kernels, device, rng):
    X = np.concatenate([rng.normal(0, 1, (5, 133)), np.zeros((1, 133))]).astype(np.float32)
    X[0, :3] = 0, -0.0, X[0].max()
    X[4] *= np.float32(1e-42)
    for kind, reference_of in (("int8", quantise), ("binary", binarise)):
        work = make(device, kind, np.ones((1, 133), np.float32), X)
        numbers, scales = reference_of(X)
        rows = QuantisedRows(133, device.array(np.ones_like(numbers)), device.poisoned(6, np.float32))
        device.run(work.quantise(kernels, rows))
        assert np.array_equal(rows.numbers.to_host(), numbers)
        np.testing.assert_allclose(rows.scales.to_host(), scales, rtol=2e-6, atol=2e-45)


def test_quantised_rows_are_close_and_signs_are_signs(rng):
    W = rng.normal(0, 1, (7, 100)).astype(np.float32)
    numbers, scales = quantise(W)
    assert numbers.shape == (7, 128) and not numbers[:, 100:].any()
    assert np.abs(numbers).max(axis=1).tolist() == [127] * 7
    assert np.all(np.abs(numbers[:, :100] * scales[:, None] - W) <= 0.5001 * scales[:, None])
    bits, means = binarise(W)
    assert bits.shape == (7, 4) and np.array_equal(signs(bits, 100), np.where(W < 0, -1, 1))
    np.testing.assert_allclose(means, np.abs(W).mean(axis=1), rtol=1e-6)


MMA = r"""
// constants: REAL=float
#include "common.cuh"
#include "quantised/mma_int8.cuh"

// D (16 x 8) += A (16 x 32) B (8 x 32)', twice.
extern "C" __global__ void fragments(const unsigned *A, const unsigned *B, int *D)
{
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    int d[4];
    for (int i = 0; i < 4; i++)
        d[i] = D[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    for (int twice = 0; twice < 2; twice++)
        multiply_add(d, A[g * 8 + t], A[(g + 8) * 8 + t], A[g * 8 + 4 + t], A[(g + 8) * 8 + 4 + t],
                     B[g * 8 + t], B[g * 8 + 4 + t]);
    for (int i = 0; i < 4; i++)
        D[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}
"""


@pytest.mark.kernels
def test_fragments_of_bytes(driver, device, rng):
    """On a GPU the instruction, on the emulated device its twin."""
    if not has_mma(driver.architecture):
        pytest.skip("needs the tensor cores of sm_80")
    mine = KernelLibrary(driver, [folder_of("mine", MMA), KERNELS])
    A, B = (rng.integers(-128, 128, (lines, 32), np.int8) for lines in (16, 8))
    D = rng.integers(-1000, 1000, (16, 8), np.int32)
    arrays = (*(device.array(x.view(np.uint32)) for x in (A, B)), device.array(D))
    device.run(mine.kernel("mine", "fragments", REAL="float").bind((1,), (32,), *arrays))
    expected = D + 2 * (A.astype(np.int32) @ B.astype(np.int32).T)
    assert np.array_equal(arrays[2].to_host(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_does_the_same(rng, kind):
    driver = CpuDriver()
    W = rng.normal(0, 1, (31, 103)).astype(np.float32)
    X = rng.normal(0, 1, (5, 103)).astype(np.float32)
    bias = rng.normal(0, 1, 31).astype(np.float32)
    Y, x, b = (DeviceArray.from_host(driver, a) for a in (np.zeros((5, 31), np.float32), X, bias))
    product, rows = KINDS[kind]
    product(Y, x, rows(driver, W), b, "tanh").in_numpy()()
    np.testing.assert_allclose(Y.host_view(), np.tanh(exact(kind, W, X) + bias), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_that_do_not_fit(kernels, library, device, kind):
    W, X = np.ones((3, 5), np.float32), np.ones((2, 5), np.float32)
    work = make(device, kind, W, X)
    with pytest.raises(ValueError, match=rf"{kind}: X \(2, 5\) of double and W of 5 inputs of float"):
        work.on_device(Kernels(library, np.float64))
    with pytest.raises(ValueError, match=r"X \(2, 4\)"):
        replace(work, X=device.array(X[:, :4])).on_device(kernels)
    with pytest.raises(ValueError, match="bias of shape"):
        replace(work, bias=device.array(X[0])).on_device(kernels)
    with pytest.raises(ValueError, match="Y of shape"):
        replace(work, Y=device.array(X)).on_device(kernels)


def test_sums_that_may_be_too_large_are_refused():
    with pytest.raises(ValueError, match="sums of 133145 products may be too large, at most 133144 fit"):
        int8_rows(CpuDriver(), np.zeros((1, 133145), np.float32))
    assert 133144 * 127**2 < 2**31


@pytest.mark.parametrize(
    ("architecture", "samples", "int8", "binary"),
    [("sm_75", 64, "warp", "tile"), ("sm_80", 64, "mma", "tile"), ("sm_90a", 8, "warp", "warp")],
)
def test_auto_by_device_and_samples(architecture, samples, int8, binary):
    null = NullDriver(DeviceProperties("a GPU", architecture, 132, 232448))
    kernels = Kernels(KernelLibrary(null), np.float32)
    W = np.ones((4, 9), np.float32)
    Y, X = (DeviceArray.empty(null, (samples, n), np.dtype(np.float32)) for n in (4, 9))
    for (product, rows), version in zip(KINDS.values(), (int8, binary), strict=True):
        work = product(Y, X, rows(null, W))
        assert work.choose(kernels) == version
        assert work.on_device(kernels).kernels[1].endswith(version)


@pytest.mark.parametrize(("kind", "version"), VERSIONS, ids="-".join)
@pytest.mark.parametrize("samples", [1, 9, 200])
def test_kernels_use_the_memory_that_is_told_and_no_more(kind, version, samples):
    null = NullDriver(DeviceProperties("a GPU", "sm_90a", 132, 232448))
    kernels = Kernels(KernelLibrary(null), np.float32)
    product, rows = KINDS[kind]
    Y, X = (DeviceArray.empty(null, (samples, n), np.dtype(np.float32)) for n in (37, 1100))
    work = product(Y, X, rows(null, np.ones((37, 1100), np.float32)), version=version)
    require_workspace(kernels, work)


def require_workspace(kernels, work):
    """What is told is enough, and a byte less is not."""
    driver, nbytes = kernels.driver, work.workspace(kernels)
    for missing in (0, 256):
        room = DeviceArray.empty(driver, (nbytes - missing,), np.dtype(np.uint8))
        before = driver.ledger.device.total()
        with kernels.lent(room):
            work.on_device(kernels)
        assert (driver.ledger.device.total() > before) == (missing > 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 5])
def test_convolutions_use_the_memory_that_is_told_and_no_more(monkeypatch, kind, samples):
    null = NullDriver(DeviceProperties("a GPU", "sm_90a", 132, 232448))
    kernels = Kernels(KernelLibrary(null), np.float32)
    window = Window.over("conv", (9, 11, 3), (3, 2), 2, 1)
    monkeypatch.setattr(convolution, "WORKSPACE_BYTES", 2 * 4 * window.places * window.pixels)
    monkeypatch.setattr(shapes, "MAX_GRID_Y", 13)
    sizes = (samples, 9 * 11 * 3), (samples, window.places * 21), (21, window.pixels)
    plain = Convolution(*(DeviceArray.empty(null, size, np.dtype(np.float32)) for size in sizes), window)
    product, rows = KINDS[kind]
    W = rows(null, np.ones((21, window.pixels), np.float32))
    require_workspace(kernels, QuantisedConvolution(plain, W, product))


def test_steps_give_each_multiprocessor_blocks():
    assert choose_steps(64, 392, 132) == 49  # fc6 of vgg16: 8 parts, 512 blocks
    assert choose_steps(1, 13, 132) == 13
    assert choose_steps(10_000, 392, 132) == 392
