"""Fusing for tensor cores: fewer launches, the same numbers; what does not fit stays as it was."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from nn.input.source import Ready
from nn.launch.gemm.components import Components
from nn.launch.gemm.layer import LayerProduct
from nn.launch.gemm.product import Product
from nn.launch.gemm.versions import TENSOR_ARCHITECTURES
from nn.launch.gemm.wgmma import ComponentProduct
from nn.launch.head import Head
from nn.launch.kernels import Kernels
from nn.program import fuse as rewriting
from nn.program import operations
from nn.program.fuse_classifier import match_classifier
from nn.program.operations import BACKWARD, FORWARD, BucketReady, Operation
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from tests import few
from tests.nn.small_runs import using
from train import train


@pytest.fixture(scope="module")
def kernels(driver, library):
    if driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    return Kernels(library, np.float32, "wgmma")


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture(scope="module")
def stream(driver):
    return driver.create_stream()


def fuse(items, kernels):
    """With components of its own."""
    driver = kernels.driver if kernels is not None else None
    return rewriting.fuse(items, kernels, partial(Components.empty, driver))


def gemm(name, part, *arrays, **transposed):
    return operations.gemm(name, part, Product(*arrays, **transposed))


def names(items):
    return [item.name if isinstance(item, Operation) else "sum" for item in items]


class Arrays:
    """Arrays of a 50-70-40-10 network and 45 samples."""

    def __init__(self, driver, rng, pixel=np.uint8):
        def array(*shape):
            return DeviceArray.from_host(driver, rng.standard_normal(shape).astype("f4"))

        pixels = rng.integers(0, 256, (45, 50)).astype(pixel)
        self.images = DeviceArray.from_host(driver, pixels)
        self.source = Ready(self.images, DeviceArray.from_host(driver, np.zeros(45, np.int32)))
        self.X, self.A1, self.A2, self.Z = array(45, 50), array(45, 70), array(45, 40), array(45, 10)
        self.W1, self.W2, self.W3 = array(70, 50), array(40, 70), array(10, 40)
        self.b1, self.db1, self.dW1, self.dW2 = array(70), array(70), array(70, 50), array(40, 70)
        self.dZ1, self.dZ2 = array(45, 70), array(45, 40)

    def items(self):
        return [
            operations.take_batch(self.source, self.X, 255.0),
            gemm("Z1", FORWARD, self.A1, self.X, self.W1, transpose_b=True),
            operations.bias_activation("A1", self.A1, self.b1, "sigmoid"),
            gemm("Z2", FORWARD, self.A2, self.A1, self.W2, transpose_b=True),
            gemm("dA1", BACKWARD, self.dZ1, self.dZ2, self.W2),
            operations.activation_backward("dZ1", self.A1, self.dZ1, "sigmoid"),
            gemm("dW2", BACKWARD, self.dW2, self.dZ2, self.A1, transpose_a=True),
            BucketReady(0),
            operations.column_sums("db1", BACKWARD, self.dZ1, self.db1),
            gemm("dW1", BACKWARD, self.dW1, self.dZ1, self.X, transpose_a=True),
        ]

    def results(self):
        return [array.to_host() for array in (self.A2, self.db1, self.dW1, self.dW2)]


class End:
    """The end of a 50-70-10 network and 45 samples."""

    def __init__(self, driver, rng):
        def array(*shape):
            return DeviceArray.from_host(driver, rng.standard_normal(shape).astype("f4"))

        self.A, self.W, self.b, self.Z, self.losses = (
            array(*shape) for shape in ((45, 70), (10, 70), (10,), (45, 10), (45,))
        )
        self.dA, self.dW, self.db, self.db_below, self.loss = (
            array(*shape) for shape in ((45, 70), (10, 70), (10,), (70,), (1,))
        )
        self.X, self.dW1 = array(45, 50), array(70, 50)
        self.labels = DeviceArray.from_host(driver, rng.integers(0, 10, 45).astype(np.int32))

    def items(self):
        return [
            gemm("Z2", FORWARD, self.Z, self.A, self.W, transpose_b=True),
            operations.head(Head("softmax", self.Z, self.b, self.labels, self.losses, 1 / 45)),
            operations.column_sums("loss", FORWARD, self.losses.reshape(45, 1), self.loss),
            operations.column_sums("db2", BACKWARD, self.Z, self.db),
            gemm("dA1", BACKWARD, self.dA, self.Z, self.W),
            operations.activation_backward("dZ1", self.A, self.dA, "sigmoid"),
            gemm("dW2", BACKWARD, self.dW, self.Z, self.A, transpose_a=True),
            BucketReady(0),
            operations.column_sums("db1", BACKWARD, self.dA, self.db_below),
            gemm("dW1", BACKWARD, self.dW1, self.dA, self.X, transpose_a=True),
        ]

    def results(self):
        return [array.to_host() for array in (self.dW, self.db, self.db_below, self.loss, self.dW1)]


def run_items(items, kernels, stream):
    for item in items:
        if isinstance(item, Operation):
            item.on_device(kernels)(stream)
    kernels.driver.synchronize()


def test_matrices_are_split_once_where_no_product_leaves_components(driver, kernels, rng):
    arrays = Arrays(driver, rng)
    fused = fuse(arrays.items(), kernels)
    assert names(fused) == [
        "scale pixels",
        *("split operands", "Z1"),  # W1; bias and activation are in Z1, which leaves components
        *("split operands", "Z2"),  # W2
        *("split operands", "dA1"),  # dZ2; f' and db1 are in dA1, which leaves components
        *("dW2", "sum", "dW1"),
    ]
    splits = [[array.shape for array in item.reads] for item in fused if names([item]) == ["split operands"]]
    assert splits == [[(70, 50)], [(40, 70)], [(45, 40)]]


def test_costs_are_those_of_components(driver, kernels, rng):
    """Bytes are of the components that move, without what pads them; flops of bf16, of their products."""
    fused = {
        item.name: item for item in fuse(Arrays(driver, rng).items(), kernels) if isinstance(item, Operation)
    }
    X, W1, A1, W2, A2 = 45 * 50, 70 * 50, 45 * 70, 40 * 70, 45 * 40
    assert fused["scale pixels"].bytes == X * (1 + 2)
    assert fused["split operands"].bytes == A2 * (4 + 3 * 2)  # the last one is of dZ2
    assert fused["Z1"].bytes == X * 2 + W1 * 3 * 2 + 70 * 4 + A1 * 3 * 2
    assert fused["Z1"].flops == 2 * 45 * 70 * 50 + (2 + 3) * A1
    assert fused["Z1"].tensor_flops == 3 * 2 * 45 * 70 * 50
    assert fused["dA1"].bytes == (A2 + W2) * 3 * 2 + 2 * A1 * 3 * 2 + 70 * 4
    assert fused["dA1"].flops == 2 * 45 * 70 * 40 + (4 + 3) * A1
    assert fused["dA1"].tensor_flops == 6 * 2 * 45 * 70 * 40
    assert fused["dW1"].tensor_flops == 3 * 2 * 45 * 70 * 50


@pytest.mark.parametrize("reader", few(["dZ1"], of=["A1", "dZ1", "db1"]))
def test_what_others_read_is_written_as_it_is(driver, kernels, stream, reader):
    """Float32, beside components."""
    arrays = Arrays(driver, np.random.default_rng(3))
    items = arrays.items()
    array = {"A1": arrays.A1, "dZ1": arrays.dZ1, "db1": arrays.db1.reshape(1, 70)}[reader]
    sums = DeviceArray.from_host(driver, np.zeros(70, np.float32))
    items.insert(4 if reader == "A1" else 9, operations.column_sums("again", BACKWARD, array, sums))
    run_items(fuse(items, kernels), kernels, stream)
    rows = array.to_host().astype("f8").sum(axis=0)
    np.testing.assert_allclose(sums.to_host(), rows, rtol=0, atol=2e-6 * np.abs(rows).max() + 1e-6)
    again = Arrays(driver, np.random.default_rng(3))
    run_items(fuse(again.items(), kernels), kernels, stream)
    for one, other in zip(arrays.results(), again.results(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_follows_no_activation_stays_apart(driver, kernels, rng):
    arrays = Arrays(driver, rng)
    for other in (
        operations.zeros("dZ1", BACKWARD, arrays.b1),
        operations.activation_backward("dZ1", arrays.A1, arrays.dZ1, "identity"),
        operations.activation_backward("dZ1", arrays.Z, arrays.Z, "tanh"),
    ):
        items = arrays.items()
        items[5] = other
        assert {"dZ1", "db1"} <= set(names(fuse(items, kernels)))


def test_sums_that_are_used_before_their_place_stay_there(driver, kernels, rng):
    arrays = Arrays(driver, rng)
    items = arrays.items()
    items.insert(7, operations.zeros("zeros", BACKWARD, arrays.db1))
    assert [name for name in names(fuse(items, kernels)) if name in ("dA1", "dZ1", "db1")] == ["dA1", "db1"]


def test_a_narrow_end_costs_what_its_parts_compute_and_what_is_kept(driver, kernels):
    items = End(driver, np.random.default_rng(5)).items()
    head, sums = fuse(items, kernels)[:2]
    assert head.flops == sum(item.flops for item in items[:-1] if isinstance(item, Operation))
    A, dZ_components, W, dW = 45 * 70 * 4, 45 * 70 * 3 * 2, 10 * 70 * 4, 10 * 70 * 4
    (partials,) = sums.reads
    assert head.bytes == A + W + 10 * 4 + 45 * 4 + dZ_components + partials.nbytes
    assert sums.bytes == partials.nbytes + dW + (10 + 70 + 1) * 4


def test_products_start_beside_what_they_do_not_read(driver, kernels, rng, monkeypatch):
    early = {}

    def on_device(work, kernels):
        early[work.product.D.pointer] = work.starts_early

    monkeypatch.setattr(ComponentProduct, "on_device", on_device)
    monkeypatch.setattr(LayerProduct, "on_device", on_device)
    arrays, end = Arrays(driver, rng), End(driver, rng)
    again = gemm("dW2", BACKWARD, arrays.dW2, arrays.dZ2, arrays.A1, transpose_a=True)
    X_components = [(end.X, Components.empty(driver, 3, *end.X.shape))]
    for items, known, D, expected in (
        (arrays.items(), [], arrays.dW2, True),  # behind dA1
        (arrays.items(), [], arrays.dW1, False),  # behind dW2, which starts early
        (arrays.items()[:5], [], arrays.dZ1, False),  # behind the split of dZ2
        ([*arrays.items()[:7], again], [], arrays.dW2, False),  # behind one that starts early
        (end.items(), [], end.dW1, False),  # behind the split of X
        (end.items(), X_components, end.dW1, True),  # behind the sums of the blocks
    ):
        for item in rewriting.fuse(items, kernels, partial(Components.empty, driver), known):
            if isinstance(item, Operation):
                item.on_device(kernels)
                if isinstance(item.work, ComponentProduct):
                    assert item.starts_early is item.work.starts_early
        assert early[D.pointer] is expected


def test_the_numbers_are_the_same(driver, kernels, library, stream, rng):
    results = []
    for how in (Kernels(library, np.float32, "tiled"), kernels):
        arrays = Arrays(driver, np.random.default_rng(3))
        run_items(fuse(arrays.items(), how), how, stream)
        results.append(arrays.results())
    for plain, fused in zip(*results, strict=True):
        np.testing.assert_allclose(fused, plain, rtol=0, atol=2e-6 * np.abs(plain).max())


def test_a_narrow_end_is_one_operation(driver, kernels, library, stream):
    results = []
    for how in (Kernels(library, np.float32, "tiled"), kernels):
        end = End(driver, np.random.default_rng(5))
        fused = fuse(end.items(), how)
        run_items(fused, how, stream)
        results.append(end.results())
    # Its dZ comes as components, so only X is split for dW1.
    assert names(fused) == ["Z2 to db1", "sums of the blocks", "sum", "split operands", "dW1"]
    assert [array.shape for array in fused[3].reads] == [(45, 50)]
    for plain, one in zip(*results, strict=True):
        np.testing.assert_allclose(one, plain, rtol=0, atol=2e-6 * np.abs(plain).max())


def test_what_a_narrow_end_reads_is_left_as_it_is(driver, kernels, rng):
    """Float32 alone, though its products and f' could read components."""
    end = End(driver, rng)
    below = operations.bias_activation("A", end.A, end.db_below, "sigmoid")
    hidden = gemm("Z1", FORWARD, end.A, end.X, end.dW1, transpose_b=True)
    fused = fuse([hidden, below, *end.items()], kernels)
    assert names(fused)[:3] == ["split operands", "Z1", "Z2 to db1"]
    assert fused[1].writes == (end.A,)


def test_a_narrow_end_leaves_dZ_to_other_readers(driver, kernels, stream):
    end = End(driver, np.random.default_rng(6))
    reader = operations.column_sums("again", BACKWARD, end.dA, end.db_below)
    run_items(fuse([*end.items(), reader], kernels), kernels, stream)
    first = end.db_below.to_host()
    run_items(fuse(end.items(), kernels), kernels, stream)
    np.testing.assert_allclose(first, end.db_below.to_host(), rtol=1e-4, atol=1e-6)


def test_numpy_does_what_the_fused_operations_say(kernels):
    """From components, as the kernels do: where nothing is kept of the matrices themselves."""
    for made in (Arrays, End):
        results = []
        for how in (None, kernels):
            driver = CpuDriver()
            there = made(driver, np.random.default_rng(4))
            for item in rewriting.fuse(there.items(), how, partial(Components.empty, driver)):
                if isinstance(item, Operation):
                    item.in_numpy()()
            results.append(there.results())
        for plain, fused in zip(*results, strict=True):
            np.testing.assert_allclose(fused, plain, rtol=0, atol=2e-6 * np.abs(plain).max())


@pytest.mark.parametrize("missing", range(9))
def test_what_is_no_narrow_end_stays_apart(driver, kernels, missing):
    items = End(driver, np.random.default_rng(7)).items()
    del items[missing]
    assert match_classifier(items) is None
    assert all(" to " not in name for name in names(fuse(items, kernels)))


def test_an_end_of_other_arrays_stays_apart(driver, kernels):
    one, other = (End(driver, np.random.default_rng(8)).items() for _ in range(2))
    assert match_classifier(one) is not None
    for index in (i for i in range(9) if i != 7):
        assert match_classifier([*one[:index], other[index], *one[index + 1 :]]) is None


def test_panels_read_columns_of_the_same_components(driver, kernels, library, stream, monkeypatch):
    """As deeper layers have them, whose weights leave in panels."""
    monkeypatch.setattr("nn.launch.gemm.versions.NARROW", 8)
    results = []
    for how in (Kernels(library, np.float32, "tiled"), kernels):
        arrays = Arrays(driver, np.random.default_rng(9))
        items = [
            gemm("dA1", BACKWARD, arrays.dZ1, arrays.dZ2, arrays.W2),
            *(
                gemm(
                    "dW2",
                    BACKWARD,
                    arrays.dW2.rows(start, stop),
                    arrays.dZ2.columns(start, stop),
                    arrays.A1,
                    transpose_a=True,
                )
                for start, stop in ((0, 16), (16, 40))
            ),
        ]
        fused = fuse(items, how)
        run_items(fused, how, stream)
        results.append(arrays.dW2.to_host())
    assert names(fused) == ["split operands", "dA1", "split operands", "dW2", "dW2"]
    assert [array.shape for array in fused[2].reads] == [(45, 70)]  # A1 alone
    assert [array.shape for array in fused[4].reads] == [(3 * 45, 24), (3 * 45, 70)]
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=2e-6 * np.abs(results[0]).max())


def test_pixels_that_are_not_exact_are_scaled_and_split(driver, kernels, rng):
    arrays = Arrays(driver, rng, np.float32)
    assert names(fuse(arrays.items(), kernels))[:3] == ["scale pixels", "split operands", "Z1"]
    (split, *_) = [item for item in fuse(arrays.items(), kernels) if names([item]) == ["split operands"]]
    assert [array.shape for array in split.reads] == [(45, 50), (70, 50)]


def test_pixels_that_others_read_too_are_scaled(driver, kernels, rng):
    arrays = Arrays(driver, rng)
    sums = operations.column_sums("sums", BACKWARD, arrays.X, arrays.b1.rows(0, 50))
    fused = fuse([*arrays.items(), sums], kernels)
    (split, *_) = [item for item in fused if names([item]) == ["split operands"]]
    assert [array.shape for array in split.reads] == [(45, 50), (70, 50)]


def test_narrow_products_read_arrays_as_they_are(driver, kernels, library, stream, monkeypatch):
    """With their bias and activation, and the sums of what they read, as where nothing has components."""
    monkeypatch.setattr("nn.launch.gemm.versions.NARROW", 70)
    results = []
    for how in (Kernels(library, np.float32, "tiled"), kernels):
        arrays = Arrays(driver, np.random.default_rng(3))
        fused = fuse(arrays.items(), how)
        run_items(fused, how, stream)
        results.append(arrays.results())
    assert names(fused) == ["scale pixels", "Z1", "Z2", "dA1", "dZ1", "dW2", "sum", "dW1"]
    for plain, one in zip(*results, strict=True):
        np.testing.assert_allclose(one, plain, rtol=0, atol=4e-6 * np.abs(plain).max())


def test_thin_products_stay_as_they_are(driver, kernels, rng):
    arrays = Arrays(driver, rng)
    thin = gemm("dA2", BACKWARD, arrays.dZ2, arrays.Z, arrays.W3)
    assert fuse([thin], kernels) == [thin]


def test_plain_products_and_numpy_are_left_alone(driver, library, rng):
    items = Arrays(driver, rng).items()
    assert fuse(items, Kernels(library, np.float32, "tiled")) == items
    assert fuse(items, None) == items


@pytest.mark.parametrize("hidden", few([(48, 40)], of=[(40,), (48, 40)]))
@pytest.mark.parametrize("math", few(["float32"], of=["float32", "tf32", "bf16"]))
def test_it_trains_the_network_of_the_reference(driver, hidden, math):
    if driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    options = using(device=driver.name, gemm="wgmma", math=math, hidden=hidden, check=True, samples=60)
    assert train(options).passed
