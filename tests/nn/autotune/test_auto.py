"""The plan that is chosen: --plan auto, python -m nn.autotune, and rates that the job measures and keeps."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from nn.app.network_on_paper import network_on_paper
from nn.app.options import Options
from nn.autotune import __main__ as autotune
from nn.autotune import probe
from nn.autotune.__main__ import parse
from nn.autotune.cost import is_pass, kind
from nn.autotune.listed_step import Task, on_null
from nn.autotune.probe import ProbeContext, measured
from nn.autotune.probe.clock import Clock
from nn.autotune.probe.context import EXTENTS, Convolved, Extent
from nn.autotune.probe.lender import Lender
from nn.autotune.rates import CONVOLUTIONS, KINDS, LAYOUTS, load
from nn.autotune.search import Search
from nn.model.net_text import IMAGES, make_network
from nn.model.network import Network
from nn.parallel import plan_files
from nn.parallel.plan import Plan
from nn.program.operations import Operation
from pyrt.devices import open_device
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.null import DeviceProperties
from pyrt.errors import UserError
from pyrt.exchange.choose import choose
from pyrt.job import Job, join
from tests import few, mpi
from tests.nn.autotune.rates import HOPPER, QUICK, random_rates
from train import train

EMULATED = Extent(
    (8,), Convolved(4, (1,), (2,), (3,)), (("dense12,sigmoid,dense10", (30,), 8),), (1 << 10, 1 << 11)
)

TASK = Task(Network.dense((12, 16, 16, 5), "sigmoid", "softmax"), 20)


@pytest.fixture
def shared(tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One folder for all ranks, its cache, 40 images of 3 x 4 pixels; and little to measure."""
    folder: Path = job.comm.bcast(tmp_path)
    # Compiled kernels stay where they are.
    monkeypatch.setattr(probe, "cache_folder", lambda name: folder / "cache" / name)
    monkeypatch.setitem(EXTENTS, "cpu", QUICK)
    monkeypatch.setitem(EXTENTS, "emulated", EMULATED)
    if job.rank == 0:
        images = np.random.default_rng(0).integers(0, 256, (40, 3, 4), np.uint8)
        np.savez(folder / "digits.npz", x_train=images, y_train=np.arange(40) % 5)
    job.comm.barrier()
    return folder


@pytest.mark.parallel(few([2], of=[1, 2, 4]))
def test_a_job_measures_its_machine_once(shared: Path, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = open_device("cpu", job, share_gpus=False).driver
    setting = ProbeContext(job, driver, choose("auto", driver, job), TASK)
    first = measured(setting)
    assert len({str(rates) for rates in job.comm.allgather(first)}) == 1
    assert set(first.node) == (set(KINDS) if job.size > 1 else set())
    assert first.products is not None and set(first.products.us) == set(LAYOUTS)
    assert first.convolutions is not None and first.convolutions.axes == ([16, 64], [2, 4], [9, 27])
    assert {np.shape(us) for us in first.convolutions.us.values()} == {(2, 2, 2)}
    Search(TASK, job.size, first).best()
    monkeypatch.setattr(probe, "probe", None)
    assert measured(setting) == first
    other = dataclasses.replace(setting, task=dataclasses.replace(TASK, dtype="float64"))
    with pytest.raises(TypeError):  # there are none for these numbers: they would be measured
        measured(other)
    driver.close()


@pytest.mark.parallel(few([1], of=[1, 2]))
def test_a_cache_that_cannot_be_written_ends_no_run(
    shared: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "cache_folder", lambda name: shared / "digits.npz" / name)
    with closing(open_device("cpu", job, share_gpus=False).driver) as driver:
        assert measured(ProbeContext(job, driver, choose("auto", driver, job), TASK)).products


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel([4])
def test_a_device_with_kernels_is_measured_too(shared: Path, job: Job) -> None:
    driver = open_device("emulated", job, share_gpus=True).driver
    rates = measured(ProbeContext(job, driver, choose("auto", driver, job, ranks_per_node=2), TASK))
    assert rates.ranks_per_node == 2
    assert set(rates.node) == set(rates.network) == set(KINDS)
    assert rates.conv == "direct" and rates.convolutions is not None
    assert rates.convolutions.axes == ([16], [3], [18]) and set(rates.convolutions.us) == set(CONVOLUTIONS)
    driver.close()


@pytest.mark.parallel([1])
def test_operands_are_made_once_before_what_reads_them_is_timed(job: Job) -> None:
    done: list[str] = []
    with closing(CpuDriver()) as driver:
        assert (
            Clock(driver, job).seconds(lambda _: done.append("product"), [lambda _: done.append("split")]) > 0
        )
    assert done[0] == "split" and "split" not in done[1:] and len(done) > 10


def test_what_was_lent_is_given_back():
    driver = CpuDriver()
    lender = Lender(driver)
    pointers = [lender.allocate(100) for _ in range(3)]
    assert (driver.host_view(pointers[0], (100,), np.dtype(np.uint8)) == 0).all()
    lender.free(pointers[1])
    lender.close()
    lender.close()
    assert driver.ledger.device.total() == 0
    with pytest.raises(KeyError):
        driver.free(pointers[0])


def test_all_operations_of_a_cpu_step_are_measured():
    """Those of steps that the probe times are those of any step."""
    step = on_null(TASK, Plan.data(2, 3), DeviceProperties())
    kinds = {kind(item) for item in step.items if isinstance(item, Operation) and is_pass(item.work)}
    assert kinds == {"pixels", "bias and activation", "head", "column sums", "activation gradient"}


def test_the_steps_of_the_probe_have_the_passes_of_convolutional_networks():
    """On a CPU, and on a GPU of tensor cores, where they are fused."""
    network = make_network("lenet5", *IMAGES["lenet5"], "softmax")
    for name, device in (("cpu", DeviceProperties()), ("cuda", HOPPER)):
        nets = [make_network(net, image, 10, "softmax") for net, image, _ in EXTENTS[name].steps]
        listed = [on_null(Task(net, 64), Plan.data(1, net.depth), device) for net in (network, *nets)]
        wanted, *found = (
            {kind(item) for item in step.items if isinstance(item, Operation) and is_pass(item.work)}
            for step in listed
        )
        assert wanted <= set().union(*found)


@pytest.mark.parallel([1, 2])
def test_a_run_takes_the_plan_that_is_predicted_best(
    shared: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sums of gradients are dear, moves are free: weights are split.
    rates = random_rates(0)
    links = {name: dataclasses.replace(link, us=0.0, message_us=0.0) for name, link in rates.node.items()}
    links["exchange"] = dataclasses.replace(links["exchange"], us=1e6)
    monkeypatch.setattr("nn.autotune.probe.measured", lambda setting: dataclasses.replace(rates, node=links))
    options = Options(
        hidden=(16, 16),
        data=str(shared / "digits.npz"),
        batch=20,
        epochs=1,
        lr=0.1,
        momentum=0.0,
        device="cpu",
        plan="auto",
        check=True,
        save=shared / "chosen.npz",
        save_plan=shared / "plan.json",
    )
    report = train(options, job)
    assert report.passed
    chosen, said = plan_files.load(shared / "plan.json"), report.environment["plan"]
    assert chosen.is_data == (job.size == 1)
    assert said.startswith(str(chosen)) and "predicted" in said and "data: " in said
    # The choice given back, the bits are the same.
    given = {"plan": str(shared / "plan.json"), "exchange": report.environment["exchange"]}
    train(dataclasses.replace(options, **given, save=shared / "given.npz", save_plan=None), job)
    if job.rank == 0:
        with np.load(shared / "chosen.npz") as first, np.load(shared / "given.npz") as second:
            for name in set(first.files) - {"run"}:
                assert first[name].tobytes() == second[name].tobytes()


def command(*words: object, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    return mpi.mpirun(ranks, sys.executable, "-m", "nn.autotune", *map(str, words))


MACHINE = "nn/autotune/machines/h200.json"


@pytest.mark.long
def test_the_table_and_the_plan_of_a_machine_that_one_has_not(tmp_path: Path) -> None:
    network = ("--hidden", "4096,4096", "--batch", 1024, "--ranks", 4)
    done = command(*network, "--rates", MACHINE, "--save", tmp_path / "p.json", "--operations")
    assert done.returncode == 0, done.stderr
    rows = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert rows[4:9] == ["data", "model, 2 x 2", "model, 1 x 4", "best", "fork and join"]
    plan = plan_files.load(tmp_path / "p.json")
    assert f"best: {plan}" in done.stdout
    assert plan.ranks == 4
    assert "\nforward GEMM 1" in done.stdout


@pytest.mark.long
def test_the_plan_of_a_convolutional_network_of_a_file(tmp_path: Path) -> None:
    """For images that are not there, on a machine by its name."""
    layers = [{"kind": "conv", "filters": 8, "size": 3}, {"kind": "pool", "size": 2}]
    layers += [{"kind": "dense", "units": 4096}, {"kind": "dense", "units": 20}]
    (tmp_path / "net.json").write_text(json.dumps({"layers": layers, "loss": "sigmoid"}))
    data = "synthetic:66x66x3:20:100000000"  # more than there is memory for
    done = command(
        "--net", tmp_path / "net.json", "--data", data, "--batch", 64, "--ranks", 4, "--rates", "h200"
    )
    assert done.returncode == 0, done.stderr
    assert "66x66x3, conv3x3x8,pool2,dense4096,dense20, sigmoid cross-entropy per class" in done.stdout
    # Rows of 8192 x 4096 weights cost more to sum than 64 samples to move.
    assert "shards: W1 by samples, W2 by " in done.stdout and "fork and join" not in done.stdout


@pytest.mark.parametrize(
    ("words", "image", "classes"),
    [
        ("", (784,), 10),
        ("--inputs 50 --classes 7", (50,), 7),
        ("--net vgg16", (224, 224, 3), 1000),
        ("--net lenet5 --data cifar100", (32, 32, 3), 100),
        ("--net lenet5 --data embedded", (28, 28), 10),
        ("--net mnist-conv --data synthetic:30x20x2:4:9 --classes 6", (30, 20, 2), 6),
        ("--net dense20,relu,dense10 --inputs 30", (30,), 10),
    ],
)
def test_a_network_is_for_the_images_that_are_named(words: str, image: tuple[int, ...], classes: int) -> None:
    options, own = parse(words.split())
    network = network_on_paper(options, own.given, own.inputs)
    assert (network.input_shape, network.classes) == (image, classes)
    assert options.net is not None or network.is_dense


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--net conv3x3x8,dense10", "--net: nothing says what images it takes: give --data synthetic:HxWxC"),
        ("--net lenet5 --data cifar10 --inputs 784", "--inputs: --data says what images are like"),
        ("--net lenet5 --data synthetic:8x8:10:5", "--data synthetic:8x8:10:5: must be synthetic:HxWxC"),
        ("--net vgg16 --data synthetic:8x8x3:10:5", "--net: layer 14: pool2: a window of 2 x 2 does not fit"),
    ],
)
def test_networks_that_cannot_be_are_one_line(words: str, message: str) -> None:
    options, own = parse(words.split())
    with pytest.raises(UserError) as caught:
        network_on_paper(options, own.given, own.inputs)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.long
def test_a_network_of_a_file_needs_images_too(tmp_path: Path) -> None:
    layers = [{"kind": "conv", "filters": 8, "size": 3}, {"kind": "dense", "units": 10}]
    (tmp_path / "net.json").write_text(json.dumps({"layers": layers}))
    done = command("--net", tmp_path / "net.json", "--rates", "h200")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--net: nothing says what images it takes" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "0", "--rates", MACHINE], "--ranks"),
        (["--exchange", "server", "--rates", MACHINE], "--exchange server: sums no gradients"),
        (["--exchange", "hogwild", "--rates", MACHINE], "--exchange hogwild: sums no gradients"),
        (["--hidden", "", "--rates", MACHINE], "--hidden"),
        (["--rates", "none.json"], "--rates none.json: No such file or directory"),
        (["--rates", MACHINE, "--dtype", "float64"], "are for float32"),
        (["--rates", "h200", "--math", "bf16"], "--math bf16: the rates of h200 are for float32"),
        (["--rates", MACHINE, "--ranks", "64"], "no links across nodes of 8"),
        (["--rates", MACHINE, "--save", "/none/plan.json"], "--save"),
    ],
)
def test_mistakes_are_said(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["autotune", *words])
    with pytest.raises(UserError, match=re.escape(message)):
        autotune.main(join())


@pytest.mark.long
def test_a_mistake_is_one_line() -> None:
    done = command("--rates", "none.json")
    assert done.returncode == 2
    assert "--rates none.json: No such file or directory" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize("ranks", few([1], of=[1, 2]))
def test_the_plan_and_the_rates_cannot_go_into_one_file(tmp_path: Path, ranks: int) -> None:
    (tmp_path / "link.json").symlink_to("both.json")
    for other in few(["link.json"], of=["both.json", "link.json"]):  # one name, and two of one file
        paths = ("--save", tmp_path / "both.json", "--save-rates", tmp_path / other)
        done = command("--ranks", 2, "--rates", MACHINE, *paths, ranks=ranks)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = (line for line in done.stderr.splitlines() if "error: " in line)
        assert "--save, --save-rates: name a file of its own for each" in line
        assert not (tmp_path / "both.json").exists()


@pytest.mark.long
def test_the_plan_and_the_rates_are_saved_side_by_side(tmp_path: Path) -> None:
    paths = ("--save", tmp_path / "plan.json", "--save-rates", tmp_path / "rates.json")
    done = command("--ranks", 2, "--rates", MACHINE, *paths)
    assert done.returncode == 0, done.stderr
    assert plan_files.load(tmp_path / "plan.json").ranks == 2
    assert load(tmp_path / "rates.json") == load(Path(MACHINE))


@pytest.mark.long
def test_a_job_of_one_rank_cannot_measure_links(tmp_path: Path) -> None:
    rates = random_rates(0)
    dataclasses.replace(rates, node={}, network={}).save("--save-rates", tmp_path / "r.json")
    done = command("--ranks", 2, "--rates", tmp_path / "r.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no links within a node" in done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["about"] == "random"
