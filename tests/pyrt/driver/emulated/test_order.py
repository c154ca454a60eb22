"""--order-seed: other orders of threads, blocks and streams; the project's kernels give the same bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nn.launch.classifier import FusedClassifier, fused_classifier_partials
from nn.launch.column_sums import ColumnSums
from nn.launch.elementwise import activation_backward, bias_activation
from nn.launch.gemm import gemm
from nn.launch.gemm.product import Product
from nn.launch.gemm.versions import GEMM_VERSIONS
from nn.launch.head import Head
from nn.launch.kernels import Kernels
from nn.launch.update import Segment, Update, UpdateArrays
from nn.optimisers import Adam, Sgd
from pyrt.arrays import DeviceArray
from pyrt.driver.emulated import EmulatedDriver
from pyrt.kernels import KernelLibrary, Launch
from tests.pyrt.driver.emulated.conftest import Bench

SEEDS = [None, 0, 1, 2]

ARRIVALS = """
// Who comes first, second, ... to each of two places with a barrier between them.
extern "C" __global__ void test(int *count, int *threads, int *blocks)
{
    threads[atomicAdd(&count[0], 1)] = threadIdx.x;
    __syncthreads();
    threads[atomicAdd(&count[0], 1)] = threadIdx.x;
    if (threadIdx.x == 0)
        blocks[atomicAdd(&count[1], 1)] = blockIdx.x;
}
"""


def arrivals(seed: int | None, grid: int) -> tuple[list[int], list[int]]:
    driver = EmulatedDriver(order_seed=seed)
    try:
        kernel = Bench(driver).kernel(ARRIVALS)
        _, threads, blocks = kernel(
            grid, 40, np.zeros(2, "i4"), np.zeros(80 * grid, "i4"), np.zeros(grid, "i4")
        )
    finally:
        driver.close()
    return threads.tolist(), blocks.tolist()


def test_threads_come_in_an_order_that_the_seed_decides() -> None:
    orders = [arrivals(seed, 1)[0] for seed in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    for order in orders:
        first, second = order[:40], order[40:]
        assert sorted(first) == sorted(second) == list(range(40))
        assert first != second


def test_blocks_come_in_another_order() -> None:
    for seed in (0, 1):
        _, blocks = arrivals(seed, 60)
        assert sorted(blocks) == list(range(60))
        moved = np.abs(np.array(blocks) - np.arange(60))
        assert moved.mean() > 5  # workers that run side by side move a block by a place or two


def test_a_stream_falls_behind_another() -> None:
    """Two streams that have the same to do at the same time don't always finish in the same order."""
    driver = EmulatedDriver(order_seed=0)
    first, second = driver.create_stream(), driver.create_stream()
    ahead = []
    for _ in range(20):
        events = [driver.create_event(timing=True) for _ in range(2)]
        for event, stream in zip(events, (first, second), strict=True):
            driver.record(event, stream)
        driver.synchronize()
        ahead.append(driver.elapsed(*events) > 0)
    driver.close()
    assert 0 < sum(ahead) < 20


def bits(
    seed: int | None, make: Callable[[Kernels, Callable[..., DeviceArray]], list[Launch]]
) -> list[bytes]:
    """All arrays that ``make`` has asked for, after the launches that it returns."""
    driver = EmulatedDriver(order_seed=seed)
    rng = np.random.default_rng(0)
    arrays: list[DeviceArray] = []

    def array(*shape: int) -> DeviceArray:
        arrays.append(DeviceArray.from_host(driver, rng.normal(0, 1, shape).astype("f4")))
        return arrays[-1]

    stream = driver.create_stream()
    for launch in make(Kernels(KernelLibrary(driver), "float32"), array):
        launch(stream)
    driver.synchronize()
    found = [array.to_host().tobytes() for array in arrays]
    driver.close()
    return found


@pytest.mark.parametrize("version", GEMM_VERSIONS)
def test_products_have_the_same_bits_in_every_order(version: str) -> None:
    def make(kernels: Kernels, array: Callable[..., DeviceArray]) -> list[Launch]:
        kernels.gemm_version = version
        product = Product(array(70, 66), array(70, 40), array(66, 40), transpose_b=True)
        return [gemm(kernels, product)]

    results = [bits(seed, make) for seed in SEEDS]
    assert all(result == results[0] for result in results)


def test_other_kernels_have_the_same_bits_in_every_order() -> None:
    def make(kernels: Kernels, array: Callable[..., DeviceArray]) -> list[Launch]:
        Z, A, loss, sums = array(70, 10), array(70, 10), array(70), array(10)
        labels = DeviceArray.from_host(Z.driver, np.arange(70, dtype=np.int32) % 10)
        sgd = UpdateArrays(Sgd(0.1, 0.9, 0.01), array(10), sums, {"v": array(10)}, None)
        clock = DeviceArray.from_host(Z.driver, np.array(Adam().clock_at(0)))
        adam = UpdateArrays(Adam(), array(10), sums, {"m": array(10), "v": array(10)}, clock)
        return [
            bias_activation(kernels, array(70, 10), array(10), A, "tanh"),
            Head("softmax", Z, array(10), labels, loss, 0.1).on_device(kernels),
            activation_backward(kernels, A, Z, Z, "tanh"),
            ColumnSums(Z, sums).on_device(kernels),
            *(Update(arrays, [Segment(0, 10, 5)]).on_device(kernels) for arrays in (sgd, adam)),
        ]

    results = [bits(seed, make) for seed in SEEDS]
    assert all(result == results[0] for result in results)


def test_the_fused_classifier_has_the_same_bits_in_every_order() -> None:
    """Its blocks leave partial sums, its warps share rows, its threads meet in groups."""

    def make(kernels: Kernels, array: Callable[..., DeviceArray]) -> list[Launch]:
        A, partials = array(45, 140), array(*fused_classifier_partials(45, 140, 10, "float32", 2))
        labels = DeviceArray.from_host(A.driver, np.arange(45, dtype=np.int32) % 10)
        inputs = (A, array(10, 140), array(10), labels)
        outputs = (array(45, 140), array(10, 140), array(10), array(140), array(1))
        work = FusedClassifier("softmax", "tanh", *inputs, *outputs, 0.1)
        return [work.bind_gradient(kernels, partials), work.bind_sums(kernels, partials)]

    results = [bits(seed, make) for seed in SEEDS]
    assert all(result == results[0] for result in results)
