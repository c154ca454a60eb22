"""train.py's `train`: whole runs in process on one rank, against the reference and plain loops."""

import dataclasses
import json
import threading
from contextlib import nullcontext

import numpy as np
import pytest

from nn.app import load as load_module
from nn.app import pipeline, start
from nn.app.console import Console
from nn.app.options import Options
from nn.input import load as load_data
from nn.model import reference
from nn.model.initial import initial_values
from nn.model.network import Network
from nn.optimisers import Sgd
from nn.train import latency
from nn.train.diverged import Diverged
from nn.train.memory_needs import lines_of
from pyrt import clock, devices
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.exchange import local
from pyrt.log import log
from tests import few
from tests.nn.small_runs import saved, using
from train import train


def test_the_trained_weights_are_those_of_a_loop_written_out(tmp_path):
    """No batches, split or step of nn's own: only the data and the equations."""
    options = using(
        samples=70, batch=30, momentum=0.8, shuffle=False, dtype="float64", save=tmp_path / "w.npz"
    )
    train(options)
    digits = load_data(options.data)
    network = Network.dense((784, 9, 10), "sigmoid", "softmax")
    start = initial_values(network, "float64", options.seed)
    slices = [slice(0, 30), slice(30, 60), slice(60, 70)] * 2
    batches = [(digits.images[rows] / 255.0, digits.labels[rows]) for rows in slices]
    expected = reference.train(start, batches, network, Sgd(0.5, 0.8, 0.01))
    with np.load(options.save) as trained:
        for name, array in expected.items():
            np.testing.assert_allclose(trained[name], array, rtol=0, atol=1e-12 * np.abs(array).max())


def test_a_small_run_learns():
    report = train(Options(hidden=(32,), epochs=3, batch=100, lr=0.5, momentum=0.0, device="cpu"))
    losses = [epoch.loss for epoch in report.epochs]
    assert losses == sorted(losses, reverse=True)
    assert report.epochs[0].validation_precision < report.epochs[-1].validation_precision
    assert report.test.precision > 0.7


@pytest.mark.long
def test_the_defaults_learn_from_the_first_epoch_on():
    """The loss of no epoch is above that of the one before."""
    report = train(Options(epochs=10, device="cpu"))
    losses = [epoch.loss for epoch in report.epochs]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 3 and report.epochs[-1].validation_precision > 0.7


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_the_defaults_learn_to_the_end(seed):
    assert train(Options(seed=seed, device="cpu")).test.precision >= 0.89


def test_what_there_is_to_know_of_a_device_is_said_before_all_else(digits, monkeypatch, capsys):
    warned = devices.Device(CpuDriver(), "", ("kernels are not kept", "ranks share one GPU"))
    monkeypatch.setattr(start, "open_device", lambda *_: warned)
    train(using(data=digits(), epochs=1), console=Console(speaking=True))
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["warning: kernels are not kept", "warning: ranks share one GPU"]


def test_the_loss_of_an_epoch_is_the_mean_over_its_samples(digits):
    """Without a step that changes anything: the loss of the initial weights, batches short or full."""
    options = using(data=digits(), lr=1e-30, dtype="float64", epochs=1)
    images = load_data(options.data).images / 255
    network = Network.dense((12, 9, 3), "sigmoid", "softmax")
    _, logits = reference.forward(initial_values(network, "float64", 0), images, network)
    expected = reference.losses(logits, np.arange(50) % 3, "softmax").mean()
    assert train(options).epochs[0].loss == pytest.approx(expected, rel=1e-12)


def test_no_epochs_score_and_save_the_initial_weights(tmp_path):
    report = train(using(epochs=0, save=tmp_path / "w.npz"))
    start = initial_values(Network.dense((784, 9, 10), "sigmoid", "softmax"), "float32", 0)
    assert report.epochs == []
    assert report.test.samples == 33
    assert saved(tmp_path / "w.npz") == {name: (a.dtype.str, a.tobytes()) for name, a in start.items()}


@pytest.mark.parametrize(("fraction", "test"), [(0.0, 0), (0.2, 0), (0.0, 7), (0.2, 7)])
def test_precisions_are_there_for_the_sets_that_are_there(digits, fraction, test):
    report = train(using(data=digits(test=test), val_fraction=fraction))
    assert all((epoch.validation_precision is not None) == (fraction > 0) for epoch in report.epochs)
    assert (report.test is not None) == (test > 0)


def test_the_validation_set_is_the_end_of_the_training_set(digits):
    """The last 10 of 50 images validate, also if batches are shuffled or samples are fewer."""
    source = digits()
    report = train(using(data=source, val_fraction=0.2, samples=11, epochs=1, lr=1e-30))
    held_out = load_data(source)
    network = Network.dense((12, 9, 3), "sigmoid", "softmax")
    start = initial_values(network, "float64", 0)
    _, logits = reference.forward(start, held_out.images[40:] / 255, network)
    expected = (logits.argmax(axis=1) == held_out.labels[40:]).mean()
    assert report.epochs[0].validation_precision == pytest.approx(expected)


def test_evaluate_scores_as_the_training_run_did_and_writes_the_labels(tmp_path):
    weights, labels = tmp_path / "w.npz", tmp_path / "labels"
    of_digits = using(data="embedded", head="sigmoid")
    trained = train(using(of_digits, save=weights))
    evaluated = train(using(of_digits, evaluate=True, init=weights, predictions=labels))
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


LATENCIES = [(True, [1, 20]), (50, [1, 32, 50]), (1, [1]), (None, [])]


@pytest.mark.parametrize(
    ("device", "given", "numbers"),
    [
        *(("cpu", *one) for one in LATENCIES),
        *(
            pytest.param("emulated", *one, marks=pytest.mark.kernels)
            for one in few(LATENCIES[:1], of=LATENCIES)
        ),
    ],
)
def test_evaluate_times_one_image_32_and_a_batch(tmp_path, monkeypatch, device, given, numbers):
    """By calls whose logits are the reference's, also for more images than a batch or the test set, and in
    memory that was counted before."""
    monkeypatch.setattr(clock, "WARM_UP", 0.0)
    monkeypatch.setattr(clock, "SPAN", 0.05)
    seen = {}

    def measured(inference, images, counts):
        found = latency.measure(inference, images, counts)
        seen["outputs"] = inference.outputs.copy()
        seen["lines"] = lines_of(
            inference._driver.ledger, inference._model.shard, inference._model.parameters.layout
        )
        return found

    monkeypatch.setattr(pipeline, "measure", measured)
    train(using(epochs=0, save=tmp_path / "w.npz"))
    report = train(using(evaluate=True, init=tmp_path / "w.npz", device=device, latency=given))
    assert [one.images for one in report.latency] == numbers
    report.write_json(tmp_path / "r.json")
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["latency"] == [dataclasses.asdict(one) for one in report.latency]
    assert written["options"]["latency"] == given
    if not numbers:
        assert not seen
        return
    assert all(one.calls >= 3 and 0 < one.median <= one.p99 for one in report.latency)
    network, images = Network.dense((784, 9, 10), "sigmoid", "softmax"), load_data(using().data).test_images
    X = images[np.arange(numbers[-1]) % len(images)] / 255.0
    _, expected = reference.forward(initial_values(network, "float64", 0), X, network)
    np.testing.assert_allclose(seen["outputs"], expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert seen["lines"] == report.memory.lines


def test_init_goes_on_where_save_left_off(tmp_path):
    train(using(epochs=1, shuffle=False, save=tmp_path / "one.npz"))
    train(using(epochs=1, shuffle=False, init=tmp_path / "one.npz", save=tmp_path / "two.npz"))
    train(using(epochs=2, shuffle=False, save=tmp_path / "both.npz"))
    assert saved(tmp_path / "two.npz") == saved(tmp_path / "both.npz")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_check_passes_on_images_of_floats_too(digits, dtype):
    report = train(using(data=digits(test=9, dtype=np.float32), dtype=dtype, check=True, pixel_scale=254.0))
    assert report.passed, str(report.check)


@pytest.mark.parametrize("placement", few(["resident"], of=["resident", "stream"]))
def test_float64_pixels_come_to_the_device_as_they_are(tmp_path, driver, placement):
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.random((50, 3, 4)), "y_train": np.arange(50) % 3}
    np.savez(tmp_path / "fine.npz", **arrays, x_test=rng.random((9, 3, 4)), y_test=np.arange(9) % 3)
    source = {"data": str(tmp_path / "fine.npz"), "dtype": "float64", "pixel_scale": 1.0}
    report = train(using(device=driver.name, placement=placement, check=True, **source))
    assert report.passed, str(report.check)
    assert max(one.max_norm for one in report.check.differences) < 1e-12  # float32 pixels: 1e-8
    assert report.test.loss == pytest.approx(train(using(**source)).test.loss, rel=1e-12)


def test_what_is_suspicious_is_said_before_all_else(capsys, tmp_path):
    images, labels = np.random.default_rng(0).random((50, 3, 4)), np.repeat([0, 1, 3], [20, 20, 10])
    np.savez(tmp_path / "odd.npz", x_train=images, y_train=labels)
    options = using(data=str(tmp_path / "odd.npz"), val_fraction=0.2, epochs=1)
    train(options, console=Console(speaking=True))
    lines = capsys.readouterr().out.splitlines()
    starts = [
        "warning: training pixels",
        "warning: no training image is of class 2",
        "warning: 10 of 10 valid",
    ]
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=False))
    assert lines[3].startswith("ranks ")
    train(using(options, pixel_scale=1.0, classes=4, val_split="random"), console=Console(speaking=True))
    assert capsys.readouterr().out.startswith("ranks ")


def test_more_classes_than_the_labels_have(tmp_path, digits):
    options = using(data=digits(test=7), classes=5, save=tmp_path / "w.npz")
    trained = train(options)
    assert trained.environment["network"].startswith("12-9-5,") and len(trained.test.recall) == 5
    split = {"val_fraction": 0.1, "val_split": "stratified"}
    scoring = using(options, save=None, evaluate=True, init=tmp_path / "w.npz", **split)
    assert train(scoring).test == trained.test
    with pytest.raises(
        UserError, match=r"W2 of shape \(5, 9\).*give the --hidden and --classes it was saved"
    ):
        train(using(scoring, classes=None))


def test_check_fails_past_the_tolerance():
    report = train(using(check=True, tolerance=1e-30, samples=40))
    assert not report.passed


def test_raw_pixels_are_the_same_network_with_scaled_weights(tmp_path, digits):
    """W1 / 255 on pixels as they are computes what W1 does on scaled ones."""
    source, init = digits(test=9), tmp_path / "w.npz"
    scaled = initial_values(Network.dense((12, 9, 3), "sigmoid", "softmax"), "float64", 0)
    np.savez(init, **scaled)
    scores = train(using(data=source, evaluate=True, init=init, dtype="float64")).test
    np.savez(init, **{**scaled, "W1": scaled["W1"] / 255})
    raw = train(using(data=source, evaluate=True, init=init, dtype="float64", pixel_scale=1.0)).test
    assert raw.loss == pytest.approx(scores.loss, rel=1e-12)


def test_steps_are_printed_as_often_as_asked(capsys, digits):
    train(using(data=digits(), epochs=3, print_every=2), console=Console(speaking=True))
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split() for line in lines if line.startswith("step")]
    assert [(words[1], words[3]) for words in steps] == [("2", "1"), ("4", "2"), ("6", "2"), ("8", "3")]
    assert sum(line.startswith("epoch") for line in lines) == 3


def test_without_a_console_nothing_is_printed(capsys, digits):
    train(using(data=digits(test=3), print_every=1))
    assert capsys.readouterr() == ("", "")


def test_a_batch_larger_than_the_set_is_one_batch_and_says_so(capsys, digits):
    train(using(data=digits(), batch=51, print_every=1), console=Console(speaking=True))
    text = capsys.readouterr().out
    assert "--batch 51 is more than the training set" in text
    assert text.count("\nstep") == 2


@pytest.mark.parametrize("rate", [0.1, 1e300])
def test_the_exchange_is_closed_however_a_run_ends(digits, monkeypatch, rate):
    closed = []
    monkeypatch.setattr(local.LocalExchange, "close", lambda exchange: closed.append(exchange))
    with pytest.raises(Diverged) if rate > 1 else nullcontext():
        train(using(data=digits(), lr=rate, epochs=3))
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
        train(options)
    assert caught.value.code == 1
    assert save.read_bytes() == b"old" and not report.exists()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_weights_that_the_last_step_made_useless_are_not_saved(tmp_path, digits):
    """The loss of each step is that of the weights before it."""
    save = tmp_path / "w.npz"
    with pytest.raises(Diverged):
        train(using(data=digits(), lr=1e300, dtype="float32", epochs=1, batch=50, save=save))
    assert not save.exists()


@pytest.mark.parametrize("option", ["save", "json"])
def test_what_cannot_be_written_is_found_before_anything_is_read(tmp_path, option):
    with pytest.raises(UserError, match=f"--{option} "):
        train(using(data="missing.npz", **{option: tmp_path / "missing" / "file"}))


def test_predictions_that_cannot_be_written_are_found_before_anything_is_read(tmp_path):
    with pytest.raises(UserError, match=r"--predictions "):
        train(using(data="missing.npz", evaluate=True, init=tmp_path / "missing.npz", predictions=tmp_path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": (8,)}, "W1 of shape (9, 784)"),
        ({"hidden": (9, 9)}, "W2 of shape (10, 9)"),
        ({"init": "missing.npz"}, "missing.npz"),
    ],
)
def test_parameters_of_another_network(tmp_path, changes, words):
    train(using(epochs=0, save=tmp_path / "w.npz"))
    changes = {"init": "w.npz", **changes}
    with pytest.raises(UserError) as caught:
        train(using(**{**changes, "init": tmp_path / changes["init"]}))
    assert "--init" in str(caught.value) and words in str(caught.value)


def test_evaluate_without_a_test_set(tmp_path, digits):
    with pytest.raises(UserError, match=r"--evaluate.*no test images"):
        train(using(data=digits(), evaluate=True, init=tmp_path / "w.npz"))


def test_a_network_too_large_for_the_kernels():
    with pytest.raises(UserError, match="--hidden"):
        train(using(hidden=(10**9,)))


def test_samples_beyond_all_memory():
    with pytest.raises(UserError, match="memory"):
        train(using(samples=10**15))


def test_cuda_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(devices, "usable_gpus", lambda: ([], "no GPU here"))
    with pytest.raises(UserError, match=r"--device cuda: no GPU here.*--device cpu"):
        train(using(device="cuda"))
    assert train(using(device="auto", epochs=0)).environment["device"] == "cpu"


def test_what_a_run_waits_for_is_said(monkeypatch, capsys):
    """A run says what is logged, whatever thread does: here the one that reads the data."""
    load = load_data
    monkeypatch.setattr(load_module, "load_data", lambda *what: log.info("this takes long") or load(*what))
    train(using(epochs=0), console=Console(speaking=True))
    assert capsys.readouterr().out.startswith("this takes long\nranks ")


def test_the_data_are_read_while_the_device_starts(monkeypatch):
    reads, load, open_device = threading.Event(), load_data, start.open_device
    monkeypatch.setattr(load_module, "load_data", lambda *what: reads.set() or load(*what))
    monkeypatch.setattr(start, "open_device", lambda *how: reads.wait(60) and open_device(*how))
    assert train(using(epochs=0)).environment["device"] == "cpu"
