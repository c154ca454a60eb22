"""Kernels.choose: which kernel does a product or a convolution, and whether one does the end of a network."""

import itertools
import re

import numpy as np
import pytest

from nn.launch.classifier import FusedClassifier, fused_classifier_fits
from nn.launch.conv.convolution import Convolution, FilterGradient, InputGradient
from nn.launch.conv.versions import CONV_VERSIONS, common_convolution
from nn.launch.gemm import gemm
from nn.launch.gemm.mma import bind_mma
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.gemm.versions import GEMM_VERSIONS, PLAIN_GEMM_VERSIONS
from nn.launch.kernels import APART, FUSED, Kernels
from nn.model.window import Window
from pyrt.arrays import DeviceArray
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KernelLibrary

H100, A100, T4 = (
    DeviceProperties("H100", "sm_90a", 132, 227 << 10),
    DeviceProperties("A100", "sm_80", 108, 163 << 10),
    DeviceProperties("T4", "sm_75", 40, 64 << 10),
)
EMULATED = DeviceProperties("emulated", "emulated", 8, 227 << 10)


def kernels_of(device, gemm="auto", math="float32", dtype=np.float32):
    return Kernels(KernelLibrary(NullDriver(device)), dtype, gemm, math)


def array(kernels, *shape, dtype=None):
    real = {"float": np.float32, "double": np.float64}[kernels.real]
    return DeviceArray.empty(kernels.driver, shape, dtype or real)


def product(kernels, M, N, K, transpose_a=False, transpose_b=False):
    A = array(kernels, *((K, M) if transpose_a else (M, K)))
    B = array(kernels, *((N, K) if transpose_b else (K, N)))
    return Product(array(kernels, M, N), A, B, transpose_a, transpose_b)


def end(kernels, rows, hidden, classes, activation="tanh"):
    vectors = [array(kernels, size) for size in (classes, hidden, 1)]
    matrices = [array(kernels, *shape) for shape in ((rows, hidden), (classes, hidden))]
    return FusedClassifier(
        "softmax",
        activation,
        *matrices,
        vectors[0],
        array(kernels, rows, dtype=np.int32),
        *matrices,
        *vectors,
        1 / rows,
    )


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        (H100, np.float32, "wgmma"),
        (A100, np.float32, "mma"),
        (T4, np.float32, "tiled"),
        (EMULATED, np.float32, "tiled"),
        (H100, np.float64, "tiled"),
        (A100, np.float64, "tiled"),
    ],
)
def test_of_a_large_product_the_fastest_version_of_the_device(device, dtype, expected):
    kernels = kernels_of(device, dtype=dtype)
    for transposed in itertools.product([False, True], repeat=2):
        assert kernels.choose(product(kernels, 750, 512, 784, *transposed)) == expected


@pytest.mark.parametrize("gemm", PLAIN_GEMM_VERSIONS)
@pytest.mark.parametrize("device", [H100, T4], ids=lambda device: device.name)
def test_a_plain_version_that_was_asked_for_does_all_products(device, gemm):
    kernels = kernels_of(device, gemm)
    for sizes in itertools.product([1, 32, 33, 1000], repeat=3):
        assert kernels.choose(product(kernels, *sizes)) == gemm


@pytest.mark.parametrize(
    ("gemm", "math", "sizes", "expected"),
    [
        ("wgmma", "float32", (750, 512, 784), "wgmma"),
        ("wgmma", "float32", (33, 33, 33), "wgmma"),
        ("wgmma", "float32", (750, 32, 512), "mma"),  # narrow: nothing is split for it
        ("wgmma", "tf32", (32, 512, 750), "mma"),
        ("wgmma", "bf16", (32, 512, 750), "wgmma"),  # mma has no bf16
        ("wgmma", "float32", (750, 512, 32), "register"),  # thin
        ("wgmma", "bf16", (750, 512, 10), "register"),
        ("mma", "float32", (10, 10, 33), "mma"),
        ("mma", "tf32", (750, 512, 32), "register"),
    ],
)
def test_tensor_cores_take_what_is_neither_thin_nor_narrow(gemm, math, sizes, expected):
    kernels = kernels_of(H100, gemm, math)
    M, N, K = sizes
    for transposed in itertools.product([False, True], repeat=2):
        assert kernels.choose(product(kernels, M, N, K, *transposed)) == expected
    assert kernels.gemm_for(M, N, K) == expected


def test_the_version_that_is_chosen_is_the_one_that_is_bound():
    names = {
        "naive": {"gemm_naive"},
        "shared": {"gemm_shared"},
        "register": {"gemm_register"},
        "block": {"gemm_block"},
        "vector": {"gemm_vector"},
        "warp": {"gemm_warp"},
        "tiled": {"gemm_tiled"},
        "mma": {"gemm_64x64", "gemm_128x128", "sum_parts"},
        "wgmma": {
            "split_into_components",
            *(f"gemm_{rows}x{columns}" for rows in (64, 128, 192) for columns in (64, 128, 256)),
        },
    }
    files = {
        **dict.fromkeys(("naive", "shared", "register"), "ladder"),
        **dict.fromkeys(("block", "vector", "warp", "tiled"), "thread_tiles"),
        "mma": "mma",
        "wgmma": "wgmma",
    }
    seen = set()
    for version in GEMM_VERSIONS:
        for sizes in itertools.product([10, 33, 500], repeat=3):
            kernels = kernels_of(H100, version)
            work = product(kernels, *sizes, transpose_b=True)
            chosen = kernels.choose(work)
            assert set(gemm(kernels, work).kernels) <= names[chosen]
            loaded = {
                file
                for file in files.values()
                if any(f'/gemm/{file}.cu"' in source for source in kernels.driver.sources)
            }
            assert loaded == {files[chosen]}
            seen.add(chosen)
    assert seen == set(GEMM_VERSIONS)


def convolution(kernels, kind=Convolution, image=(9, 8, 64), size=(3, 3), stride=1, filters=64, samples=5):
    window = Window.over("conv", image, size, stride, 1)
    outputs = array(kernels, samples, window.places * filters)
    images = array(kernels, samples, window.height * window.width * window.channels)
    return kind(images, outputs, array(kernels, filters, window.pixels), window)


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        (H100, "f4", "implicit"),
        (H100, "f8", "im2col"),
        (A100, "f4", "implicit_mma"),
        (A100, "f8", "im2col"),
        (T4, "f8", "im2col"),
        (EMULATED, "f4", "direct"),
    ],
)
def test_of_a_large_convolution_the_fastest_version_of_the_device(device, dtype, expected):
    kernels = kernels_of(device, dtype=dtype)
    for kind in (Convolution, InputGradient, FilterGradient):
        assert kernels.choose(convolution(kernels, kind)) == expected


@pytest.mark.parametrize("version", CONV_VERSIONS)
@pytest.mark.parametrize("device", [H100, EMULATED], ids=lambda device: device.name)
def test_a_version_of_convolutions_that_was_asked_for_is_bound(device, version):
    """From its own file, for all three."""
    for kind in (Convolution, InputGradient, FilterGradient):
        kernels = Kernels(KernelLibrary(NullDriver(device)), np.float32, conv=version)
        work = convolution(kernels, kind)
        assert kernels.choose(work) == version
        work.on_device(kernels)
        files = {
            file for source in kernels.driver.sources for file in re.findall(r'/conv/(\w+)\.cu"', source)
        }
        assert files - {"flip"} == {version}


@pytest.mark.parametrize(
    ("sizes", "forward", "to_input", "to_filters"),
    [
        ({}, "implicit", "implicit", "implicit"),
        ({"stride": 2}, "implicit", "implicit_mma", "implicit"),  # gradients lie apart
        ({"image": (9, 8, 12)}, "implicit_mma", "implicit", "implicit_mma"),  # pixels that begin anywhere
        ({"filters": 12}, "implicit", "implicit_mma", "implicit_mma"),
        ({"image": (9, 8, 3)}, "narrow", "narrow", "narrow"),
    ],
)
def test_convolutions_that_the_memory_accelerator_cannot_gather(sizes, forward, to_input, to_filters):
    kernels = kernels_of(H100)
    kinds = {Convolution: forward, InputGradient: to_input, FilterGradient: to_filters}
    for kind, expected in kinds.items():
        work = convolution(kernels, kind, **sizes)
        assert kernels.choose(work) == expected, kind
        work.on_device(kernels)


@pytest.mark.parametrize("device", [H100, EMULATED], ids=lambda device: device.name)
def test_with_products_on_mma_convolutions_are_too(device):
    """As on a device that has no tensor cores of sm_90."""
    kernels = Kernels(KernelLibrary(NullDriver(device)), np.float32, "mma", conv="implicit")
    for kind in (Convolution, InputGradient, FilterGradient):
        assert kernels.choose(convolution(kernels, kind)) == "implicit_mma"


@pytest.mark.parametrize(
    ("math", "conv", "channels", "forward", "gradients"),
    [
        ("float32", "auto", 512, "winograd_2x2", "winograd_2x2"),
        ("float32", "auto", 256, "implicit", "winograd_2x2"),
        ("float32", "auto", 128, "implicit", "implicit"),
        ("float32", "implicit", 512, "implicit", "implicit"),
        ("tf32", "auto", 512, "implicit", "implicit"),
    ],
)
def test_small_tiles_of_winograd_are_taken_where_channels_are_many(math, conv, channels, forward, gradients):
    kernels = Kernels(KernelLibrary(NullDriver(H100)), np.float32, math=math, conv=conv)
    for kind in (Convolution, InputGradient, FilterGradient):
        work = convolution(kernels, kind, image=(4, 6, channels), filters=channels)
        assert kernels.choose(work) == (forward if kind is Convolution else gradients), kind
        names = work.on_device(kernels).kernels
        assert any("winograd" in name for name in names) == ("winograd" in kernels.choose(work))


def test_devices_of_different_kinds_share_a_version():
    assert common_convolution("f4", ["sm_90a", "sm_80"]) == "implicit"
    assert common_convolution("f4", ["sm_90a", "sm_80", "sm_75"]) == "im2col"
    assert common_convolution("f4", ["sm_90a"]) == "implicit"
    assert common_convolution("f8", ["sm_90a", "sm_75"]) == "im2col"


def test_sizes_that_do_not_fit_are_no_choice():
    kernels = kernels_of(H100)
    arrays = array(kernels, 5, 4), array(kernels, 5, 3), array(kernels, 2, 4)
    with pytest.raises(ValueError, match=r"D \(5, 4\), A \(5, 3\), B \(2, 4\)"):
        kernels.choose(Product(*arrays))
    with pytest.raises(ValueError, match=r"D \(5, 4\), A \(5, 3\), B \(2, 4\)"):
        bind_mma(kernels, Product(*arrays), Epilogue())


@pytest.mark.parametrize(
    ("hidden", "classes", "expected"),
    [
        (512, 10, FUSED),
        (1, 1, FUSED),
        (512, 32, FUSED),
        (512, 33, APART),  # more classes than the kernel is made for
        (512, 1000, APART),
        (4000, 10, FUSED),
        (6000, 10, APART),  # the weights do not fit
        (4000, 32, APART),
    ],
)
@pytest.mark.parametrize("gemm", ["wgmma", "mma"])
def test_the_end_of_a_network_is_one_kernel_where_it_fits(gemm, hidden, classes, expected):
    kernels = kernels_of(H100, gemm)
    assert fused_classifier_fits(hidden, classes, np.float32, 227 << 10) == (expected == FUSED)
    for rows in (1, 7, 3000):
        assert kernels.choose(end(kernels, rows, hidden, classes)) == expected
    assert kernels.fuses_classifier(hidden, classes) == (expected == FUSED)


def test_less_shared_memory_takes_smaller_ends():
    for hidden, small, large in ((512, FUSED, FUSED), (4000, APART, FUSED)):
        for device, expected in ((A100, large), (DeviceProperties("", "sm_80", 8, 48 << 10), small)):
            kernels = kernels_of(device)
            assert kernels.choose(end(kernels, 100, hidden, 10)) == expected


@pytest.mark.parametrize(
    ("device", "gemm", "dtype"),
    [(T4, "auto", "f4"), (EMULATED, "auto", "f4"), (H100, "tiled", "f4"), (H100, "auto", "f8")],
)
def test_without_tensor_cores_the_end_stays_apart(device, gemm, dtype):
    kernels = kernels_of(device, gemm, dtype=dtype)
    assert kernels.choose(end(kernels, 100, 512, 10)) == APART


@pytest.mark.parametrize("activation", ["identity", "sigmoid", "tanh", "relu"])
def test_what_is_fused_can_be_bound(activation):
    """Of each size at which the kernel is another one."""
    kernels = kernels_of(H100, "mma")
    for rows, hidden, classes in itertools.product([1, 100, 60_000], [1, 70, 512], [1, 10, 11, 32]):
        work = end(kernels, rows, hidden, classes, activation)
        assert kernels.choose(work) == FUSED
        partials = work.workspace()
        assert work.bind_gradient(kernels, partials).kernels == ("fused_classifier",)
        assert work.bind_sums(kernels, partials).kernels == ("sum_partials",)


def test_an_end_of_shapes_that_do_not_fit_is_no_choice():
    kernels = kernels_of(H100)
    work = end(kernels, 9, 7, 3)
    object.__setattr__(work, "b", array(kernels, 4))
    with pytest.raises(ValueError, match=r"b of shape \(4,\) is not a contiguous \(3,\)"):
        kernels.choose(work)
