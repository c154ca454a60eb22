"""Convolutional networks in nn/autotune/cost.py: seconds by hand, and what runs send."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bench.counting import sent_in_run
from nn.app.options import Options
from nn.autotune.cost import Costing
from nn.autotune.listed_step import Task, on_null
from nn.autotune.rates import CONVOLUTIONS, Convolutions
from nn.model.net_text import make_network
from nn.parallel.plan import Plan, by_samples
from pyrt.driver.null import DeviceProperties
from pyrt.job import Job
from tests import few
from tests.nn.autotune.rates import HOPPER, random_rates


@pytest.mark.parametrize("conv", ["auto", "im2col", "direct"])
@pytest.mark.parametrize("device", [DeviceProperties(), HOPPER], ids=["cpu", "gpu"])
def test_convolutions_take_their_flops(device, conv):
    """Of 12 x 10 x 3 pixels: few channels, then 16, fused with bias and activation on a GPU."""
    network = make_network("conv3x3x16,relu,pool2,conv3x3x24p1,relu,dense4", (12, 10, 3), 4, "softmax")
    step = on_null(Task(network, 10, conv=conv), Plan.data(2, 3), device)
    rates = dataclasses.replace(random_rates(0, device), products=None, tflop_s=1e-3, memory_gb_s=1e9)
    rates = dataclasses.replace(rates, operation_us=0.0)
    cost = Costing(step, rates).cost
    samples = 10 // 2
    first, second = samples * 10 * 8 * 16 * 27, samples * 5 * 4 * 24 * 9 * 16
    # No gradient of the images of the data.
    assert cost.convolutions == pytest.approx(2 * (2 * first + 3 * second) / 1e9, rel=1e-12)
    assert cost.products == pytest.approx(2 * 3 * samples * 480 * 4 / 1e9, rel=0.01)
    assert cost.bound.startswith("convolutions")


def test_each_kind_of_convolution_has_times_of_its_own():
    network = make_network("conv3x3x16p1,relu,conv3x3x16p1,relu,dense4", (8, 8, 16), 4, "softmax")
    us = {kind: [[[10.0**place]]] for place, kind in enumerate(CONVOLUTIONS)}
    rates = dataclasses.replace(random_rates(0), convolutions=Convolutions([64], [16], [144], us))
    cost = Costing(on_null(Task(network, 1), Plan.data(1, 3), DeviceProperties()), rates).cost
    assert cost.convolutions == pytest.approx(1e-6 * (2 * 1 + 1 * 10 + 2 * 100))


@pytest.fixture
def shared(tmp_path: Path, job: Job) -> Path:
    """One folder for all ranks, with 21 images of 9 x 8 pixels of three colours in five classes."""
    folder: Path = job.comm.bcast(tmp_path)
    if job.rank == 0:
        images = np.random.default_rng(0).integers(0, 256, (21, 9, 8, 3), np.uint8)
        np.savez(folder / "images.npz", x_train=images, y_train=np.arange(21) % 5)
    job.comm.barrier()
    return folder


NET = "conv3x3x5,relu,pool2,conv2x2x6p1,tanh,dense9,relu,dense7,relu,dense5"
"""Sizes that no number of ranks shares evenly."""


@pytest.mark.parallel(few([4], of=[2, 3, 4]))
def test_what_runs_of_convolutional_networks_send_is_what_the_formulas_say(shared: Path, job: Job) -> None:
    """By the plan `model`, one group and several, and by samples alone; a step of 21 samples."""
    network = make_network(NET, (9, 8, 3), 5, "softmax")
    options = Options(
        net=NET,
        data=str(shared / "images.npz"),
        batch=21,
        epochs=1,
        lr=0.1,
        momentum=0.0,
        val_fraction=0.0,
        device="cpu",
        exchange="host",
    )
    shards = [size for size in (1, 2, job.size) if job.size % size == 0]
    for size in dict.fromkeys(shards):
        plan = Plan.model(job.size // size, size, network.depth, by_samples(network))
        counted = sent_in_run(options, plan, shared, job)
        rates = random_rates(0, exchange="host")
        cost = Costing(on_null(Task(network, 21), plan, DeviceProperties(), job.rank), rates).cost
        assert counted["elements"] * 4 == pytest.approx(cost.sent, rel=1e-12), plan
        assert counted["messages"] == cost.messages, plan
        assert cost.sent > 0
