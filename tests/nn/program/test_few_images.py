"""nn/program/few_images.py: which products of a list for few images become kernels for few rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from nn.launch.elementwise import BiasActivation
from nn.launch.gemm.few_rows import MOST_ROWS, FewRows
from nn.launch.gemm.product import Product
from nn.launch.kernels import Kernels
from nn.program.few_images import for_few_images
from nn.program.operations import FORWARD, Operation
from pyrt.arrays import DeviceArray
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KernelLibrary


@pytest.fixture
def driver() -> NullDriver:
    return NullDriver(DeviceProperties("H200", "sm_90a", 132, 227 << 10))


def layers(driver: NullDriver, images: int, *units: int, dtype: str = "float32") -> list[Operation]:
    """List the products of dense layers, each with its bias and activation."""
    A, items = DeviceArray.empty(driver, (images, units[0]), dtype), []
    for inputs, outputs in pairwise(units):
        Z, W = (DeviceArray.empty(driver, shape, dtype) for shape in ((images, outputs), (outputs, inputs)))
        b = DeviceArray.empty(driver, (outputs,), dtype)
        items += [
            Operation("product", FORWARD, Product(Z, A, W, transpose_b=True)),
            Operation("bias and activation", FORWARD, BiasActivation(Z, b, "tanh")),
        ]
        A = Z
    return items


def test_product_bias_and_activation_are_one_kernel(driver: NullDriver) -> None:
    items = layers(driver, MOST_ROWS, 784, 512, 10)
    found = for_few_images(items, Kernels(KernelLibrary(driver), np.float32))
    assert [type(item.work) for item in found] == [FewRows, FewRows]
    for item, product, after in zip(found, items[::2], items[1::2], strict=True):
        assert item.work.product is product.work
        assert (item.work.epilogue.bias, item.work.epilogue.activation) == (after.work.b, "tanh")
    # The second may not overtake the first, which had nothing before it that it could have overtaken.
    assert [item.starts_early for item in found] == [False, True]


@pytest.mark.parametrize("math", ["float32", "tf32"])
def test_weights_that_no_cache_holds_are_read_as_they_are(driver: NullDriver, math: str) -> None:
    """Their two components of TF32 are as many bytes."""
    found = for_few_images(
        layers(driver, 1, 25088, 4096), Kernels(KernelLibrary(driver), np.float32, math=math)
    )
    assert [type(item.work) for item in found] == [FewRows]


def test_weights_that_the_kernel_before_makes_are_not_read_early(driver: NullDriver) -> None:
    first, second = layers(driver, 1, 784, 512, 10)[::2]
    second = Operation("of made weights", FORWARD, Product(second.work.D, second.work.A, first.work.D, True))
    products = [first, second]
    found = for_few_images(products, Kernels(KernelLibrary(driver), np.float32))
    assert isinstance(found[0].work, FewRows)
    assert not any(item.starts_early for item in found)


@pytest.mark.parametrize(
    ("images", "units", "settings"),
    [
        (MOST_ROWS + 1, (784, 512), {}),
        (9, (4096, 4096), {}),  # so much for tensor cores
        (1, (25088, 4096), {"math": "bf16"}),  # half of the bytes are there as bf16
        (1, (784, 512), {"gemm": "wgmma"}),  # who names one sees it
    ],
    ids=str,
)
def test_what_is_not_faster_stays(driver: NullDriver, images, units, settings) -> None:
    items = layers(driver, images, *units)
    assert for_few_images(items, Kernels(KernelLibrary(driver), np.float32, **settings)) == items


def test_float64_and_numpy_stay(driver: NullDriver) -> None:
    items = layers(driver, 1, 784, 512, dtype="float64")
    assert for_few_images(items, Kernels(KernelLibrary(driver), np.float64)) == items
    items = layers(driver, 1, 784, 512)
    assert for_few_images(items, None) == items
