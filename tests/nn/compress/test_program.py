"""python -m nn.compress: small files that are read again, on any ranks; resumed, the same bits; mistakes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nn.app.options import Options
from nn.compress import __main__ as program
from nn.compress import steps
from nn.compress.options import KEPT, Wanted
from nn.compress.prune import prune_share
from nn.compress.sensitivity import KEPT as KEPT_SHARES
from nn.files import parameters, pyrtz
from nn.files.coding.shared_weights import SharedWeights
from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.network import Network
from nn.model.pool import MaxPool2d
from nn.train.check import precision_on
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.job import join
from tests import few
from tests.nn.small_runs import write_images
from train import train

pytest.importorskip("bitarray", reason="make test installs it")

QUICK = [
    "--rounds",
    "2",
    "--retrain-epochs",
    "2",
    "--share-epochs",
    "1",
    "--batch",
    "20",
    "--val-fraction",
    "0",
]
NET = "conv3x3x4,relu,pool2,dense9,relu,dense5"
NETWORK = Network((8, 8, 1), [Conv2d(4, 3, activation="relu"), MaxPool2d(2), Dense(9, "relu"), Dense(5)])


@pytest.fixture
def trained(shared: Path) -> Path:
    """A small network of a convolution and two dense layers, and its data beside it."""
    file = shared / "trained.npz"
    if join().rank == 0:
        write_images(shared / "data.npz", (8, 8))
    join().comm.barrier()
    options = Options(
        data=str(shared / "data.npz"), net=NET, epochs=3, batch=20, val_fraction=0, device="cpu", save=file
    )
    train(options, join())
    join().comm.barrier()
    return file


def compress(monkeypatch: pytest.MonkeyPatch, trained: Path, *words: object, device: str = "cpu") -> None:
    """Run the program in the process of the test."""
    data = ["--data", str(trained.parent / "data.npz"), "--device", device]
    monkeypatch.setattr(sys, "argv", ["nn.compress", str(trained), *data, *QUICK, *map(str, words)])
    assert program.main(join()) == 0
    join().comm.barrier()


def weights(path: Path) -> dict[str, SharedWeights]:
    found = pyrtz.read_compressed(path)
    return {
        name: array for name, array in found.items() if isinstance(array, SharedWeights) and name[0] == "W"
    }


def kept(path: Path) -> list[int]:
    return [len(array.places) for array in weights(path).values()]


OPTIMISERS = [["--momentum", "0.9"], ["--optimiser", "adam", "--lr", "0.001"]]


@pytest.mark.parallel(few([3], of=[1, 2, 3, 4]))
@pytest.mark.parametrize("optimiser", few(OPTIMISERS[1:], of=OPTIMISERS))
def test_a_network_becomes_light(
    monkeypatch: pytest.MonkeyPatch,
    trained: Path,
    capsys: pytest.CaptureFixture[str],
    optimiser: Sequence[str],
) -> None:
    """Of each layer so many weights are left, with so many values; what is told of it is so."""
    out, told = trained.parent / "light.pyrtz", trained.parent / "told.json"
    compress(
        monkeypatch, trained, *optimiser, "--prune", "0.3,0.9,0.5", "--bits", 3, "--out", out, "--json", told
    )
    if join().rank > 0:
        return
    sizes = [NETWORK.shapes[name] for name in ("W1", "W2", "W3")]
    shares = (0.3, 0.9, 0.5)
    wanted = [np.prod(size) - round(s * np.prod(size)) for size, s in zip(sizes, shares, strict=True)]
    assert kept(out) == wanted
    assert all(len(np.unique(array.weights)) <= 7 for array in weights(out).values())
    content = json.loads(told.read_text())
    assert [step["name"] for step in content["steps"]] == [
        *("as trained", "pruned, round 1 of 2", "pruned, round 2 of 2", "shared"),
    ]
    assert content["rates"]["total"]["file_bytes_huffman"] == out.stat().st_size
    names = ["float32", "compressed", "signed bytes", "signs"]
    assert [way["name"] for way in content["ways"]] == names
    # Rows of bytes take multiples of 64, those of signs of 16; each has a scale. Only layer 2 has signs.
    in_bytes, in_signs = (64 + 4) * 18 + 4 * 18, 4 * (36 + 45 + 18) + (16 + 4) * 9
    sizes = [way["nbytes"] for way in content["ways"]]
    assert sizes == [4 * (405 + 18), out.stat().st_size, in_bytes, in_signs]
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.match(
        rf"{re.escape(str(out))}: {out.stat().st_size} bytes, 1/[0-9.]+ of float32's; error", last
    )
    assert not list(trained.parent.glob("*progress*"))


def test_train_py_evaluates_the_file_as_it_was_told(monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    out, told = trained.parent / "light.pyrtz", trained.parent / "told.json"
    compress(monkeypatch, trained, "--prune", "0.5", "--bits", "4", "--out", out, "--json", told)
    report = train(Options(data=str(trained.parent / "data.npz"), init=out, evaluate=True, device="cpu"))
    assert report.test is not None
    after = json.loads(told.read_text())["steps"][-1]
    assert report.test.precision == after["accuracy"]
    assert report.test.loss == pytest.approx(after["loss"], rel=1e-6)


@pytest.mark.parallel(few([1], of=[1, 2, 3, 4]))
def test_in_kernels(monkeypatch: pytest.MonkeyPatch, trained: Path, driver: Driver) -> None:
    out = trained.parent / "light.pyrtz"
    words = ["--prune", "0.5", "--bits", "3", "--out", out, "--rounds", "1", "--retrain-epochs", "1"]
    compress(monkeypatch, trained, *words, device=driver.name)
    if join().rank == 0:
        assert kept(out) == [18, 162, 23]
        assert all(len(np.unique(array.weights)) <= 7 for array in weights(out).values())


ALONE = [
    (["--prune", "0", "--bits", "4"], [36, 324, 45], True),
    (["--prune", "0.5", "--bits", "0"], [18, 162, 23], False),
    (["--threshold", "std:0,0,0", "--bits", "1"], [36, 324, 45], True),
]


@pytest.mark.parametrize(
    ("words", "left", "has_codes"),
    few(ALONE[1:], of=ALONE),
)
def test_pruning_and_sharing_alone(
    monkeypatch: pytest.MonkeyPatch, trained: Path, words: Sequence[str], left: Sequence[int], has_codes: bool
) -> None:
    out = trained.parent / "light.pyrtz"
    compress(monkeypatch, trained, *words, "--out", out)
    assert kept(out) == left
    assert all((array.codes is not None) == has_codes for array in weights(out).values())


@pytest.mark.parallel(few([2], of=[1, 2, 3]))
@pytest.mark.parametrize("after", few([1], of=[1, 2]))
def test_an_interrupted_run_goes_on_and_ends_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, trained: Path, after: int
) -> None:
    """Stopped once so many rounds are kept. Other options are not gone on with."""
    whole, out = trained.parent / "whole.pyrtz", trained.parent / "light.pyrtz"
    compress(monkeypatch, trained, "--out", whole)
    keep = steps.Progress.keep

    def kept_then_stopped(self: steps.Progress, done: list[steps.Step]) -> None:
        keep(self, done)
        if len(done) > after:
            raise UserError("stopped")

    with monkeypatch.context() as patched, pytest.raises(UserError, match="stopped"):
        patched.setattr(steps.Progress, "keep", kept_then_stopped)
        compress(patched, trained, "--out", out)
    join().comm.barrier()
    assert not out.exists()
    with pytest.raises(UserError, match="of other options"):
        compress(monkeypatch, trained, "--out", out, "--resume", "--bits", "2")
    compress(monkeypatch, trained, "--out", out, "--resume")
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.long
def test_the_scan_scores_each_layer_alone(
    monkeypatch: pytest.MonkeyPatch, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="make test installs it")
    figure, told = trained.parent / "figure.png", trained.parent / "told.json"
    compress(monkeypatch, trained, "--sensitivity", figure, "--json", told)
    accuracy = json.loads(told.read_text())["sensitivity"]["accuracy"]
    assert list(accuracy) == ["W1", "W2", "W3"]
    assert len({found[0] for found in accuracy.values()}) == 1  # with all weights
    values, place = parameters.load(trained, NETWORK, "float32"), KEPT_SHARES.index(0.2)
    values["W2"] = prune_share(values["W2"], 0.8)
    with np.load(trained.parent / "data.npz") as data:
        samples = data["x_test"].reshape(-1, 64), data["y_test"]
    assert accuracy["W2"][place] == precision_on(samples, values, NETWORK, 255)
    assert figure.read_bytes().startswith(b"\x89PNG") and "kept %" in capsys.readouterr().out


def test_by_default_shares_are_the_papers() -> None:
    lenet = Wanted().shares_of(Network((784,), [Dense(300, "relu"), Dense(100, "relu"), Dense(10)]))
    assert [round(1 - share, 6) for share in lenet.values()] == [0.08, 0.08, 0.26]
    assert [round(1 - share, 6) for share in Wanted().shares_of(NETWORK).values()] == [
        *(KEPT["first convolution"], KEPT["dense"], KEPT["last dense"]),
    ]
    assert Wanted().bits_of(NETWORK) == {1: 8, 2: 6, 3: 6}


def test_the_learning_rate_is_a_tenth(monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    """Of the file's; but of another optimiser's usual one where that is asked for."""
    from nn.compress.options import parse, with_file

    rates = []
    for words in ([], ["--lr", "0.3"], ["--optimiser", "adam"]):
        line = with_file(parse([str(trained), "--out", "x.pyrtz", *words]), join())
        rates.append((line.options.optimiser, line.options.lr, line.options.batch))
    assert rates == [("sgd", 0.07 / 10, 20), ("sgd", 0.3, 20), ("adam", 1e-3 / 10, 20)]


MISTAKES = [
    ([], "--out FILE.pyrtz"),
    (["--out", "light.npz"], "call it FILE.pyrtz"),
    (["--out", "/none/light.pyrtz"], "--out"),
    (["--out", "x.pyrtz", "--prune", "1"], "--prune 1"),
    (["--out", "x.pyrtz", "--prune", "0.5,0.5"], "3 layers with weights"),
    (["--out", "x.pyrtz", "--prune", "0.5", "--threshold", "std:1"], "leave one of them out"),
    (["--out", "x.pyrtz", "--threshold", "0.7"], "--threshold"),
    (["--out", "x.pyrtz", "--bits", "17"], "--bits 17"),
    (["--out", "x.pyrtz", "--bits", "4,5,6,7"], "3 layers with weights"),
    (["--out", "x.pyrtz", "--index-bits", "0"], "--index-bits"),
    (["--sensitivity", "x.png", "--resume"], "--resume"),
    (["--out", "x.pyrtz", "--plan", "model"], "--plan model"),
]


def test_mistakes_are_one_line(monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    monkeypatch.chdir(trained.parent)
    before = set(trained.parent.iterdir())
    for words, message in MISTAKES:
        with pytest.raises(UserError) as caught:
            compress(monkeypatch, trained, *words)
        assert message in str(caught.value) and "\n" not in str(caught.value), words
        assert set(trained.parent.iterdir()) == before, words


def test_data_without_test_images_are_refused(monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    with np.load(trained.parent / "data.npz") as data:
        np.savez(trained.parent / "data.npz", x_train=data["x_train"], y_train=data["y_train"])
    with pytest.raises(UserError, match="no test images"):
        compress(monkeypatch, trained, "--out", trained.parent / "light.pyrtz")


def test_a_file_of_another_network_is_refused(monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    values = parameters.load(trained, NETWORK, "float32")
    run = parameters.run_metadata(trained)
    values["W2"] = values["W2"][:-1]
    parameters.save(trained, values, run)
    with pytest.raises(UserError, match="another network"):
        compress(monkeypatch, trained, "--out", trained.parent / "light.pyrtz")
