"""nn/train/check_each.py: a right run passes, whatever runs it; an operation that is off is named."""

import dataclasses

import numpy as np
import pytest

from nn.app.options import Options
from nn.launch.elementwise import BiasActivation
from nn.launch.gemm.product import Product
from nn.launch.gemm.versions import runs_gemm
from nn.launch.update import Update
from nn.train.check_each import TOLERANCES, OperationIsOff, _difference, _merged_spans
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from tests import few, standing_still
from train import train

SMALL = Options(
    data="synthetic:28x28x1:10:330",  # whose 33 test images the emulated device is done with sooner
    hidden=(40, 33),
    batch=35,
    samples=70,
    epochs=1,
    val_fraction=0.0,
    check_each=2,
)


def using(driver, **changes):
    return dataclasses.replace(SMALL, device=driver.name, share_gpus=True, **changes)


PRODUCTS = [
    {"gemm": "tiled", "dtype": "float64"},
    {"gemm": "mma", "optimiser": "adam"},
    {"gemm": "mma", "math": "tf32", "momentum": 0.9},
    {"gemm": "wgmma", "hidden": (72,), "batch": 40},
    {"gemm": "wgmma", "hidden": (256,), "batch": 40, "math": "bf16"},  # nothing writes A1 as float32
]


@pytest.mark.parametrize("changes", few([PRODUCTS[4]], of=PRODUCTS), ids=str)
def test_a_right_run_passes(driver, changes):
    if not runs_gemm(changes["gemm"], driver.architecture):
        pytest.skip("needs other tensor cores")
    train(using(driver, **changes))


WAYS = [{"exchange": "peer"}, {"exchange": "host"}, {"plan": "model"}]


@pytest.mark.parallel([2])
@pytest.mark.parametrize("changes", few(WAYS[2:], of=WAYS), ids=str)
def test_a_right_run_of_several_ranks_passes(driver, changes):
    standing_still.allow()
    train(using(driver, optimiser="adam", **changes))


OFF = [(BiasActivation, "bias and activation 1"), (Product, "forward GEMM 1"), (Update, "step")]


@pytest.mark.parametrize(
    ("work", "name"),
    few(OFF[1:], of=OFF),
)
def test_an_operation_that_is_off_is_named(driver, monkeypatch, work, name):
    """By a hundredth of its results, in NumPy: which of both is wrong nobody can tell."""
    right = work.in_numpy

    def wrong(self):
        compute = right(self)

        def off():
            compute()
            for array in self.results:
                if array.dtype.kind == "f":
                    array.host_view()[...] *= 1.01

        return off

    monkeypatch.setattr(work, "in_numpy", wrong)
    with pytest.raises(OperationIsOff, match=rf"--check-each: ({name}) differs from NumPy by more than "):
        train(using(driver, gemm="naive", profile=True))


def test_arrays_that_overlap_are_copied_at_once_and_those_that_touch_apart():
    """CUDA refuses a copy from two allocations, which may lie side by side."""
    whole = DeviceArray.empty(CpuDriver(), (10, 4), "float32")
    start = whole.pointer
    first, second, last = (whole.rows(*rows) for rows in ((0, 4), (4, 8), (7, 10)))
    assert _merged_spans(iter([first, second, last])) == [(start, start + 64), (start + 64, start + 160)]


class TestDifference:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_it_is_relative_to_the_largest_change(self, dtype):
        rng = np.random.default_rng(0)
        before, change = rng.standard_normal((2, 30)).astype(dtype)
        expected = (before + 0.1 * change).astype(dtype)
        found = expected.copy()
        found[7] += 1e-2
        largest = np.abs(expected.astype("f8") - before).max()
        assert _difference(found, expected, before) == pytest.approx(1e-2 / largest, rel=1e-3)
        assert _difference(expected, expected, before) == 0

    def test_a_rounding_of_a_large_number_that_changes_little_is_none(self):
        before = np.array([1e4, 1.0], np.float32)
        expected = before + np.float32(1e-3)
        found = expected.copy()
        found[0] = np.nextafter(found[0], np.float32(np.inf))
        assert _difference(found, expected, before) <= TOLERANCES["float32"]

    def test_numbers_that_are_none_are_the_same_only_as_such(self):
        nan = np.array([np.nan, 1.0])
        assert _difference(nan, nan, np.zeros(2)) == 0
        for found, expected in ((nan, np.ones(2)), (np.ones(2), nan)):
            assert _difference(found, expected, np.zeros(2)) == np.inf
