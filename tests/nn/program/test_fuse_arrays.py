"""Fusing for tensor cores that read arrays as they are: fewer launches, the same numbers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from nn.launch.conv.convolution import Convolution
from nn.launch.gemm.components import Components
from nn.launch.gemm.versions import runs_gemm
from nn.launch.kernels import Kernels
from nn.model.network import Network
from nn.model.window import Window
from nn.program import operations
from nn.program.fuse import fuse
from nn.program.operations import BACKWARD, FORWARD, BucketReady, Operation
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from tests import few
from tests.nn.program.test_fuse import Arrays, End, gemm, names, run_items
from tests.nn.program.test_step import Model
from tests.nn.small_runs import using
from train import train


@pytest.fixture(scope="module")
def kernels(driver, library):
    if not runs_gemm("mma", driver.architecture):
        pytest.skip("needs the tensor cores of sm_80")
    return Kernels(library, np.float32, "mma")


@pytest.fixture(scope="module")
def stream(driver):
    return driver.create_stream()


class Step(Arrays):
    """Two hidden layers; the weights of the second leave in two panels, its biases with the last."""

    def __init__(self, driver, seed=0):
        super().__init__(driver, np.random.default_rng(seed))
        self.gradients = self.b1.rows(0, 40)  # db2

    def panels(self):
        return [
            gemm(
                "dW2",
                BACKWARD,
                self.dW2.rows(start, stop),
                self.dZ2.columns(start, stop),
                self.A1,
                transpose_a=True,
            )
            for start, stop in ((0, 16), (16, 40))
        ]

    def sums(self):
        return operations.column_sums("db2", BACKWARD, self.dZ2, self.gradients)

    def backward(self):
        """With the buckets as a step has them: the first holds the weights of its panel alone."""
        first, last = self.panels()
        return [
            self.sums(),
            gemm("dA1", BACKWARD, self.dZ1, self.dZ2, self.W2),
            operations.activation_backward("dZ1", self.A1, self.dZ1, "sigmoid"),
            first,
            BucketReady(0, leaves=self.dW2.rows(0, 16)),
            last,
            BucketReady(1, leaves=self.gradients),
        ]

    def results(self):
        return [array.to_host() for array in (self.A1, self.dZ1, self.dW2, self.gradients)]


def fused(items, kernels):
    return fuse(items, kernels, partial(Components.empty, kernels.driver))


def assert_same_numbers(results):
    """Up to roundings of sums that are some ten times as large as their sigmoid."""
    for plain, other in zip(*results, strict=True):
        np.testing.assert_allclose(other, plain, rtol=0, atol=4e-6 * np.abs(plain).max())


def test_bias_and_activation_go_into_the_product_and_nothing_is_split(driver, kernels, library, stream):
    results = []
    for how in (Kernels(library, np.float32, "tiled"), kernels):
        arrays = Arrays(driver, np.random.default_rng(3))
        items = fused(arrays.items(), how)
        run_items(items, how, stream)
        results.append(arrays.results())
    assert names(items) == ["scale pixels", "Z1", "Z2", "dA1", "dZ1", "dW2", "sum", "dW1"]
    assert [array.shape for array in items[1].reads] == [(45, 50), (70, 50), (70,)]
    assert_same_numbers(results)


@pytest.mark.parametrize(("channels", "kernel"), [(3, "sliding_forward"), (12, "gather_64x64")])
def test_bias_and_activation_go_into_the_convolution(driver, kernels, library, stream, channels, kernel):
    window = Window.over("conv", (5, 6, channels), (3, 3), 1, 1)
    results = []
    for gemm_version, conv in (("tiled", "direct"), ("mma", "implicit")):
        how = Kernels(library, np.float32, gemm_version, conv=conv)
        rng = np.random.default_rng(4)
        sizes = (2, 30 * channels), (2, 30 * 16), (16, window.pixels), (16,)
        A, Z, W, b = (DeviceArray.from_host(driver, rng.normal(0, 0.3, size).astype("f4")) for size in sizes)
        layer = [
            Operation("Z", FORWARD, Convolution(A, Z, W, window)),
            operations.bias_activation("A", Z.reshape(60, 16), b, "tanh"),
        ]
        items = fused(layer, how)
        run_items(items, how, stream)
        results.append([Z.to_host()])
    assert names(items) == ["Z"] and items[0].on_device(how).kernels == (kernel,)
    assert items[0].reads == (A, W, b)
    assert_same_numbers(results)


def test_a_narrow_end_is_one_operation_and_leaves_dZ(driver, kernels, library, stream):
    results = []
    for how in (Kernels(library, np.float32, "tiled"), kernels):
        end = End(driver, np.random.default_rng(5))
        items = fused(end.items(), how)
        run_items(items, how, stream)
        results.append([*end.results(), end.dA.to_host()])
    assert names(items) == ["Z2 to db1", "sums of the blocks", "sum", "dW1"]
    assert_same_numbers(results)


def test_products_make_the_sums_of_what_they_read_in_panels(driver, kernels, library, stream):
    results = []
    for how in (Kernels(library, np.float32, "tiled"), kernels):
        step = Step(driver)
        items = fused(step.backward(), how)
        run_items(items, how, stream)
        results.append(step.results())
    assert names(items) == ["dA1", "dZ1", "dW2", "sum", "dW2", "sum"]
    assert [array.shape for item in (items[2], items[4]) for array in item.writes] == [
        *((16, 70), (16,)),
        *((24, 70), (24,)),
    ]
    assert_same_numbers(results)


def test_numpy_does_what_the_fused_operations_say(kernels):
    results = []
    for how in (None, kernels):
        step = Step(CpuDriver())
        for item in fuse(step.backward(), how, partial(Components.empty, CpuDriver())):
            if not isinstance(item, BucketReady):
                item.in_numpy()()
        results.append(step.results())
    assert_same_numbers(results)


def stays(items, kernels, name="db2"):
    return name in names(fused(items, kernels))


def test_sums_that_somebody_uses_before_they_could_be_there_stay(driver, kernels):
    step = Step(driver)
    sums, *rest = step.backward()
    assert not stays([sums, *rest], kernels)
    reader = operations.bias_activation("reader", step.A2, step.gradients, "tanh")
    writer = operations.column_sums("writer", BACKWARD, step.Z.columns(0, 5), step.gradients.rows(20, 25))
    changer = operations.activation_backward("changer", step.A2, step.dZ2, "tanh")
    early = BucketReady(2, leaves=step.gradients.rows(39, 40))
    unknown = BucketReady(2)
    other = BucketReady(2, leaves=step.dW1)
    for place in range(len(rest) - 1):  # in front of the last product
        for what in (reader, writer, changer, early, unknown):
            assert stays([sums, *rest[:place], what, *rest[place:]], kernels)
        assert not stays([sums, *rest[:place], other, *rest[place:]], kernels)
    for what in (reader, writer, changer, early, unknown):
        assert not stays([sums, *rest[:-1], what], kernels)


def test_sums_of_what_no_product_reads_whole_stay(driver, kernels):
    step = Step(driver)
    first, last = step.panels()
    plain = gemm("product", BACKWARD, step.dZ1, step.dZ2, step.W2)
    for products in ([first], [last], [last, first], [plain], []):
        assert stays([step.sums(), *products], kernels)
    assert not stays([step.sums(), first, last], kernels)
    assert not stays([step.sums(), last, first, last], kernels)


def test_thin_products_make_no_sums(driver, kernels):
    """Of 32 samples or fewer: the kernel that takes those has no sums."""
    step = Step(driver)
    dZ, A = step.dZ2.rows(0, 32), step.A1.rows(0, 32)
    product = gemm("dW2", BACKWARD, step.dW2, dZ, A, transpose_a=True)
    sums = operations.column_sums("db2", BACKWARD, dZ, step.gradients)
    assert stays([sums, product], kernels)
    thin = gemm("Z", FORWARD, step.A2, step.Z, step.W3.reshape(40, 10), transpose_b=True)
    bias = operations.bias_activation("A", step.A2, step.gradients, "tanh")
    assert names(fused([thin, bias], kernels)) == ["Z", "A"]


def test_an_activation_goes_into_no_other_product(driver, kernels):
    """There are kernels with an activation for A B' alone; and it must be of what the product has made."""
    step = Step(driver)
    product = gemm("Z", FORWARD, step.dZ1, step.dZ2, step.W2)
    assert len(fused([product, operations.bias_activation("A", step.dZ1, step.b1, "tanh")], kernels)) == 2
    product = gemm("Z", FORWARD, step.A1, step.X, step.W1, transpose_b=True)
    assert len(fused([product, operations.bias_activation("A", step.dZ1, step.b1, "tanh")], kernels)) == 2


def test_a_bucket_leaves_when_all_of_its_gradients_are_there(kernels, monkeypatch):
    """Biases made by the products of several panels, too: a gradient is NaN until it is made."""
    monkeypatch.setattr("nn.parallel.buckets.PANEL_BYTES", 700)
    model = Model(
        Network.dense((31, 17, 19, 26, 10), "sigmoid", "softmax"), CpuDriver(), None, np.float32, 40
    )
    model.fill_slot(0, 40)
    gradients = model.gradients.flat.host_view()
    gradients[:] = np.nan
    items = fuse(model.items(40, 40), kernels, partial(Components.empty, model.driver))
    assert not any(name.startswith("bias gradient") for name in names(items))
    left = {}
    for item in items:
        if isinstance(item, BucketReady):
            left[item.bucket] = gradients[slice(*model.panels[item.bucket].bucket)].copy()
        else:
            item.in_numpy()()
    assert len(left) == len(model.panels) > 4
    for bucket, values in left.items():
        np.testing.assert_array_equal(values, gradients[slice(*model.panels[bucket].bucket)])
    assert all(np.isfinite(array).all() for array in model.gradients.to_host().values())


TRAINED = [((48, 40), "float32"), ((40,), "tf32")]


@pytest.mark.parametrize(("hidden", "math"), few(TRAINED[:1], of=TRAINED))
def test_it_trains_the_network_of_the_reference(driver, kernels, monkeypatch, hidden, math):
    """Of the weights of 48 x 784 and 40 x 48 the first leave in panels. The last batch is a thin one."""
    monkeypatch.setattr("nn.parallel.buckets.PANEL_BYTES", 48 * 784 * 2)
    options = using(device=driver.name, gemm="mma", math=math, hidden=hidden, batch=45, samples=100, epochs=1)
    assert train(using(options, check=True)).passed


def test_math_of_fewer_bits_is_an_error(driver, kernels):
    with pytest.raises(UserError, match=r"--math bf16: needs --gemm wgmma, and .* takes mma for --gemm mma"):
        train(using(device=driver.name, gemm="mma", math="bf16"))
