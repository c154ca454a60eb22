"""The ladder of matrix products, from gemm/ladder.cu on: every version against NumPy's float64 product."""

import itertools

import numpy as np
import pytest

from nn.launch.gemm import gemm
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.gemm.versions import PLAIN_GEMM_VERSIONS, runs_gemm
from nn.launch.kernels import Kernels
from tests import few, spread

SHAPES = [
    (1, 1, 1),
    (1, 1, 37),
    (1, 67, 9),
    (71, 1, 3),
    (2, 3, 5),
    (13, 17, 11),
    (16, 64, 4),
    (17, 65, 5),
    (15, 63, 3),
    (31, 33, 29),
    (32, 32, 32),
    (33, 31, 33),
    (64, 64, 16),
    (64, 64, 64),
    (63, 65, 31),
    (65, 63, 17),
    (128, 64, 96),
    (129, 127, 97),
    (257, 5, 2),
    (3, 263, 10),
    (4, 4, 1000),
]
# The products of a 784-512-10 network: forward, weight gradients, the gradient of the hidden layer.
NETWORK = [
    (750, 512, 784, False, True),
    (750, 10, 512, False, True),
    (10, 512, 750, True, False),
    (512, 784, 750, True, False),
    (750, 512, 10, False, False),
]


VERSIONS = [
    *itertools.product(PLAIN_GEMM_VERSIONS, ("float32", "float64")),
    ("mma", "float32"),
    ("wgmma", "float32"),
]


@pytest.fixture(params=VERSIONS, ids="-".join)
def version_and_dtype(request, driver):
    if not runs_gemm(request.param[0], driver.architecture):
        pytest.skip("needs tensor cores that this device has not")
    return request.param


@pytest.fixture
def dtype(version_and_dtype):
    return np.dtype(version_and_dtype[1])


@pytest.fixture
def kernels(version_and_dtype, library, dtype):
    return Kernels(library, dtype, version_and_dtype[0])


def multiply(kernels, D, A, B, transpose_a=False, transpose_b=False, **epilogue):
    return gemm(kernels, Product(D, A, B, transpose_a, transpose_b), Epilogue(**epilogue))


def operand(rng, rows, columns, transposed, dtype):
    shape = (columns, rows) if transposed else (rows, columns)
    return rng.uniform(-1, 1, shape).astype(dtype)


def check(D, A, B, transpose_a=False, transpose_b=False, alpha=1.0, beta=0.0, C=None):
    """Compare with NumPy, element by element.

    n additions in any order make an error that grows as sqrt(n) roundings of the sum of absolute values
    (the worst case grows as n); products, alpha, beta and C add a few. Twice that, for NumPy's float64
    product is no better than the kernel's. A product left out would be 1 / K of that sum.
    """
    A, B = (X.T if transposed else X for X, transposed in ((A, transpose_a), (B, transpose_b)))
    A, B = A.astype(np.float64), B.astype(np.float64)
    expected = alpha * (A @ B)
    magnitude = abs(alpha) * (np.abs(A) @ np.abs(B))
    if beta:
        expected += beta * C.astype(np.float64)
        magnitude += np.abs(beta * C.astype(np.float64))
    roundings = 2 * (4 + np.sqrt(A.shape[1]))
    assert D.shape == expected.shape
    assert np.all(np.abs(D - expected) <= roundings * np.finfo(D.dtype).eps / 2 * magnitude)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_shapes(kernels, device, rng, dtype, transpose_a, transpose_b):
    start = 2 * transpose_a + transpose_b
    for M, N, K in few(SHAPES[start::8], of=SHAPES):  # each of them in one of the four forms
        A = operand(rng, M, K, transpose_a, dtype)
        B = operand(rng, K, N, transpose_b, dtype)
        D = device.poisoned((M, N), dtype)
        device.run(multiply(kernels, D, device.array(A), device.array(B), transpose_a, transpose_b))
        check(D.to_host(), A, B, transpose_a, transpose_b)


@pytest.mark.parametrize(
    ("version_and_dtype", "product"),
    spread(VERSIONS, NETWORK, by=2),
    indirect=["version_and_dtype"],
    ids=str,
)
def test_products_of_the_network_same_bits_twice(kernels, device, rng, dtype, product):
    M, N, K, transpose_a, transpose_b = product
    if device.driver.name == "emulated":  # slow: a ninth of each hidden size and batch
        M, N, K = (size if size == 10 else size // 9 for size in (M, N, K))
    A = operand(rng, M, K, transpose_a, dtype)
    B = operand(rng, K, N, transpose_b, dtype)
    A_there, B_there = device.array(A), device.array(B)
    first, second = device.poisoned((M, N), dtype), device.poisoned((M, N), dtype)
    device.run(*(multiply(kernels, D, A_there, B_there, transpose_a, transpose_b) for D in (first, second)))
    check(first.to_host(), A, B, transpose_a, transpose_b)
    assert first.to_host().tobytes() == second.to_host().tobytes()


@pytest.mark.parametrize(
    ("version_and_dtype", "factors"),
    spread(VERSIONS, [(1, 1), (-0.5, 0), (0.75, -2), (0, 3)], by=2),
    indirect=["version_and_dtype"],
    ids=str,
)
def test_alpha_beta_and_another_C(kernels, device, rng, dtype, factors):
    (alpha, beta), (M, N, K) = factors, (37, 70, 19)
    A, B, C = (operand(rng, *shape, False, dtype) for shape in ((M, K), (K, N), (M, N)))
    D = device.poisoned((M, N), dtype)
    device.run(
        multiply(kernels, D, device.array(A), device.array(B), alpha=alpha, beta=beta, C=device.array(C))
    )
    check(D.to_host(), A, B, alpha=alpha, beta=beta, C=C)


HALF = spread(VERSIONS, [False, True], [False, True], by=2)
"""Takes two of the four forms of each version; `test_shapes` has all of them."""


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("version_and_dtype", "transpose_a", "transpose_b"), HALF, indirect=["version_and_dtype"], ids=str
)
def test_adds_to_D_itself(kernels, device, rng, dtype, transpose_a, transpose_b):
    M, N, K = 67, 35, 41
    A = operand(rng, M, K, transpose_a, dtype)
    B = operand(rng, K, N, transpose_b, dtype)
    C = operand(rng, M, N, False, dtype)
    D = device.array(C)
    device.run(
        multiply(kernels, D, device.array(A), device.array(B), transpose_a, transpose_b, alpha=0.5, beta=1)
    )
    check(D.to_host(), A, B, transpose_a, transpose_b, 0.5, 1, C)


@pytest.mark.parametrize("first", few([1], of=[1, 2, 4]))
@pytest.mark.parametrize(
    ("version_and_dtype", "transpose_a", "transpose_b"), HALF, indirect=["version_and_dtype"], ids=str
)
def test_column_slices(kernels, device, rng, dtype, transpose_a, transpose_b, first):
    """From column 1 or 2 16-byte loads are not aligned. NaN around the slices shows whether it is read."""
    M, N, K = 66, 71, 37

    def sliced(matrix, spare):
        wide = np.full((len(matrix), first + matrix.shape[1] + spare), np.nan, dtype)
        wide[:, first : first + matrix.shape[1]] = matrix
        there = device.array(wide)
        return there, there.columns(first, first + matrix.shape[1])

    A = operand(rng, M, K, transpose_a, dtype)
    B = operand(rng, K, N, transpose_b, dtype)
    C = operand(rng, M, N, False, dtype)
    # The width of A's array is a multiple of 4 or not, B's the other way round.
    _, A_there = sliced(A, -(first + A.shape[1]) % 4 + 4)
    _, B_there = sliced(B, 3)
    _, C_there = sliced(C, 0)
    whole, D = sliced(np.full((M, N), np.nan), 5)
    device.run(multiply(kernels, D, A_there, B_there, transpose_a, transpose_b, beta=1, C=C_there))
    result = whole.to_host()
    check(result[:, first : first + N], A, B, transpose_a, transpose_b, beta=1, C=C)
    assert np.all(np.isnan(result[:, :first])) and np.all(np.isnan(result[:, first + N :]))


def test_infinity_stays_in_its_row(kernels, device, rng, dtype):
    """Ragged tiles are filled up with zeros, and 0 * inf is NaN: the filling must meet only filling."""
    M, N, K = 35, 37, 33
    A = operand(rng, M, K, False, dtype)
    B = np.abs(operand(rng, K, N, False, dtype)) + dtype.type(0.1)
    A[7, 32] = np.inf
    D = device.poisoned((M, N), dtype)
    device.run(multiply(kernels, D, device.array(A), device.array(B)))
    finite = np.isfinite(D.to_host())
    assert not finite[7].any() and finite.sum() == finite.size - N
    if not kernels.uses_tensor_cores:  # there infinity meets components of both signs: it becomes NaN
        assert np.all(D.to_host()[7] == np.inf)


def test_nothing_along_k(kernels, device, dtype):
    """K == 0, the weight gradient of a rank without samples: beta C, or zeros without reading C."""
    A, B = (device.array(np.empty((0, size), dtype)) for size in (5, 3))
    C, D = device.array(np.full((5, 3), 2, dtype)), device.poisoned((5, 3), dtype)
    for beta, given, expected in ((0.5, C, 1), (0.0, None, 0)):
        device.run(multiply(kernels, D, A, B, transpose_a=True, beta=beta, C=given))
        assert np.all(D.to_host() == expected)
