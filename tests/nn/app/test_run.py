"""nn/app/run.py: whole runs in process, on one rank and on several, against the reference and plain loops."""

import dataclasses
import os
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from nn.app import load as load_module
from nn.app import run as run_module
from nn.app.console import Console
from nn.app.options import Options
from nn.app.run import run
from nn.input import load as load_data
from nn.launch.gemm.versions import GEMM_VERSIONS, TENSOR_ARCHITECTURES, runs_gemm
from nn.model import reference
from nn.model.initial import initial_values
from nn.model.network import Network
from nn.optimisers import Sgd
from nn.parallel import buckets
from nn.train.training import Diverged
from pyrt import devices
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.emulated import EmulatedDriver
from pyrt.driver.null import NullDriver
from pyrt.errors import UserError
from pyrt.exchange import host, local, peer
from pyrt.exchange.device import verdict
from pyrt.exchange.registry import choices
from pyrt.job import Job, join
from pyrt.kernels import KernelLibrary
from pyrt.log import log
from tests import standing_still

SMALL = Options(
    hidden=(9,), epochs=2, batch=20, lr=0.5, momentum=0.0, reg=0.01, val_fraction=0.0, device="cpu"
)
"""A quick run: long enough to tell a wrong gradient, decay or batch from rounding, too short for chaos."""


@pytest.fixture
def shared(tmp_path):
    """One folder for all ranks."""
    return join().comm.bcast(tmp_path)


@pytest.fixture
def digits(tmp_path):
    """Makes an .npz of random images, of 3 x 4 pixels in three classes by default, perhaps a test set."""

    def make(training=50, test=0, dtype=np.uint8, shape=(3, 4), classes=3):
        rng = np.random.default_rng(0)
        arrays = {}
        for name, count in (("train", training), ("test", test)):
            if count:
                arrays[f"x_{name}"] = rng.integers(0, 256, (count, *shape)).astype(dtype)
                arrays[f"y_{name}"] = np.arange(count) % classes
        np.savez(tmp_path / "digits.npz", **arrays)
        return str(tmp_path / "digits.npz")

    return make


def using(options=SMALL, **changes):
    return dataclasses.replace(options, **changes)


def saved(path):
    """The parameters in a file, bit by bit."""
    with np.load(path) as file:
        return {name: (file[name].dtype.str, file[name].tobytes()) for name in file.files if name != "run"}


# one rank


def test_the_trained_weights_are_those_of_a_loop_written_out(tmp_path):
    """No batches, split or step of nn's own: only the data and the equations."""
    options = using(
        samples=70, batch=30, momentum=0.8, shuffle=False, dtype="float64", save=tmp_path / "w.npz"
    )
    run(options)
    digits = load_data("embedded")
    network = Network.dense((784, 9, 10), "sigmoid", "softmax")
    start = initial_values(network, "float64", options.seed)
    slices = [slice(0, 30), slice(30, 60), slice(60, 70)] * 2
    batches = [(digits.images[rows] / 255.0, digits.labels[rows]) for rows in slices]
    expected = reference.train(start, batches, network, Sgd(0.5, 0.8, 0.01))
    with np.load(options.save) as trained:
        for name, array in expected.items():
            np.testing.assert_allclose(trained[name], array, rtol=0, atol=1e-12 * np.abs(array).max())


def test_a_small_run_learns():
    report = run(Options(hidden=(32,), epochs=3, batch=100, lr=0.5, momentum=0.0, device="cpu"))
    losses = [epoch.loss for epoch in report.epochs]
    assert losses == sorted(losses, reverse=True)
    assert report.epochs[0].validation_precision < report.epochs[-1].validation_precision
    assert report.test.precision > 0.7


def test_the_defaults_learn_from_the_first_epoch_on():
    """The loss of no epoch is above that of the one before."""
    report = run(Options(epochs=10, device="cpu"))
    losses = [epoch.loss for epoch in report.epochs]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 3 and report.epochs[-1].validation_precision > 0.7


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_the_defaults_learn_to_the_end(seed):
    assert run(Options(seed=seed, device="cpu")).test.precision >= 0.89


def test_what_there_is_to_know_of_a_device_is_said_before_all_else(digits, monkeypatch, capsys):
    warned = devices.Device(CpuDriver(), "", ("kernels are not kept", "ranks share one GPU"))
    monkeypatch.setattr(run_module, "open_device", lambda *_: warned)
    run(using(data=digits(), epochs=1), console=Console(speaking=True))
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["warning: kernels are not kept", "warning: ranks share one GPU"]


def test_the_loss_of_an_epoch_is_the_mean_over_its_samples(digits):
    """Without a step that changes anything: the loss of the initial weights, batches short or full."""
    options = using(data=digits(), lr=1e-30, dtype="float64", epochs=1)
    images = load_data(options.data).images / 255
    network = Network.dense((12, 9, 3), "sigmoid", "softmax")
    _, logits = reference.forward(initial_values(network, "float64", 0), images, network)
    expected = reference.losses(logits, np.arange(50) % 3, "softmax").mean()
    assert run(options).epochs[0].loss == pytest.approx(expected, rel=1e-12)


def test_no_epochs_score_and_save_the_initial_weights(tmp_path):
    report = run(using(epochs=0, save=tmp_path / "w.npz"))
    start = initial_values(Network.dense((784, 9, 10), "sigmoid", "softmax"), "float32", 0)
    assert report.epochs == []
    assert report.test.samples == 1000
    assert saved(tmp_path / "w.npz") == {name: (a.dtype.str, a.tobytes()) for name, a in start.items()}


@pytest.mark.parametrize(("fraction", "test"), [(0.0, 0), (0.2, 0), (0.0, 7), (0.2, 7)])
def test_precisions_are_there_for_the_sets_that_are_there(digits, fraction, test):
    report = run(using(data=digits(test=test), val_fraction=fraction))
    assert all((epoch.validation_precision is not None) == (fraction > 0) for epoch in report.epochs)
    assert (report.test is not None) == (test > 0)


def test_the_validation_set_is_the_end_of_the_training_set(digits):
    """Of 50 images the last 10: shuffled, or with fewer samples, too."""
    source = digits()
    report = run(using(data=source, val_fraction=0.2, samples=11, epochs=1, lr=1e-30))
    held_out = load_data(source)
    network = Network.dense((12, 9, 3), "sigmoid", "softmax")
    start = initial_values(network, "float64", 0)
    _, logits = reference.forward(start, held_out.images[40:] / 255, network)
    expected = (logits.argmax(axis=1) == held_out.labels[40:]).mean()
    assert report.epochs[0].validation_precision == pytest.approx(expected)


def test_evaluate_scores_as_the_training_run_did_and_writes_the_labels(tmp_path):
    weights, labels = tmp_path / "w.npz", tmp_path / "labels"
    trained = run(using(save=weights, head="sigmoid"))
    evaluated = run(using(evaluate=True, init=weights, predictions=labels, head="sigmoid"))
    assert evaluated.test == trained.test
    assert evaluated.epochs == []
    digits = load_data("embedded")
    with np.load(weights) as file:
        arrays = {name: file[name] for name in file.files if name != "run"}
    network = Network.dense((784, 9, 10), "sigmoid", "sigmoid")
    _, logits = reference.forward(arrays, digits.test_images / np.float32(255), network)
    written = [int(line) for line in labels.read_text().splitlines()]
    assert written == logits.argmax(axis=1).tolist()
    assert np.mean(written == digits.test_labels) == pytest.approx(evaluated.test.precision)


def test_init_goes_on_where_save_left_off(tmp_path):
    run(using(epochs=1, shuffle=False, save=tmp_path / "one.npz"))
    run(using(epochs=1, shuffle=False, init=tmp_path / "one.npz", save=tmp_path / "two.npz"))
    run(using(epochs=2, shuffle=False, save=tmp_path / "both.npz"))
    assert saved(tmp_path / "two.npz") == saved(tmp_path / "both.npz")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_check_passes_on_images_of_floats_too(digits, dtype):
    report = run(using(data=digits(test=9, dtype=np.float32), dtype=dtype, check=True, pixel_scale=254.0))
    assert report.passed, str(report.check)


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_float64_pixels_come_to_the_device_as_they_are(tmp_path, driver, placement):
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.random((50, 3, 4)), "y_train": np.arange(50) % 3}
    np.savez(tmp_path / "fine.npz", **arrays, x_test=rng.random((9, 3, 4)), y_test=np.arange(9) % 3)
    source = {"data": str(tmp_path / "fine.npz"), "dtype": "float64", "pixel_scale": 1.0}
    report = run(using(device=driver.name, placement=placement, check=True, **source))
    assert report.passed, str(report.check)
    assert max(one.max_norm for one in report.check.differences) < 1e-12  # float32 pixels: 1e-8
    assert report.test.loss == pytest.approx(run(using(**source)).test.loss, rel=1e-12)


def test_what_is_suspicious_is_said_before_all_else(capsys, tmp_path):
    images, labels = np.random.default_rng(0).random((50, 3, 4)), np.repeat([0, 1, 3], [20, 20, 10])
    np.savez(tmp_path / "odd.npz", x_train=images, y_train=labels)
    options = using(data=str(tmp_path / "odd.npz"), val_fraction=0.2, epochs=1)
    run(options, console=Console(speaking=True))
    lines = capsys.readouterr().out.splitlines()
    starts = [
        "warning: training pixels",
        "warning: no training image is of class 2",
        "warning: 10 of 10 valid",
    ]
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=False))
    assert lines[3].startswith("ranks ")
    run(using(options, pixel_scale=1.0, classes=4, val_split="random"), console=Console(speaking=True))
    assert capsys.readouterr().out.startswith("ranks ")


def test_more_classes_than_the_labels_have(tmp_path, digits):
    options = using(data=digits(test=7), classes=5, save=tmp_path / "w.npz")
    trained = run(options)
    assert trained.environment["network"].startswith("12-9-5,") and len(trained.test.recall) == 5
    split = {"val_fraction": 0.1, "val_split": "stratified"}
    scoring = using(options, save=None, evaluate=True, init=tmp_path / "w.npz", **split)
    assert run(scoring).test == trained.test
    with pytest.raises(
        UserError, match=r"W2 of shape \(5, 9\).*give the --hidden and --classes it was saved"
    ):
        run(using(scoring, classes=None))


def test_check_fails_past_the_tolerance():
    report = run(using(check=True, tolerance=1e-30, samples=40))
    assert not report.passed


def test_raw_pixels_are_the_same_network_with_scaled_weights(tmp_path, digits):
    """W1 / 255 on pixels as they are computes what W1 does on scaled ones."""
    source, init = digits(test=9), tmp_path / "w.npz"
    scaled = initial_values(Network.dense((12, 9, 3), "sigmoid", "softmax"), "float64", 0)
    np.savez(init, **scaled)
    scores = run(using(data=source, evaluate=True, init=init, dtype="float64")).test
    np.savez(init, **{**scaled, "W1": scaled["W1"] / 255})
    raw = run(using(data=source, evaluate=True, init=init, dtype="float64", pixel_scale=1.0)).test
    assert raw.loss == pytest.approx(scores.loss, rel=1e-12)


def test_steps_are_printed_as_often_as_asked(capsys, digits):
    run(using(data=digits(), epochs=3, print_every=2), console=Console(speaking=True))
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split() for line in lines if line.startswith("step")]
    assert [(words[1], words[3]) for words in steps] == [("2", "1"), ("4", "2"), ("6", "2"), ("8", "3")]
    assert sum(line.startswith("epoch") for line in lines) == 3


def test_without_a_console_nothing_is_printed(capsys, digits):
    run(using(data=digits(test=3), print_every=1))
    assert capsys.readouterr() == ("", "")


def test_a_batch_larger_than_the_set_is_one_batch_and_says_so(capsys, digits):
    run(using(data=digits(), batch=51, print_every=1), console=Console(speaking=True))
    text = capsys.readouterr().out
    assert "--batch 51 is more than the training set" in text
    assert text.count("\nstep") == 2


@pytest.mark.parametrize("rate", [0.1, 1e300])
def test_the_exchange_is_closed_however_a_run_ends(digits, monkeypatch, rate):
    closed = []
    monkeypatch.setattr(local.LocalExchange, "close", lambda exchange: closed.append(exchange))
    with pytest.raises(Diverged) if rate > 1 else nullcontext():
        run(using(data=digits(), lr=rate, epochs=3))
    assert len(closed) == 2  # one of them on the null device


@pytest.mark.filterwarnings(
    "error::RuntimeWarning"
)  # a warning of NumPy's would be a second line, of every rank
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rate", [1e30, 1e300])
def test_a_run_that_diverges_stops_with_epoch_and_step_and_overwrites_nothing(tmp_path, digits, dtype, rate):
    save, report = tmp_path / "w.npz", tmp_path / "report.json"
    save.write_bytes(b"old")
    options = using(
        data=digits(test=9), dtype=dtype, lr=rate, epochs=50, activation="relu", save=save, json=report
    )
    with pytest.raises(Diverged, match=r"epoch \d+, step [123]\b") as caught:
        run(options)
    assert caught.value.code == 1
    assert save.read_bytes() == b"old" and not report.exists()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_weights_that_the_last_step_made_useless_are_not_saved(tmp_path, digits):
    """The loss of each step is that of the weights before it."""
    save = tmp_path / "w.npz"
    with pytest.raises(Diverged):
        run(using(data=digits(), lr=1e300, dtype="float32", epochs=1, batch=50, save=save))
    assert not save.exists()


@pytest.mark.parametrize("option", ["save", "json"])
def test_what_cannot_be_written_is_found_before_anything_is_read(tmp_path, option):
    with pytest.raises(UserError, match=f"--{option} "):
        run(using(data="missing.npz", **{option: tmp_path / "missing" / "file"}))


def test_predictions_that_cannot_be_written_are_found_before_anything_is_read(tmp_path):
    with pytest.raises(UserError, match=r"--predictions "):
        run(using(data="missing.npz", evaluate=True, init=tmp_path / "missing.npz", predictions=tmp_path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": (8,)}, "W1 of shape (9, 784)"),
        ({"hidden": (9, 9)}, "W2 of shape (10, 9)"),
        ({"init": "missing.npz"}, "missing.npz"),
    ],
)
def test_parameters_of_another_network(tmp_path, changes, words):
    run(using(epochs=0, save=tmp_path / "w.npz"))
    changes = {"init": "w.npz", **changes}
    with pytest.raises(UserError) as caught:
        run(using(**{**changes, "init": tmp_path / changes["init"]}))
    assert "--init" in str(caught.value) and words in str(caught.value)


def test_evaluate_without_a_test_set(tmp_path, digits):
    with pytest.raises(UserError, match=r"--evaluate.*no test images"):
        run(using(data=digits(), evaluate=True, init=tmp_path / "w.npz"))


def test_a_network_too_large_for_the_kernels():
    with pytest.raises(UserError, match="--hidden"):
        run(using(hidden=(10**9,)))


def test_samples_beyond_all_memory():
    with pytest.raises(UserError, match="memory"):
        run(using(samples=10**15))


def test_cuda_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(devices, "usable_gpus", lambda: ([], "no GPU here"))
    with pytest.raises(UserError, match=r"--device cuda: no GPU here.*--device cpu"):
        run(using(device="cuda"))
    assert run(using(device="auto", epochs=0)).environment["device"] == "cpu"


def test_what_a_run_waits_for_is_said(monkeypatch, capsys):
    """A run says what is logged, whatever thread does: here the one that reads the data."""
    load = load_data
    monkeypatch.setattr(load_module, "load_data", lambda *what: log.info("this takes long") or load(*what))
    run(using(epochs=0), console=Console(speaking=True))
    assert capsys.readouterr().out.startswith("this takes long\nranks ")


def test_the_data_are_read_while_the_device_starts(monkeypatch):
    reads, load, open_device = threading.Event(), load_data, run_module.open_device
    monkeypatch.setattr(load_module, "load_data", lambda *what: reads.set() or load(*what))
    monkeypatch.setattr(run_module, "open_device", lambda *how: reads.wait(60) and open_device(*how))
    assert run(using(epochs=0)).environment["device"] == "cpu"


# several ranks

CASES = {
    "ragged last batch": {"samples": 45, "batch": 20},
    "uneven split": {"samples": 17, "batch": 7, "activation": "tanh", "momentum": 0.9},
    "ranks without samples": {"samples": 7, "batch": 3, "activation": "relu"},
    "one sample": {"samples": 1, "epochs": 3},
    "deep": {"hidden": (14, 11, 8), "activation": "tanh", "momentum": 0.5, "head": "sigmoid"},
    "repeated samples": {"samples": 120, "batch": 50, "momentum": 0.9, "head": "sigmoid"},
    "in order": {"shuffle": False, "activation": "relu", "val_fraction": 0.1, "val_split": "random"},
}


def differ_from_the_reference(source, monkeypatch, exchanges, **changes):
    """The cases whose parameters end further from the reference than --check allows."""
    failed = []
    exchanges = exchanges if join().size > 1 else exchanges[:1]
    # A bucket a layer in pieces of a row or two, or panels of a few rows.
    for cut, (panel_bytes, piece_bytes) in enumerate(((buckets.PANEL_BYTES, 90), (300, host.PIECE_BYTES))):
        monkeypatch.setattr(buckets, "PANEL_BYTES", panel_bytes)
        monkeypatch.setattr(host, "PIECE_BYTES", piece_bytes)
        for number, (name, case) in enumerate(CASES.items()):
            # Each exchange meets each case, cut one way or the other.
            for turn, exchange in list(enumerate(exchanges))[(number + cut) % 2 :: 2]:
                dtype = ("float32", "float64")[(number + turn // 2) % 2]
                options = using(check=True, data=source, dtype=dtype, exchange=exchange, **case, **changes)
                report = run(options)
                standing_still.allow()
                if not report.passed:
                    failed.append((name, dtype, exchange, panel_bytes, str(report.check)))
    return failed


@pytest.mark.parallel([1, 2, 3, 4])
def test_ranks_train_the_network_of_the_reference(digits, monkeypatch):
    without_kernels = [name for name in choices() if name not in ("peer", "hierarchical")]
    assert not differ_from_the_reference(digits(test=2), monkeypatch, without_kernels)


@pytest.mark.parallel([1, 2, 3, 4])
def test_kernels_train_the_network_of_the_reference(driver, digits, monkeypatch):
    """Having the ``driver`` open keeps a GPU's context from one run to the next."""
    where = {"device": driver.name, "share_gpus": True}
    exchanges = [name for name in choices() if name != "device" or verdict(join(), driver).is_proven]
    assert not differ_from_the_reference(digits(test=2), monkeypatch, exchanges, **where)


@pytest.mark.parallel([2])
def test_without_an_exchange_each_rank_trains_on_its_part_alone(shared, tmp_path):
    """As one rank with that part, half the rate and twice the decay: gradients are of the batch's mean."""
    rng, job = np.random.default_rng(3), join()
    images, labels = rng.integers(0, 256, (20, 3, 4)).astype(np.uint8), np.arange(20) % 3
    if job.rank == 0:
        np.savez(shared / "all.npz", x_train=images, y_train=labels)
    part = slice(10 * job.rank, 10 * job.rank + 10)
    np.savez(tmp_path / f"part{job.rank}.npz", x_train=images[part], y_train=labels[part])
    job.comm.barrier()
    options = using(epochs=5, shuffle=False, dtype="float64", print_every=1)
    apart = run(using(options, data=str(shared / "all.npz"), exchange="local"))
    here = tmp_path / f"part{job.rank}.npz"
    alone = run(
        using(options, data=str(here), batch=10, lr=options.lr / 2, reg=2 * options.reg),
        Job(MPI.COMM_SELF, MPI.COMM_SELF, job.library, job.cores),
    )
    losses = np.array([loss for _, loss in apart.losses])
    np.testing.assert_allclose(2 * losses, [loss for _, loss in alone.losses], rtol=1e-12)
    assert len(set(job.comm.allgather(losses[-1]))) == 2
    assert apart.environment["exchange"] == "local"
    assert any(line.startswith("exchange  local: none") for line in apart.environment["header"])


def left_of_peers():
    """Open files, watchdogs, and mappings of shared memory that this process has."""
    maps = Path("/proc/self/maps").read_text()
    watchdogs = sum(thread.name == "watchdog" for thread in threading.enumerate())
    return len(os.listdir("/proc/self/fd")), watchdogs, maps.count("memfd:pyrt-")


@pytest.mark.parallel([2])
def test_runs_over_peer_memory_leave_nothing_behind(driver, digits):
    """Neither those that end well, of changing sizes, nor those whose loss is not finite."""
    where = {"device": driver.name, "share_gpus": True, "exchange": "peer", "data": digits(test=2)}
    for units in range(3, 13):
        run(using(hidden=(units,), epochs=1, **where))
        with pytest.raises(Diverged):
            run(using(hidden=(units,), lr=1e300, **where))
        if units == 4:
            before = left_of_peers()
    assert left_of_peers() == before
    assert before[1:] == (0, 0)


@pytest.mark.parallel([2])
def test_a_run_over_peer_memory_that_diverges_closes_its_exchange_on_all_ranks(driver, digits, monkeypatch):
    closed = []
    close = peer.PeerExchange.close
    monkeypatch.setattr(peer.PeerExchange, "close", lambda ended: (closed.append(ended), close(ended)))
    with pytest.raises(Diverged):
        run(using(device=driver.name, share_gpus=True, exchange="peer", data=digits(), lr=1e300, epochs=9))
    assert len(set(closed)) == 2  # that on the null device, which counted memory, and the run's
    assert join().comm.allgather(len(closed)) == [2, 2]
    assert left_of_peers()[1] == 0


@pytest.mark.parametrize("gemm", GEMM_VERSIONS)
def test_every_gemm_trains_the_network_of_the_reference(driver, gemm):
    if not runs_gemm(gemm, driver.architecture):
        pytest.skip("needs other tensor cores")
    assert run(using(device=driver.name, gemm=gemm, check=True, samples=110)).passed


@pytest.mark.parallel([2])
@pytest.mark.parametrize("exchange", choices())
def test_components_of_weights_follow_them_on_every_rank(driver, digits, monkeypatch, exchange):
    """Wherever these were updated: gradients of a rank whose products took old ones would be far off."""
    if not runs_gemm("wgmma", driver.architecture):
        pytest.skip("needs the tensor cores of sm_90")
    monkeypatch.setattr(host, "PIECE_BYTES", 2000)
    source = digits(320, test=10, shape=(6, 8))
    where = {"device": driver.name, "share_gpus": True, "gemm": "wgmma", "exchange": exchange}
    report = run(using(hidden=(72, 70), batch=160, epochs=3, lr=1.0, data=source, check=True, **where))
    assert report.passed, str(report.check)


@pytest.fixture
def sources(monkeypatch):
    """Those that are compiled before a run, and those that it loads."""
    compiled, loaded = set(), set()
    compile, load = KernelLibrary.compile_sources, KernelLibrary._load

    def noting_compile(library, sources):
        compiled.update(sources := list(sources))
        compile(library, sources)

    def noting_load(library, file, constants):
        if not isinstance(library.driver, NullDriver):
            loaded.add(library.source(file, constants))
        return load(library, file, constants)

    monkeypatch.setattr(KernelLibrary, "compile_sources", noting_compile)
    monkeypatch.setattr(KernelLibrary, "_load", noting_load)
    return compiled, loaded


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden": (72, 40)},
        {"hidden": (16,)},
        {"profile": True},
        {"batch": 20},
        {"math": "tf32"},
        {"math": "tf32", "profile": True},
        {"math": "bf16"},
        {"gemm": "mma"},
        {"gemm": "mma", "math": "tf32"},
        {"gemm": "tiled"},
        {"optimiser": "adam"},
    ],
    ids=str,
)
@pytest.mark.parametrize(("classes", "pixel"), [(10, np.uint8), (40, np.uint8), (10, np.float32)])
def test_all_kernels_of_a_run_are_compiled_by_one_rank(driver, digits, sources, changes, classes, pixel):
    """What is loaded later than that would be compiled by every rank of a node."""
    if driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    source = digits(100, test=45, dtype=pixel, shape=(6, 8), classes=classes)
    options = {"device": driver.name, "gemm": "wgmma", "hidden": (72,), "batch": 40, "data": source}
    run(using(epochs=1, **{**options, **changes}))
    compiled, loaded = sources
    assert loaded and loaded <= compiled


@pytest.mark.parallel([2])
@pytest.mark.parametrize("exchange", ["device", "peer", "hierarchical"])
@pytest.mark.parametrize("changes", [{}, {"plan": "model"}, {"optimiser": "adam"}], ids=str)
def test_so_are_those_that_sum_and_move_between_ranks(driver, digits, sources, exchange, changes):
    """By the first rank of a node, for all of them."""
    if exchange == "device" and not verdict(join(), driver).is_proven:
        pytest.skip("this MPI takes no device buffers")
    where = {"device": driver.name, "share_gpus": True, "exchange": exchange, "data": digits()}
    run(using(epochs=1, **where, **changes))
    compiled, loaded = sources
    compiled = join().comm.bcast(compiled)
    assert any("/comm/" in source for source in loaded) and loaded <= compiled


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_a_gpu_and_the_emulated_device_train_the_same_weights(driver, tmp_path, dtype, tolerance):
    """To rounding: a GPU contracts a b + c to one rounding, has an exp of its own, and may take another
    product with another order of sums. Over the four steps NumPy is 7e-7 and 1e-15 away from the emulated
    device for such reasons; a wrong kernel would be off by far more than the ten times that are allowed.
    """
    weights = {}
    for device in (driver.name, "emulated"):
        file = tmp_path / f"{device}.npz"
        options = using(hidden=(64,), batch=256, samples=1024, epochs=1, lr=1.0, reg=1e-4, dtype=dtype)
        run(dataclasses.replace(options, device=device, val_fraction=0.1, save=file))
        with np.load(file) as arrays:
            weights[device] = {name: arrays[name] for name in arrays.files if name != "run"}
    for name, expected in weights["emulated"].items():
        error = np.abs(weights[driver.name][name] - expected).max() / np.abs(expected).max()
        assert error < tolerance, name


@pytest.mark.kernels
@pytest.mark.parallel([1, 3])
def test_every_order_and_the_checks_give_the_same_bits(shared):
    """On the emulated device; the checks find nothing."""
    options = using(device="emulated", hidden=(9, 7), epochs=2, samples=50, batch=20, save=shared / "w.npz")
    runs = []
    for changes in ({}, {"sanitize": True}, {"order_seed": 1}, {"order_seed": 2}):
        run(using(options, **changes))
        runs.append(saved(options.save))
    assert all(weights == runs[0] for weights in runs)


@pytest.mark.parallel([4])
def test_more_ranks_than_samples_evaluate_as_one_does(digits, shared):
    """A test set of 2 and a validation set of 3 on 4 ranks: every rank has the scores of all samples."""
    options = using(
        data=digits(training=30, test=2),
        batch=3,
        val_fraction=0.1,
        dtype="float64",
        save=shared / "w.npz",
    )
    trained = run(options)
    evaluated = run(
        using(options, save=None, evaluate=True, init=shared / "w.npz", predictions=shared / "labels")
    )
    with np.load(shared / "w.npz") as file:
        weights = {name: file[name] for name in file.files if name != "run"}
    found = load_data(options.data)

    def precision(images, labels):
        network = Network.dense((12, 9, 3), "sigmoid", "softmax")
        _, logits = reference.forward(weights, images / 255, network)
        return (logits.argmax(axis=1) == labels).mean(), reference.losses(logits, labels, "softmax").mean()

    expected = precision(found.test_images, found.test_labels)
    assert (trained.test.precision, trained.test.loss) == pytest.approx(expected)
    assert evaluated.test == trained.test
    assert evaluated.test.samples == 2 and len((shared / "labels").read_text().splitlines()) == 2
    expected, _ = precision(found.images[27:], found.labels[27:])
    assert trained.epochs[-1].validation_precision == pytest.approx(expected)


@pytest.mark.parallel([3])
def test_all_ranks_raise_what_one_finds(tmp_path, digits):
    """Rank 0 alone reads and writes files; each of these raises on every rank, and the job goes on."""
    source = digits()
    for changes, error in [
        ({"save": tmp_path / "missing" / "w.npz"}, "--save"),
        ({"data": str(tmp_path / "missing.npz")}, "missing.npz"),
        ({"init": tmp_path / "missing.npz"}, "--init"),
        ({"evaluate": True, "init": tmp_path / "missing.npz", "data": source}, "--evaluate"),
        ({"lr": 1e300, "epochs": 9, "data": source}, "epoch"),
    ]:
        with pytest.raises(UserError, match=error):
            run(using(**changes))
    assert run(using(data=source)).epochs


@pytest.mark.parametrize(
    "how", [{"device": "cpu"}, {"device": "emulated"}, {"device": "emulated", "gemm": "tiled"}]
)
def test_math_without_tensor_cores_is_an_error(driver, how):
    with pytest.raises(UserError, match="--math tf32: goes with tensor cores, and"):
        run(using(math="tf32", **how))


@pytest.mark.parametrize("options", [{}, {"memory": True}, {"evaluate": True, "init": "w.npz"}])
@pytest.mark.parametrize("gemm", GEMM_VERSIONS)
def test_a_version_of_the_product_without_kernels_is_an_error(gemm, options):
    """Whatever the run is for; NumPy has one product."""
    with pytest.raises(
        UserError, match=f"--gemm {gemm}: needs kernels, and cpu, .*, runs none: use --device"
    ):
        run(using(device="cpu", gemm=gemm, **options))


@pytest.mark.parametrize("gemm", ["mma", "wgmma"])
def test_tensor_cores_that_are_not_there_are_an_error(driver, monkeypatch, gemm):
    monkeypatch.setattr(EmulatedDriver, "architecture", "sm_75")
    with pytest.raises(UserError, match=f"--gemm {gemm}: emulated, .*, has no such tensor cores: use --gemm"):
        run(using(device="emulated", gemm=gemm))


@pytest.mark.parallel([4])
def test_a_number_that_is_none_in_one_ranks_part_stops_all_at_the_same_step(driver, shared, capfd):
    """Pixels that overflow, of sample 47 of 80: in rank 1's part of the third batch."""
    job = join()
    if job.rank == 0:
        images = np.random.default_rng(0).random((80, 3, 4)).astype(np.float32)
        images[47] = 3e38
        np.savez(shared / "huge.npz", x_train=images, y_train=np.arange(80) % 3)
    job.comm.barrier()
    options = using(data=str(shared / "huge.npz"), activation="relu", pixel_scale=1.0, shuffle=False)
    for exchange in choices():
        where = "cpu" if exchange in ("root", "blocking") else driver.name
        nodes = 2 if exchange == "hierarchical" else None
        if exchange == "device" and not verdict(job, driver).is_proven:
            continue
        with pytest.raises(Diverged, match="the loss is nan at epoch 1, step 3: no result was") as caught:
            run(using(options, device=where, share_gpus=True, exchange=exchange, ranks_per_node=nodes))
        assert caught.value.code == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parallel([2])
def test_ranks_with_gpus_of_different_kinds_take_the_same_product(driver, monkeypatch):
    if driver.name != "emulated":
        pytest.skip("needs devices that say what they are told to")
    options = using(device="emulated", hidden=(72,), batch=40, samples=80, epochs=1, check=True)
    for other, gemm in (("sm_75", "tiled"), ("sm_80", "mma")):
        monkeypatch.setattr(EmulatedDriver, "architecture", "sm_90a" if join().rank == 0 else other)
        report = run(options)
        assert report.passed, str(report.check)
        assert set(join().comm.allgather(report.environment["gemm"])) == {gemm}
        with pytest.raises(UserError, match=r"--gemm wgmma: .*, has no such tensor cores"):
            run(using(options, gemm="wgmma"))
