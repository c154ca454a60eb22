"""Whole runs of convolutional networks: the trained network is that of the reference, bits stay the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nn
import pyrt
from nn.app.options import Options
from nn.app.report import Report
from nn.input import streamed
from nn.launch.conv import convolution
from nn.launch.conv.versions import CONV_VERSIONS, runs_convolution
from nn.parallel import buckets
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange.device import verdict
from pyrt.exchange.registry import choices
from pyrt.job import Job
from tests import few, spread, standing_still
from tests.nn.checkpoints.runs import Runs
from train import train

NET = "conv3x3x4p1,tanh,pool3s2,avgpool2s1,conv2x3x5s2same,sigmoid,dense8,tanh,dense3"
"""Windows over the edge, over each other and with a rest; layers without parameters one behind the other."""

NETS = {
    "a pool first": "pool2s1,conv3x2x3,tanh,gap,dense3",
    "a mean of the images": "avgpool3,dense7,relu,dense3",
    "relu": "conv5x5x3s3p4,relu,pool2,dense3",
    "a window that is the image": "conv12x11x2,tanh,dense3",
}
PIXELS = (12, 11, 2)

SMALL = Options(
    net=NET,
    epochs=2,
    batch=25,
    samples=60,
    lr=0.2,
    momentum=0.5,
    reg=0.01,
    val_fraction=0.0,
    device="cpu",
    check=True,
)
"""Batches of 25, 25 and 10 samples: 3 and 4 ranks cannot share them evenly."""

ADAM = {"optimiser": "adam", "lr": 0.01, "eps": 1e-4}


@pytest.fixture
def data(shared: Path, job: Job) -> str:
    """60 random images in three classes, and 9 to test."""
    if job.rank == 0:
        rng, sets = np.random.default_rng(0), {"train": 60, "test": 9}
        images = {f"x_{name}": rng.integers(0, 256, (n, *PIXELS), np.uint8) for name, n in sets.items()}
        labels = {f"y_{name}": np.arange(n) % 3 for name, n in sets.items()}
        np.savez(shared / "images.npz", **images, **labels)
    job.comm.barrier()
    return str(shared / "images.npz")


def run(data: str, **changes: Any) -> Report:
    """A run whose check has passed."""
    standing_still.allow()
    report = train(dataclasses.replace(SMALL, data=data, **changes))
    if changes.get("check", True):
        assert report.passed, f"{changes}\n{report.check}"
    return report


def require(conv: str, driver: Driver, dtype: str = "float32") -> None:
    """Skip a test that its device cannot run."""
    if not runs_convolution(conv, dtype, driver.architecture):
        pytest.skip(f"{conv} does not run in {dtype} on {driver.architecture}")


def on(driver: Driver) -> dict[str, Any]:
    """A shorter run with kernels: batches of 11, 11 and 3 samples."""
    return {"device": driver.name, "share_gpus": True, "samples": 25, "batch": 11, "epochs": 1}


@pytest.mark.parametrize(("net", "dtype"), spread(list(NETS), ["float32", "float64"], by=2))
def test_networks_of_all_kinds(data: str, net: str, dtype: str) -> None:
    run(data, net=NETS[net], dtype=dtype)


@pytest.mark.parametrize(
    ("net", "conv"),
    spread(
        few(list(NETS)[2:], of=list(NETS)),
        [conv for conv in CONV_VERSIONS if conv != "winograd"],  # no window fits it
        by=2,
    ),
)
def test_networks_of_all_kinds_in_kernels(driver: Driver, data: str, net: str, conv: str) -> None:
    for dtype in few(["float32"], of=["float32", "float64"]):
        if runs_convolution(conv, dtype, driver.architecture):
            run(data, net=NETS[net], dtype=dtype, conv=conv, **on(driver))


@pytest.mark.parallel(few([1, 3], of=[1, 2, 3, 4]))
def test_ranks_train_the_network_of_the_reference(data: str, job: Job) -> None:
    """By every plan, exchange and optimiser; of a batch of two samples a rank of three has none."""
    ways: list[dict[str, Any]] = [
        {"exchange": "blocking", "dtype": "float64"},
        {"exchange": "host", "net": NETS["relu"]},
        {"exchange": "root", "dtype": "float64", **ADAM},
        {"batch": 2, "epochs": 1, "samples": 11, "head": "sigmoid"},
        {"plan": "model", "dtype": "float64"},
        {"plan": "model", "net": NETS["a mean of the images"], **ADAM},
    ]
    for changes in few([ways[1], ways[3], ways[5]], of=ways) if job.size > 1 else ways[2:4]:
        run(data, **changes)
    if job.size == 4:
        run(data, plan="model", grid="2x2")


WIDE = "conv3x3x16p1,tanh,conv2x2x16,tanh,pool2,conv2x2x24s2p1,tanh,conv1x1x4,tanh,gap,dense8,tanh,dense3"
"""Few channels, and as many as the tensor cores' memory accelerator can gather."""

SHORT = "conv3x3x16p1,tanh,conv2x2x16,tanh,pool2,conv2x2x24s2p1,tanh,dense3"
"""As many as that in fewer layers."""


@pytest.mark.kernels
@pytest.mark.parallel(few([2], of=[1, 2]))
@pytest.mark.parametrize("math", few(["float32"], of=["float32", "tf32", "bf16"]))
@pytest.mark.parametrize("net", few([SHORT], of=[WIDE, SHORT]))
def test_networks_on_tensor_cores(driver: Driver, data: str, net: str, math: str) -> None:
    """With convolutions whose components are kept from step to step, and what is fused with them."""
    require("implicit", driver)
    where = {**on(driver), "samples": 14, "batch": 8}
    for plan in few(["model"], of=["data", "model"]):
        run(data, net=net, conv="implicit", gemm="wgmma", math=math, plan=plan, **where)
    where["samples"] = 7  # one step
    for gemm in few([], of=["wgmma", "mma"]):
        if (gemm, math) == ("mma", "bf16"):  # which has no version
            continue
        run(data, net=net, conv="implicit", gemm=gemm, math=math, **where)
        run(data, net=net, conv="implicit", gemm=gemm, math=math, check_each=1, **where)


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel(few([3], of=[1, 2, 3, 4]))
def test_kernels_train_the_network_of_the_reference(driver: Driver, data: str, job: Job) -> None:
    for conv in few(["im2col"] if job.size == 1 else [], of=CONV_VERSIONS):
        if runs_convolution(conv, "float32", driver.architecture):
            run(data, conv=conv, **on(driver))
    exchanges = [name for name in choices() if name != "device" or verdict(job, driver).is_proven]
    for exchange in few(["peer"], of=exchanges) if job.size > 1 else ():
        run(data, exchange=exchange, graph=exchange != "host", **ADAM, **on(driver))
    run(data, plan="model", dtype="float64", **on(driver))
    run(data, **{**on(driver), "batch": 2, "samples": 5})


@pytest.mark.kernels
@pytest.mark.parallel(few([2], of=[1, 2, 3, 4]))
def test_large_layers_and_batches_in_parts(
    driver: Driver, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients leave in panels, windows are made in slices, images are streamed a batch at a time."""
    monkeypatch.setattr(buckets, "PANEL_BYTES", 300)
    monkeypatch.setattr(convolution, "WORKSPACE_BYTES", 30_000)
    monkeypatch.setattr(streamed, "CHUNK_BYTES", 11 * 12 * 11 * 2)
    for exchange in few(["host"], of=["host", "peer"]):
        run(data, placement="stream", exchange=exchange, conv="im2col", **on(driver))
    run(data, exchange="host")


@pytest.mark.parametrize("conv", few(["winograd"], of=CONV_VERSIONS))
@pytest.mark.parametrize("dtype", few(["float32"], of=["float32", "float64"]))
def test_each_operation_is_numpys(driver: Driver, data: str, conv: str, dtype: str) -> None:
    require(conv, driver, dtype)
    run(data, conv=conv, dtype=dtype, check_each=2, **on(driver))


@pytest.mark.kernels
@pytest.mark.parallel([2])
@pytest.mark.parametrize("plan", few(["model"], of=["data", "model"]))
def test_each_operation_of_several_ranks_is_numpys(driver: Driver, data: str, plan: str) -> None:
    run(data, plan=plan, check_each=2, **on(driver))


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parametrize("conv", few(["im2col"], of=CONV_VERSIONS))
def test_same_bits_twice_whatever_the_order(driver: Driver, shared: Path, data: str, conv: str) -> None:
    """On the emulated device, whose checks find nothing."""
    require(conv, driver)
    found = []
    for changes in ({}, {"sanitize": True}, {"order_seed": 1}, {"placement": "stream", "graph": False}):
        options = {**on(driver), "device": "emulated", "conv": conv, "check": False, **changes}
        run(data, save=shared / "w.npz", **options)
        found.append(weights(shared / "w.npz"))
    for other in found[1:]:
        assert {name: a.tobytes() for name, a in other.items()} == {
            name: a.tobytes() for name, a in found[0].items()
        }


def weights(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files if name != "run"}


@pytest.mark.parallel(few([2], of=[1, 2, 3]))
@pytest.mark.parametrize("plan", few(["model"], of=["data", "model"]))
def test_files_have_the_shapes_of_the_layers_and_are_read_again(
    shared: Path, data: str, job: Job, plan: str
) -> None:
    """Filters (filters, rows, columns, channels), whatever the plan."""
    path = shared / "w.npz"
    trained = run(data, plan=plan, dtype="float64", save=path)
    job.comm.barrier()
    shapes = {"W1": (4, 3, 3, 2), "W2": (5, 2, 3, 4), "W3": (8, 5 * 2 * 2), "W4": (3, 8)}
    shapes |= {name.replace("W", "b"): shape[:1] for name, shape in shapes.items()}
    assert {name: array.shape for name, array in weights(path).items()} == shapes
    again = run(data, plan=plan, dtype="float64", init=path, epochs=0, check=False)
    assert again.test == trained.test


def test_a_version_of_convolutions_that_does_not_run_here_is_an_error(driver: Driver, data: str) -> None:
    for conv in CONV_VERSIONS:
        with pytest.raises(UserError, match=f"^--conv {conv}: needs kernels, and cpu, .*, runs none: use"):
            run(data, conv=conv)
        if not runs_convolution(conv, "float64", driver.architecture):
            with pytest.raises(UserError, match=f"^--conv {conv}: .* not run it in float64: use --conv auto"):
                run(data, **{**on(driver), "conv": conv, "dtype": "float64"})


@pytest.mark.parametrize(
    ("shape", "fits"),
    [((12, 11, 2), True), ((11, 12, 2), False), ((12, 11), False), ((12, 22), False), ((24, 11, 1), False)],
)
def test_a_trainer_takes_images_of_its_networks_shape(data: str, shape: tuple[int, ...], fits: bool) -> None:
    network = nn.Network(shape, [nn.Conv2d(4, 3), nn.MaxPool2d(2), nn.Dense(3)])
    flat = nn.Network((12 * 22,), [nn.Dense(3)])
    with pyrt.start(device="cpu") as runtime:
        nn.Trainer(flat, nn.Sgd(), nn.load(data), runtime, batch=20).close()
        if fits:
            with nn.Trainer(network, nn.Sgd(), nn.load(data), runtime, batch=20) as trainer:
                (epoch,) = trainer.epochs(1)
                assert epoch.loss > 0 and trainer.parameters()["W1"].shape == (4, 3, 3, 2)
            return
        with pytest.raises(UserError, match=r"^Network: takes samples of .*, and .* has images of 12x11x2$"):
            nn.Trainer(network, nn.Sgd(), nn.load(data), runtime, batch=20)


class TestResume:
    @pytest.fixture
    def runs(self, shared: Path, data: str, monkeypatch: pytest.MonkeyPatch) -> Runs:
        runs = Runs(shared, data, monkeypatch)
        runs.options = dataclasses.replace(
            SMALL, batch=7, samples=17, data=data, val_fraction=0.2, check=False
        )
        return runs

    def check_bits(self, runs: Runs, stop: int, **changes: Any) -> None:
        """A run that stops after this of its six steps, and goes on, is one that never stops."""
        standing_still.allow()
        whole = runs.outcome(runs(**changes))
        assert runs.kept(stop=stop, checkpoint_every=str(stop), **changes).preempted
        report = runs.resumed(**changes)
        assert f"resumed at step {stop}" in runs.said.lines
        assert runs.outcome(report) == whole, changes
        runs.clear()

    def test_on_the_cpu(self, runs: Runs) -> None:
        for dtype in few([], of=["float32", "float64"]):
            self.check_bits(runs, 4, dtype=dtype)
        self.check_bits(runs, 3, **ADAM)

    @pytest.mark.kernels
    @pytest.mark.parametrize("conv", few(["winograd"], of=CONV_VERSIONS))
    def test_on_a_device(self, runs: Runs, driver: Driver, conv: str) -> None:
        """The others keep nothing from step to step."""
        require(conv, driver)
        where = {"device": driver.name, "share_gpus": True, "net": "conv3x3x4p1,tanh,pool2,dense3"}
        self.check_bits(runs, 4, conv=conv, placement="stream", **where)

    @pytest.mark.kernels
    @pytest.mark.parallel(few([2], of=[2, 3]))
    def test_on_several_ranks(self, runs: Runs, driver: Driver) -> None:
        """Parts of the optimiser's states come from the ranks that update them."""
        where = {"device": driver.name, "share_gpus": True, **ADAM}
        ways = [("data", "peer"), ("model", "peer"), ("data", "host")]
        for plan, exchange in few([], of=ways):
            self.check_bits(runs, 4, plan=plan, exchange=exchange, **where)
        self.check_bits(runs, 3, plan="model", exchange="host")

    def test_another_net_does_not_go_on(self, runs: Runs) -> None:
        runs.kept(stop=3)
        with pytest.raises(UserError, match="--net"):
            runs.resumed(net=NET.replace("sigmoid", "tanh"))
