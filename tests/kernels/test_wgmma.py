"""gemm/wgmma.cu: the device functions of gemm/tma.cuh and gemm/wgmma.cuh one by one, components, tilings.

On a GPU these tests run the instructions, on the emulated device their twins: the same code against NumPy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nn.launch.gemm import gemm
from nn.launch.gemm.components import Components, Split, reads_tf32
from nn.launch.gemm.layer import component_product
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.gemm.versions import TENSOR_ARCHITECTURES
from nn.launch.gemm.wgmma import (
    ComponentProduct,
    Tiling,
    width_of,
)
from nn.launch.kernels import Kernels
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.kernels import KERNELS, KernelLibrary
from tests import few, spread
from tests.pyrt.sources import folder_of

SOURCE = r"""
// constants: REAL=float TRANSPOSE_A=0|1 TRANSPOSE_B=0|1
#include "common.cuh"
#include "bfloat16.cuh"
#include "gemm/tma.cuh"
#include "gemm/wgmma.cuh"

// Copies a box with rows of `row` bytes into shared memory, and the bytes of it as they lie there to `out`.
extern "C" __global__ void
box(const TensorMap *map, int x, int y, int z, int row, int bytes, unsigned char *out)
{
    extern __shared__ __align__(1024) unsigned char tile[];
    __shared__ Barrier barrier;
    if (threadIdx.x == 0) {
        init_barrier(&barrier, 1);
        fence_barrier_init();
    }
    __syncthreads();
    for (int round = 0; round < 3; round++) {  // the barrier's phases follow one another
        if (threadIdx.x == 0) {
            arrive_and_expect(&barrier, bytes);
            copy_box(tile, map, x, y, z, &barrier);
        }
        wait(&barrier, round & 1);
        for (int i = threadIdx.x; i < bytes; i += blockDim.x)
            out[i] = tile[swizzled(i, row)];
        __syncthreads();
    }
}

// D (64 x 128) = (A B' twice, the second time added to the first) of tiles A (64 lines) and B (128 lines),
// WIDTH bytes along k.
template <int WIDTH>
__device__ inline void multiply_twice(const TensorMap *A, const TensorMap *B, real *D)
{
    extern __shared__ __align__(1024) bfloat16 tiles[];
    __shared__ Barrier barrier;
    if (threadIdx.x == 0) {
        init_barrier(&barrier, 1);
        fence_barrier_init();
        arrive_and_expect(&barrier, (64 + 128) * WIDTH);
        copy_box(tiles, A, 0, 0, 0, &barrier);
        copy_box(tiles + 64 * WIDTH / 2, B, 0, 0, 0, &barrier);
    }
    __syncthreads();
    wait(&barrier, 0);
    real d[64];
    begin_products(d);
    multiply_tile<128, TRANSPOSE_A, TRANSPOSE_B, WIDTH>(d, tiles, tiles + 64 * WIDTH / 2, false);
    multiply_tile<128, TRANSPOSE_A, TRANSPOSE_B, WIDTH>(d, tiles, tiles + 64 * WIDTH / 2, true);
    end_products();
    wait_for_products<0>(d);
    for (int i = 0; i < 64; i++)
        D[product_row(i) * 128 + product_column(i)] = d[i];
}

extern "C" __global__ void __launch_bounds__(128)
tile_product_128(const TensorMap *A, const TensorMap *B, real *D)
{
    multiply_twice<128>(A, B, D);
}

extern "C" __global__ void __launch_bounds__(128)
tile_product_64(const TensorMap *A, const TensorMap *B, real *D)
{
    multiply_twice<64>(A, B, D);
}
"""


@pytest.fixture(scope="module")
def mine(driver: Driver) -> KernelLibrary:
    if driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    return KernelLibrary(driver, [folder_of("mine", SOURCE), KERNELS])


@pytest.fixture
def cores(library: KernelLibrary) -> Kernels:
    if library.driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    return Kernels(library, np.float32, "wgmma")


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of the nearest bf16 of float32 numbers."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def components_of(device, x, count, cores):
    """The components of a host array on the device."""
    array = device.array(x)
    components = Components.empty(device.driver, count, *x.shape)
    device.arrays.append(components.array)
    device.run(Split([(array, components)]).on_device(cores))
    return components


def multiply(cores, D, A, B, transpose_a=False, transpose_b=False, tiling=None, **epilogue):
    """D = op(A) op(B), both given as components."""
    a, b = (replace(D, shape=(X.rows, X.columns), ld=X.columns) for X in (A, B))  # never read
    product = Product(D, a, b, transpose_a, transpose_b)
    return replace(component_product(product, A, B, Epilogue(**epilogue)), tiling=tiling).on_device(cores)


def check_twice(device, launch, D, expected, tolerance):
    """Run a product twice: the same bits, and close to ``expected``, relative to its largest element."""
    results = []
    for _ in range(2):
        D.set(np.full(D.shape, np.nan, "f4"))
        device.run(launch)
        results.append(D.to_host())
        atol = tolerance * np.abs(expected).max()
        np.testing.assert_allclose(results[-1], expected, rtol=0, atol=atol)
    assert results[0].tobytes() == results[1].tobytes()


def bits_of(components: Components) -> np.ndarray:
    """(count, rows, columns) of bits."""
    return components.matrix.to_host().reshape(components.count, components.rows, components.ld)[
        :, :, : components.columns
    ]


@pytest.mark.sanitizer
@pytest.mark.parametrize("width", [64, 32])
@pytest.mark.parametrize("corner", [(0, 0, 0), (64, 16, 1), (96, 40, 2), (-8, -3, 1)])
def test_a_box_comes_with_its_chunks_permuted_and_zeros_outside(mine, device, rng, corner, width):
    array = rng.integers(1, 2**15, (2, 3, 50, 136)).astype(np.uint16)  # contiguous dimension last
    there = device.array(array.reshape(-1))
    sizes, strides = (120, 50, 3, 2), (136 * 2, 50 * 136 * 2, 3 * 50 * 136 * 2)
    box = (width, 16, 2, 2)
    packed = device.driver.tensor_map(there.pointer, sizes, strides, box)
    bytes_ = int(np.prod(box)) * 2
    out = device.array(np.zeros(bytes_, np.uint8))
    map_ = device.array(np.frombuffer(packed, np.uint8))
    kernel = mine.kernel("mine", "box", REAL="float", TRANSPOSE_A=0, TRANSPOSE_B=0)
    device.run(kernel.bind((1,), (64,), map_, *corner, 2 * width, bytes_, out, shared=bytes_))
    expected = np.zeros((2, 2, 16, width), np.uint16)
    for w, z, y, x in np.ndindex(expected.shape):
        at = (w, corner[2] + z, corner[1] + y, corner[0] + x)
        if all(0 <= i < size for i, size in zip(at, sizes[::-1], strict=True)):
            expected[w, z, y, x] = array[at]
    np.testing.assert_array_equal(out.to_host().view(np.uint16), expected.reshape(-1))


@pytest.mark.parametrize("width", [128, 64])
@pytest.mark.parametrize("transposed_b", [0, 1])
@pytest.mark.parametrize("transposed_a", [0, 1])
def test_a_product_of_tiles(mine, device, rng, cores, transposed_a, transposed_b, width):
    depth = width // 2
    a, b = rng.standard_normal((64, depth)).astype("f4"), rng.standard_normal((128, depth)).astype("f4")
    A = components_of(device, a.T if transposed_a else a, 1, cores)
    B = components_of(device, b.T if transposed_b else b, 1, cores)
    D = device.poisoned((64, 128), "f4")
    maps = A.tensor_map(bool(transposed_a), 64, width), B.tensor_map(bool(transposed_b), 128, width)
    device.arrays.extend(maps)
    kernel = mine.kernel(
        "mine", f"tile_product_{width}", REAL="float", TRANSPOSE_A=transposed_a, TRANSPOSE_B=transposed_b
    )
    device.run(kernel.bind((1,), (128,), *maps, D, shared=(64 + 128) * width))
    a, b = to_float(to_bfloat16(a)).astype(np.float64), to_float(to_bfloat16(b)).astype(np.float64)
    # Products are exact; 128 of them are added in float32, on a GPU rounding toward zero.
    np.testing.assert_allclose(
        D.to_host(), 2 * a @ b.T, rtol=0, atol=128 * 2**-23 * (np.abs(a) @ np.abs(b.T)).max()
    )


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (33, 67), (5, 260)])
def test_components_are_the_nearest_bf16_of_what_is_left(device, rng, cores, shape):
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-20, 20, shape)).astype("f4")
    bits = bits_of(components_of(device, x, 3, cores))
    rest = x.astype(np.float64)
    for component in bits:
        np.testing.assert_array_equal(component, to_bfloat16(rest.astype("f4")))
        rest = rest - to_float(component)
    assert np.all(np.abs(rest) <= 2.0**-24 * np.abs(x))


def test_components_of_what_is_not_finite(device, cores):
    x = np.array([[np.inf, -np.inf, np.nan, 3.4e38, 0, -0.0]], "f4")
    values = to_float(bits_of(components_of(device, x, 2, cores)))
    np.testing.assert_array_equal(values[0], np.array([[np.inf, -np.inf, np.nan, np.inf, 0, -0.0]], "f4"))
    np.testing.assert_array_equal(values[1], np.zeros((1, 6), "f4"))


def test_two_matrices_are_split_in_one_launch(device, rng, cores):
    first, second = rng.standard_normal((9, 130)).astype("f4"), rng.standard_normal((40, 3)).astype("f4")
    components = [Components.empty(device.driver, 3, *x.shape) for x in (first, second)]
    device.arrays.extend(one.array for one in components)
    pairs = [(device.array(x), one) for x, one in zip((first, second), components, strict=True)]
    device.run(Split(pairs).on_device(cores))
    for x, one in zip((first, second), components, strict=True):
        np.testing.assert_allclose(to_float(bits_of(one)).astype("f8").sum(axis=0), x, rtol=2.0**-24)


@pytest.mark.parametrize("components_a, components_b, tolerance", [(3, 3, 2e-7), (2, 2, 2e-5), (1, 1, 1e-2)])
def test_accuracy_of_components(device, rng, cores, components_a, components_b, tolerance):
    a, b = rng.standard_normal((70, 200)).astype("f4"), rng.standard_normal((66, 200)).astype("f4")
    D = device.poisoned((70, 66), "f4")
    A, B = components_of(device, a, components_a, cores), components_of(device, b, components_b, cores)
    device.run(multiply(cores, D, A, B, transpose_b=True))
    expected = a.astype("f8") @ b.T.astype("f8")
    error = np.abs(D.to_host() - expected).max() / np.abs(expected).max()
    # More accurate than it claims would mean that components are multiplied that nobody asked for.
    assert tolerance / 1000 < error < tolerance


@pytest.mark.parametrize("activation", few(["sigmoid"], of=["identity", "sigmoid", "tanh", "relu"]))
def test_pixels_have_one_component_and_the_epilogue_does_the_rest(device, rng, cores, activation):
    pixels = rng.integers(0, 256, (67, 90)).astype("f4")
    W, bias = rng.standard_normal((70, 90)).astype("f4"), rng.standard_normal(70).astype("f4")
    D = device.poisoned((67, 70), "f4")
    X, W_components = components_of(device, pixels, 1, cores), components_of(device, W, 3, cores)
    device.run(
        multiply(
            cores,
            D,
            X,
            W_components,
            transpose_b=True,
            alpha=1 / 255,
            bias=device.array(bias),
            activation=activation,
        )
    )
    z = pixels.astype("f8") @ W.T.astype("f8") / 255 + bias
    f = {"identity": lambda z: z, "sigmoid": lambda z: 1 / (1 + np.exp(-z)), "tanh": np.tanh}
    expected = f.get(activation, lambda z: np.maximum(z, 0))(z)
    np.testing.assert_allclose(D.to_host(), expected, rtol=0, atol=1e-6 * np.abs(z).max())


def test_some_columns(device, rng, cores):
    """dW's panel: columns of dZ."""
    dZ, X = rng.standard_normal((50, 80)).astype("f4"), rng.standard_normal((50, 70)).astype("f4")
    dZ_components = components_of(device, dZ, 3, cores).some_columns(8, 77)
    X_components = components_of(device, X, 3, cores)
    D = device.poisoned((69, 70), "f4")
    device.run(multiply(cores, D, dZ_components, X_components, transpose_a=True))
    expected = dZ[:, 8:77].astype("f8").T @ X.astype("f8")
    np.testing.assert_allclose(D.to_host(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    with pytest.raises(IndexError):
        X_components.some_columns(4, 8)


TILINGS = [
    Tiling(*tile, parts, stages, width_of(tile, 3, 3))
    for tile, stages in (((64, 64), 2), ((128, 64), 2), ((192, 64), 2), ((64, 128), 2), ((192, 128), 3))
    for parts in (1, 3)
]


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("tiling", "transposed"),
    spread(
        [*TILINGS, Tiling(128, 128, 5, 2, width_of((128, 128), 3, 3))], [(False, True), (True, False)], by=2
    ),
    ids=lambda one: f"{one.tile}/{one.parts}" if isinstance(one, Tiling) else str(one),
)
def test_every_cut(device, rng, cores, tiling, transposed):
    """Ragged, more tiles along k than buffers, twice: parts of K meet again where they met before."""
    transposed_a, transposed_b = transposed
    a, b = rng.standard_normal((130, 300)).astype("f4"), rng.standard_normal((70, 300)).astype("f4")
    D = device.poisoned((130, 70), "f4")
    A = components_of(device, a.T if transposed_a else a, 3, cores)
    B = components_of(device, b if transposed_b else b.T, 3, cores)
    expected = 0.5 * a.astype("f8") @ b.T.astype("f8")
    launch = multiply(cores, D, A, B, transposed_a, transposed_b, alpha=0.5, tiling=tiling)
    assert launch.kernels == (f"gemm_{tiling.tile}",)
    check_twice(device, launch, D, expected, 1e-6)


def truncated(x: np.ndarray) -> np.ndarray:
    """What tensor cores see of float32 numbers: their upper 19 bits."""
    return (np.ascontiguousarray(x).view(np.uint32) & 0xFFFFE000).view(np.float32)


TILES = [(64, 64), (128, 64), (192, 64), (64, 128), (128, 128), (192, 128), (128, 256)]

TF32_TILINGS = [*(Tiling(*tile, 1, 2) for tile in TILES), Tiling(128, 128, 1, 2, ping_pong=True)]


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "tiling", few([TF32_TILINGS[i] for i in (0, -3, -2, -1)], of=TF32_TILINGS), ids=lambda one: one.tile
)
def test_float32_rows_are_read_as_tf32(device, rng, cores, tiling):
    a, b = rng.standard_normal((130, 84)).astype("f4"), rng.standard_normal((266, 84)).astype("f4")
    D, A, B = device.poisoned((130, 266), "f4"), device.array(a), device.array(b)
    assert reads_tf32(A) and reads_tf32(B) and not reads_tf32(A.columns(1, 84))
    device.run(multiply(cores, D, Components.tf32(A), Components.tf32(B), transpose_b=True, tiling=tiling))
    expected = truncated(a).astype("f8") @ truncated(b).T.astype("f8")
    # 84 products added in float32, on a GPU rounding toward zero
    atol = 84 * 2**-23 * (np.abs(a) @ np.abs(b.T)).max()
    np.testing.assert_allclose(D.to_host(), expected, rtol=0, atol=atol)


def test_gemm_reads_tf32_where_it_can(library, device, rng):
    if library.driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    kernels = Kernels(library, np.float32, "wgmma", "tf32")
    a, b = rng.standard_normal((70, 68)).astype("f4"), rng.standard_normal((66, 68)).astype("f4")
    D = device.poisoned((70, 66), "f4")
    A, B = device.array(a), device.array(b)
    for product, names in (
        (Product(D, A, B, transpose_b=True), 1),
        (Product(D, device.array(a.T), B, True, True), 2),
    ):
        launch = gemm(kernels, product)
        assert len(launch.kernels) == names
        device.run(launch)
        expected = a.astype("f8") @ b.T.astype("f8")
        assert np.abs(D.to_host() - expected).max() < 2e-3 * np.abs(expected).max()


def test_shapes_that_do_not_fit(cores, device):
    A, B = (Components.empty(device.driver, 1, *shape) for shape in ((3, 4), (5, 6)))
    device.arrays.extend([A.array, B.array])
    D = device.poisoned((3, 5), "f4")
    with pytest.raises(ValueError, match=r"A \(3, 4\), B \(5, 6\) transposed"):
        multiply(cores, D, A, B, transpose_b=True)
    with pytest.raises(ValueError, match=r"D \(3, 7\)"):
        multiply(cores, device.poisoned((3, 7), "f4"), A, A, transpose_b=True)
    with pytest.raises(ValueError, match=r"bias \(3,\) is not \(5,\)"):
        multiply(cores, D, A, B.some_columns(0, 4), transpose_b=True, bias=device.poisoned(3, "f4"))
    with pytest.raises(ValueError, match=r"C \(3, 4\) is not \(3, 5\)"):
        multiply(cores, D, A, B.some_columns(0, 4), transpose_b=True, C=device.poisoned((3, 4), "f4"))


def test_components_of_another_matrix(cores, device):
    A, B = (Components.empty(device.driver, 1, *shape) for shape in ((3, 4), (5, 4)))
    device.arrays.extend([A.array, B.array])
    product = Product(*(device.poisoned(shape, "f4") for shape in ((3, 5), (3, 4), (5, 4))), transpose_b=True)
    for operands in ((B, B), (A, A)):
        with pytest.raises(ValueError, match=r"components of a \d x 4 matrix are not those of \(\d, 4\)"):
            ComponentProduct(product, *operands).on_device(cores)


def test_math_is_the_number_of_components(library):
    accuracies = "float32", "tf32", "bf16"
    assert [Kernels(library, np.float32, math=math).components for math in accuracies] == [3, 2, 1]


def test_components_too_far_apart_are_an_error_for_the_user(driver):
    with pytest.raises(UserError, match=r"17000000 x 65 matrix are more than 2\^31 elements apart"):
        Components.empty(driver, 1, 17_000_000, 65)
