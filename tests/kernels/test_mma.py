"""gemm/mma.cu: the device functions of gemm/mma.cuh one by one, products against float64, tilings.

On a GPU these tests run the instructions, on the emulated device their twins.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nn.launch.gemm.mma import MmaTiling, bind_mma, choose_mma_tiling, has_mma
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.gemm.versions import fastest_gemm, runs_gemm, version_for
from nn.launch.kernels import Kernels
from pyrt.kernels import KERNELS, KernelLibrary
from tests import few, spread
from tests.pyrt.sources import folder_of

A100 = {"multiprocessors": 108, "shared_memory": 163 << 10}

SOURCE = r"""
// constants: REAL=float
#include "common.cuh"
#include "gemm/mma.cuh"

// D (16 x 8) += A (16 x 8) B (8 x 8), twice.
extern "C" __global__ void fragments(const real *A, const real *B, real *D)
{
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    const real a[4] = {A[g * 8 + t], A[(g + 8) * 8 + t], A[g * 8 + t + 4], A[(g + 8) * 8 + t + 4]};
    const real b[2] = {B[t * 8 + g], B[(t + 4) * 8 + g]};
    real d[4];
    for (int i = 0; i < 4; i++)
        d[i] = D[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    multiply_add(d, a, b);
    multiply_add(d, a, b);
    for (int i = 0; i < 4; i++)
        D[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

// Each of 32 threads copies 4 floats at once and 4 one by one, `inside` of each 4; what it has in shared
// memory after 1 and after 2 groups.
extern "C" __global__ void copies(const real *source, int inside, real *out)
{
    __shared__ __align__(16) real there[32][2][4];
    real(&mine)[2][4] = there[threadIdx.x];
    for (int i = 0; i < 4; i++)
        mine[0][i] = mine[1][i] = -1;
    AsyncCopies copies;
    copies.start<16>(mine[0], source + threadIdx.x * 4, inside);
    copies.end_group();
    for (int i = 0; i < 4; i++)
        copies.start<4>(&mine[1][i], source + threadIdx.x * 4 + i, i < inside);
    copies.end_group();
    copies.wait<1>();
    for (int i = 0; i < 4; i++)
        out[threadIdx.x * 8 + i] = mine[0][i];
    copies.wait<0>();
    for (int i = 0; i < 4; i++)
        out[threadIdx.x * 8 + 4 + i] = mine[1][i];
}
"""


@pytest.fixture(scope="module")
def mine(driver):
    if not has_mma(driver.architecture):
        pytest.skip("needs the tensor cores of sm_80")
    return KernelLibrary(driver, [folder_of("mine", SOURCE), KERNELS])


@pytest.fixture(params=["float32", "tf32"])
def mma(request, library):
    if not has_mma(library.driver.architecture):
        pytest.skip("needs the tensor cores of sm_80")
    return Kernels(library, np.float32, "mma", request.param)


@pytest.fixture
def exact(library):
    if not has_mma(library.driver.architecture):
        pytest.skip("needs the tensor cores of sm_80")
    return Kernels(library, np.float32, "mma")


@pytest.fixture
def cut(monkeypatch):
    """Makes all products be cut like this."""

    def use(*tiling):
        monkeypatch.setattr("nn.launch.gemm.mma.choose_mma_tiling", lambda *sizes: MmaTiling(*tiling))

    return use


def multiply(mma, D, A, B, transpose_a=False, transpose_b=False, sums=None, **epilogue):
    return bind_mma(mma, Product(D, A, B, transpose_a, transpose_b), Epilogue(**epilogue), sums)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype("f4")


def tf32(x):
    """What is left of float32 numbers where the low 13 bits are ignored."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def check(D, a, b, components, beyond=0.0):
    """D = a b + beyond, a and b as they are multiplied, float64.

    Of each product 2^-22 is left out with two components, 2^-11 of each of its numbers with one. Sums of
    float32 add a few roundings of what they reach, those of tensor cores, toward zero, 2^-23 for each 8 along
    k.
    """
    magnitude = np.abs(a) @ np.abs(b)
    steps = a.shape[1] / 8
    allowed = 2.0**-20 + 2.0**-23 * np.sqrt(a.shape[1]) if components == 2 else 2.0**-10 + 2.0**-23 * steps
    allowed = allowed * magnitude + 2.0**-22 * np.abs(beyond)
    difference = np.abs(D - (a @ b + beyond))
    assert np.all(difference <= allowed), (difference - allowed).max()


def test_fragments(mine, device, rng):
    a, b, d = normal(rng, 16, 8), normal(rng, 8, 8), normal(rng, 16, 8)
    D = device.array(d)
    device.run(
        mine.kernel("mine", "fragments", REAL="float").bind((1,), (32,), *map(device.array, (a, b)), D)
    )
    a, b = tf32(a).astype("f8"), tf32(b).astype("f8")
    np.testing.assert_allclose(D.to_host(), d + 2 * a @ b, rtol=0, atol=2.0**-20 * (np.abs(a) @ abs(b)).max())


@pytest.mark.parametrize("inside", range(5))
def test_copies(mine, device, rng, inside):
    source, out = normal(rng, 32, 4), device.poisoned((32, 8), "f4")
    device.run(
        mine.kernel("mine", "copies", REAL="float").bind((1,), (32,), device.array(source), inside, out)
    )
    source[:, inside:] = 0
    np.testing.assert_array_equal(out.to_host(), np.hstack([source, source]))


LAYOUTS = list(itertools.product([False, True], repeat=2))
RAGGED = [(1, 1, 1), (3, 5, 2), (7, 66, 33), (65, 9, 31), (70, 67, 65)]


@pytest.mark.parametrize(
    ("mma", "layout", "tile"),
    spread(["float32", "tf32"], LAYOUTS, [64, 128], by=3),
    indirect=["mma"],
    ids=str,
)
def test_views_with_odd_leading_dimensions(mma, device, rng, cut, layout, tile):
    """NaN around the views shows whether it is read, and whether anything is written there."""
    transpose_a, transpose_b = layout
    cut(tile, tile, 1)
    for number, (M, N, K) in enumerate(RAGGED):
        a, b, c = normal(rng, M, K), normal(rng, K, N), normal(rng, M, N)
        first = number % 5  # 16-byte copies are aligned where it is 0 or 4 and the width a multiple of 4

        def view(matrix, first=first, number=number):
            left = first + matrix.shape[1]
            width = left + 1 if number % 2 else -(-left // 4) * 4
            wide = np.full((len(matrix), width), np.nan, "f4")
            wide[:, first:left] = matrix
            there = device.array(wide)
            return there, there.columns(first, left)

        (_, A), (_, B), (_, C), (whole, D) = map(
            view, (a.T if transpose_a else a, b.T if transpose_b else b, c, np.full((M, N), np.nan, "f4"))
        )
        sums = device.poisoned(M, "f4")
        device.run(multiply(mma, D, A, B, transpose_a, transpose_b, sums, alpha=0.5, beta=-2.0, C=C))
        result = whole.to_host()
        a, b = a.astype("f8"), b.astype("f8")
        check(result[:, first : first + N], 0.5 * a, b, mma.mma_components, -2.0 * c)
        assert np.isnan(result).sum() == result.size - M * N
        np.testing.assert_allclose(
            sums.to_host(), a.sum(axis=1), rtol=0, atol=2.0**-22 * np.abs(a).sum(axis=1).max()
        )


@pytest.mark.sanitizer
@pytest.mark.parametrize("transpose_a, transpose_b", few(LAYOUTS[::3], of=LAYOUTS))
def test_parts_of_k_are_added_and_the_same_bits_come_twice(mma, device, rng, cut, transpose_a, transpose_b):
    cut(64, 64, 3)
    M, N, K = 68, 36, 232
    a, b = normal(rng, M, K), normal(rng, K, N)
    A, B = device.array(a.T if transpose_a else a), device.array(b.T if transpose_b else b)
    results = [(device.poisoned((M, N), "f4"), device.poisoned(M, "f4")) for _ in range(2)]
    for D, sums in results:
        device.run(multiply(mma, D, A, B, transpose_a, transpose_b, sums=sums))
    (D, sums), (D_again, sums_again) = ([array.to_host() for array in result] for result in results)
    check(D, a.astype("f8"), b.astype("f8"), mma.mma_components)
    np.testing.assert_allclose(sums, a.sum(axis=1, dtype="f8"), rtol=0, atol=1e-5)
    assert D.tobytes() == D_again.tobytes() and sums.tobytes() == sums_again.tobytes()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("activation", few(["tanh"], of=["identity", "sigmoid", "tanh", "relu"]))
def test_bias_and_activation(exact, device, rng, cut, activation, parts):
    cut(64, 64, parts)
    a, b, bias = normal(rng, 35, 70), normal(rng, 67, 70), normal(rng, 67)
    D = device.poisoned((35, 67), "f4")
    A, B = device.array(a), device.array(b)
    device.run(
        multiply(exact, D, A, B, transpose_b=True, alpha=0.1, bias=device.array(bias), activation=activation)
    )
    z = 0.1 * a.astype("f8") @ b.T.astype("f8") + bias
    f = {"identity": lambda z: z, "sigmoid": lambda z: 1 / (1 + np.exp(-z)), "tanh": np.tanh}
    expected = f.get(activation, lambda z: np.maximum(z, 0))(z)
    np.testing.assert_allclose(D.to_host(), expected, rtol=0, atol=1e-6 * np.abs(z).max())


def relative_error(mma, device, a, b):
    D = device.poisoned((len(a), len(b)), "f4")
    device.run(multiply(mma, D, device.array(a), device.array(b), transpose_b=True))
    expected = a.astype("f8") @ b.T.astype("f8")
    return np.abs(D.to_host() - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("positive", [False, True])
def test_accuracy(mma, device, rng, cut, positive):
    """Of positive numbers, too: there what is cut off would add up, as would sums rounded toward zero."""
    cut(64, 64, 1)
    a, b = ((rng.random((9, 2000)) if positive else normal(rng, 9, 2000)).astype("f4") for _ in range(2))
    error = relative_error(mma, device, a, b)
    if mma.mma_components == 2:
        assert error < 6e-7
    else:  # more accurate than it claims would mean that components are multiplied that nobody asked for
        assert 1e-6 < error < (1e-4 if positive else 5e-4)


def test_what_is_not_finite_shows(mma, device, rng, cut):
    """NaN of any bits, among them CUDA's own; infinity in its row; numbers near the largest float32."""
    cut(64, 64, 1)
    a, b = normal(rng, 8, 40), np.abs(normal(rng, 5, 40)) + 1
    a[0, 3], a[1, 39], a[2, 0] = np.nan, np.inf, -np.inf
    a[3:6, 7] = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    a[6], b[:, 0] = 0, 1
    a[6, 0] = 3.4e38
    D = device.poisoned((8, 5), "f4")
    device.run(multiply(mma, D, device.array(a), device.array(b), transpose_b=True))
    D = D.to_host()
    assert not np.isfinite(D[:6]).any() and np.isfinite(D[6:]).all()
    assert np.isnan(D[[0, 3, 4]]).all()  # the bits of the next one say NaN in the last alone
    np.testing.assert_allclose(D[6], 3.4e38, rtol=1e-6 if mma.mma_components == 2 else 1e-3)


@pytest.mark.parametrize("parts", [1, 2])
def test_nothing_along_k(mma, device, cut, parts):
    """A rank without samples: zeros, or beta C."""
    cut(64, 64, parts)
    A, B = (device.array(np.empty((0, size), "f4")) for size in (5, 3))
    C = device.array(np.full((5, 3), 2, "f4"))
    for beta, expected in ((0.0, 0), (0.5, 1)):
        D, sums = device.poisoned((5, 3), "f4"), device.poisoned(5, "f4")
        device.run(multiply(mma, D, A, B, transpose_a=True, beta=beta, C=C, sums=sums))
        assert np.all(D.to_host() == expected) and np.all(sums.to_host() == 0)


def test_shapes_that_do_not_fit(exact, device):
    A, B, D = (device.poisoned(shape, "f4") for shape in ((3, 4), (5, 4), (3, 5)))
    for arguments, words in (
        ({"D": D, "A": A, "B": B}, r"A \(3, 4\), B \(5, 4\)"),
        ({"D": B, "A": A, "B": B, "transpose_b": True}, r"D \(5, 4\)"),
        ({"D": D, "A": A, "B": B, "transpose_b": True, "C": A}, r"C \(3, 4\) is not \(3, 5\)"),
        (
            {"D": D, "A": A, "B": B, "transpose_b": True, "bias": device.poisoned(3, "f4")},
            r"bias \(3,\) is not \(5,\)",
        ),
        (
            {"D": D, "A": A, "B": B, "transpose_b": True, "sums": device.poisoned(5, "f4")},
            r"sums \(5,\) is not \(3,\)",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            multiply(exact, **arguments)


class TestChoice:
    def test_every_cut_fits_and_covers(self):
        for M, N, K in itertools.product([0, 1, 64, 750, 4096, 60000], repeat=3):
            for components, shared in itertools.product((1, 2), (64 << 10, 99 << 10, 227 << 10)):
                tiling = choose_mma_tiling(M, N, K, components, 108, shared)
                assert tiling.shared <= shared and 1 <= tiling.parts <= max(1, -(-K // 32))
                assert (tiling.rows, tiling.threads) in ((64, 128), (128, 256))

    @pytest.mark.parametrize(
        "M, N, K, expected",
        [  # few tiles: small ones, and of K some parts; many: large ones
            (750, 512, 784, (64, 64, 1)),
            (10, 512, 3000, (64, 64, 12)),
            (4096, 4096, 4096, (128, 128, 1)),
        ],
    )
    def test_some_sizes(self, M, N, K, expected):
        assert choose_mma_tiling(M, N, K, 2, **A100) == MmaTiling(*expected)


def test_architectures():
    versions = {
        "sm_75": "tiled",
        "sm_80": "mma",
        "sm_86": "mma",
        "sm_89": "mma",
        "sm_90a": "wgmma",
        "sm_120": "mma",
        "emulated": "tiled",
        "": "tiled",
    }
    for architecture, version in versions.items():
        assert fastest_gemm(np.float32, architecture) == version
        assert fastest_gemm(np.float64, architecture) == "tiled"
        assert runs_gemm("tiled", architecture)

    assert [runs_gemm("mma", name) for name in versions] == [False, *[True] * 6, False]
    assert [name for name in versions if runs_gemm("wgmma", name)] == ["sm_90a", "emulated"]


@pytest.mark.parametrize(
    "version, sizes, math, expected",
    [
        ("wgmma", (750, 512, 784), "float32", "wgmma"),
        ("wgmma", (750, 10, 512), "float32", "mma"),
        ("wgmma", (10, 512, 750), "tf32", "mma"),
        ("wgmma", (10, 512, 750), "bf16", "wgmma"),  # mma has no bf16
        ("wgmma", (750, 512, 10), "float32", "register"),
        ("mma", (750, 512, 10), "float32", "register"),
        ("mma", (10, 10, 100), "float32", "mma"),
        ("tiled", (10, 10, 10), "float32", "tiled"),
    ],
)
def test_version_of_a_size(version, sizes, math, expected):
    assert version_for(version, *sizes, math) == expected


def test_math_is_the_number_of_components(library):
    components = [Kernels(library, np.float32, "mma", math).mma_components for math in ("float32", "tf32")]
    assert components == [2, 1]
    with pytest.raises(ValueError, match="math of mma is float32, tf32, not 'bf16'"):
        Kernels(library, np.float32, "mma", "bf16")
