"""kernels/gemm/few_rows.cu, one_row.cu: layers of a few images against float64, on ragged, cut matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nn.launch.gemm.few_rows import MOST_ROWS, FewRows
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.kernels import Kernels
from nn.model import reference
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.kernels import KernelLibrary
from tests import spread

ROWS = (1, 2, 8, 9, MOST_ROWS)
SIZES = ((1, 1), (10, 512), (37, 45), (9, 1023), (17, 1025), (512, 784), (65, 2051), (3, 8195))
"""Units and inputs: one; whole and ragged vectors; chunks of 1024 and 8192, and some beside."""


@pytest.fixture
def kernels(library: KernelLibrary) -> Kernels:
    return Kernels(library, np.float32)


def matrix(device, rng, rows: int, columns: int, gap: int) -> DeviceArray:
    """Random numbers in the first columns of a matrix that is NaN elsewhere."""
    host = np.full((rows, columns + gap), np.nan, np.float32)
    host[:, :columns] = rng.normal(0, 1, (rows, columns))
    whole = device.array(host)
    return replace(whole, shape=(rows, columns))


def numbers(array: DeviceArray) -> np.ndarray:
    """The numbers of such a matrix, in float64."""
    rows, columns = array.shape
    whole = replace(array, shape=(rows, array.ld)).to_host()
    assert np.isnan(whole[:, columns:]).all()  # nothing is written beside it
    return whole[:, :columns].astype(np.float64)


@pytest.mark.parametrize(("rows", "size", "gap"), spread(ROWS, SIZES, (0, 3, 4), by=4), ids=str)
def test_random_numbers(kernels, device, rng, rows, size, gap):
    units, inputs = size
    A, B = (matrix(device, rng, lines, inputs, gap) for lines in (rows, units))
    D, bias = matrix(device, rng, rows, units, gap), device.array(rng.normal(0, 1, units).astype(np.float32))
    activation = ("identity", "sigmoid", "tanh", "relu")[(rows + units) % 4]
    work = FewRows(Product(D, A, B, transpose_b=True), Epilogue(alpha=0.5, bias=bias, activation=activation))
    launch = work.on_device(kernels)
    device.run(launch)
    found = numbers(D)
    device.run(launch)
    assert found.tobytes() == numbers(D).tobytes()
    a, b = numbers(A), numbers(B)
    f, _ = reference.ACTIVATIONS[activation]
    # A sum of n products has n roundings at most, each relative to what was added; f is no steeper than 1.
    allowed = (inputs + 8) * np.finfo(np.float32).eps * (np.abs(a) @ np.abs(b).T + 3)
    assert np.all(np.abs(found - f(0.5 * a @ b.T + bias.to_host())) <= allowed)


@pytest.mark.sanitizer
@pytest.mark.parametrize("starts_early", [False, True])
def test_without_a_bias(kernels, device, rng, starts_early):
    for rows, inputs in ((3, 70), (1, 1030)):
        A, B, D = (matrix(device, rng, *shape, 1) for shape in ((rows, inputs), (5, inputs), (rows, 5)))
        device.run(FewRows(Product(D, A, B, transpose_b=True), starts_early=starts_early).on_device(kernels))
        assert np.allclose(numbers(D), numbers(A) @ numbers(B).T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_not_finite_shows(kernels, device, rng, number):
    A, B, D = (matrix(device, rng, *shape, 0) for shape in ((2, 40), (3, 40), (2, 3)))
    values = A.to_host()
    values[1, 39] = number
    A.set(values)
    device.run(FewRows(Product(D, A, B, transpose_b=True)).on_device(kernels))
    assert np.isfinite(D.to_host()).tolist() == [[True] * 3, [False] * 3]


def test_in_numpy(rng):
    driver = CpuDriver()
    A, B, D, bias = (
        DeviceArray.from_host(driver, rng.normal(0, 1, shape).astype(np.float32))
        for shape in ((4, 9), (5, 9), (4, 5), 5)
    )
    work = FewRows(Product(D, A, B, transpose_b=True), Epilogue(alpha=0.25, bias=bias, activation="sigmoid"))
    work.in_numpy()()
    sigmoid, _ = reference.ACTIVATIONS["sigmoid"]
    expected = sigmoid(0.25 * A.to_host().astype(float) @ B.to_host().T + bias.to_host())
    assert np.allclose(D.to_host(), expected, rtol=1e-5)


def test_arrays_that_do_not_fit_are_refused(kernels, device, rng):
    A, B, D = (matrix(device, rng, *shape, 0) for shape in ((2, 4), (3, 5), (2, 3)))
    with pytest.raises(ValueError, match="gemm: D"):
        FewRows(Product(D, A, B, transpose_b=True)).on_device(kernels)
