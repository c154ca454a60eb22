"""Small networks train by one kernel a step, and the update: kernels/nn/fused_step.cu in whole runs."""

import dataclasses
import itertools

import numpy as np
import pytest

from nn.launch.work import Fused
from nn.train.check_each import OperationIsOff
from tests import few
from tests.nn.small_runs import saved, using
from train import train

WHOLE = "scale pixels to backward GEMM 3"
ENDS = [("softmax", "relu"), ("sigmoid", "tanh")]
RATES = {"sgd": {}, "momentum": {"momentum": 0.9, "lr": 0.1}, "adam": {"optimiser": "adam", "lr": 0.01}}


@pytest.fixture
def run(driver, monkeypatch, tmp_path):
    """Trains a few steps, the last of an epoch a short one; the emulated device fuses as a GPU does."""
    if driver.architecture == "emulated":
        monkeypatch.setattr("nn.launch.kernels.fastest_gemm", lambda *_: "mma")

    def run(**changes):
        options = using(device=driver.name, samples=110, batch=40, hidden=(33,), save=str(tmp_path / "w.npz"))
        report = train(dataclasses.replace(options, **changes))
        return report, saved(tmp_path / "w.npz")

    return run


@pytest.mark.parametrize(
    ("rates", "ends"),
    few([("momentum", ENDS[1])], of=list(itertools.product(RATES, ENDS))),
)
def test_it_trains_the_network_of_the_reference(run, rates, ends):
    loss, activation = ends
    report, _ = run(check=True, head=loss, activation=activation, **RATES[rates])
    assert report.passed
    assert report.phase(WHOLE).calls == 6 == report.phase("step").calls


def test_the_bits_are_the_same_however_steps_get_there(driver, run):
    """In graphs, launched one by one, from batches that threads gather, and in whatever order blocks run."""
    ways = [{}, {}, {"graph": False}, {"placement": "stream"}, {"placement": "stream", "graph": False}]
    if driver.name == "emulated":
        ways += [{**ways[4], "order_seed": 3}, {"sanitize": True}]
    outcomes = [run(**way) for way in few([ways[0], ways[-2]], of=ways)]
    assert all(report.phase(WHOLE).calls == 6 for report, _ in outcomes)
    assert all(weights == outcomes[0][1] for _, weights in outcomes)


@pytest.mark.long
def test_its_numbers_are_those_of_the_operations_apart(run):
    """But for roundings: a product that is asked for by name is a launch of its own."""
    (fused, _), (apart, _) = run(), run(gemm="tiled")
    assert WHOLE not in [row.name for row in apart.phases]
    np.testing.assert_allclose(
        [epoch.loss for epoch in fused.epochs], [epoch.loss for epoch in apart.epochs], rtol=1e-5
    )


def test_each_operation_is_checked(run, monkeypatch):
    report, _ = run(check_each=3)
    assert report.phase(WHOLE).calls == 6
    right = Fused.in_numpy

    def wrong(self):
        compute = right(self)

        def off():
            compute()
            self.outputs[0].host_view()[0, 300] *= 1.01  # of dW1

        return off

    monkeypatch.setattr(Fused, "in_numpy", wrong)
    with pytest.raises(OperationIsOff, match=WHOLE):
        run(check_each=1)
