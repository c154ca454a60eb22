"""nn/program/dropout.py: a step with dropout, as it is listed and as it is fused for tensor cores."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from nn.launch.gemm.components import Components
from nn.launch.kernels import Kernels
from nn.model import reference
from nn.model.net_text import make_network
from nn.program.dropout import Draws, count_step
from nn.program.fuse import fuse
from nn.program.operations import BucketReady
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KernelLibrary
from tests.nn.program.test_step import Model

NET = "dropout0.1,dense128,relu,dropout0.5,dense64,tanh,dropout0.2,dropout0.3,dense10"
GPU = NullDriver(DeviceProperties("a GPU", "sm_90a", 132, 232448), "cuda")
ROWS, SEED = 40, 7


class Step:
    """A step in NumPy, on arrays of the host."""

    def __init__(self, step):
        driver = CpuDriver()
        self.model = Model(make_network(NET, (8, 8), 10, "softmax"), driver, None, "float32", ROWS)
        self.count = DeviceArray.from_host(driver, np.array([step], np.int32))
        draws = Draws(SEED, self.count, 0)
        self.work = dataclasses.replace(self.model.work, draws=draws)
        self.model.fill_slot(0, ROWS)

    def items(self):
        return self.work.gradients(self.model.gradients, self.model.panels, ROWS, ROWS)

    def run(self, items):
        for item in items:
            if not isinstance(item, BucketReady):
                item.in_numpy()()
        return self.model.gradients.to_host()


def names(items):
    return [item.name for item in items if not isinstance(item, BucketReady)]


def truth(model, step):
    parameters = {name: array.astype(float) for name, array in model.host.items()}
    network = model.network.in_step(SEED, step)
    return reference.cost_and_gradients(parameters, model.images / 255, model.labels, network, reg=0)


@pytest.mark.parametrize("gemm", [None, "mma", "wgmma"])
def test_a_step_computes_the_gradients_of_the_reference_however_it_is_fused(gemm):
    """No rule takes what dropout changes for what it was."""
    step = Step(step=2)
    items = step.items()
    if gemm is not None:
        kernels = Kernels(KernelLibrary(GPU), np.float32, gemm)
        items = fuse(items, kernels, partial(Components.empty, CpuDriver()))
        assert "bias and activation 1" not in names(items) and "dropout 1" in names(items)
    found = step.run(items)
    assert step.count.to_host()[0] == 3
    loss, expected = truth(step.model, 3)
    assert found.pop("loss")[0] == pytest.approx(loss, rel=1e-5)
    for name, gradient in found.items():
        np.testing.assert_allclose(
            gradient, expected[name], rtol=0, atol=1e-4 * np.abs(expected[name]).max(), err_msg=name
        )


def test_a_step_counts_itself_before_it_drops():
    listed = names(Step(step=0).items())
    assert listed.index("count step") < listed.index("dropout 0") < listed.index("forward GEMM 1")
    assert [
        listed.count(name) for name in ("count step", "dropout 3", "dropout 2", "dropout gradient 2")
    ] == [*(1, 0, 2, 2)]


def test_a_forward_pass_drops_nothing_and_copies_nothing():
    step = Step(step=0)
    model = step.model
    listed = model.work.logits(ROWS)
    assert not [name for name in names(listed) if "drop" in name or "count" in name]
    for item in listed:
        item.in_numpy()()
    parameters = {name: array.astype(float) for name, array in model.host.items()}
    _, Z = reference.forward(parameters, model.images / 255, model.network)
    found = model.activations.taken(3, ROWS).to_host()
    assert np.abs(Z).max() > 1
    np.testing.assert_allclose(found, Z, rtol=0, atol=1e-5 * np.abs(Z).max())


def test_a_count_reads_and_writes_the_step_alone():
    step = DeviceArray.from_host(CpuDriver(), np.array([4], np.int32))
    operation = count_step(step)
    operation.in_numpy()()
    assert step.to_host()[0] == 5 and operation.reads == operation.writes == (step,)
