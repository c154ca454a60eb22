"""nn/files/net_files.py: networks in JSON files, whole, damaged and hostile."""

import json
import os

import pytest

from nn.files import net_files
from nn.model.net_text import MOST_LAYERS, NAMES, layers_of, layers_of_text
from nn.model.network import text_of
from pyrt.errors import UserError
from tests.nn.model.net_json import as_json

DENSE = {"kind": "dense", "units": 3}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "net.json"


@pytest.fixture
def refused(file):
    """Checks that such a file is refused in one short line that names it and has all of ``words``."""

    def check(content, *words):
        file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        with pytest.raises(UserError) as caught:
            net_files.load(file)
        message = str(caught.value)
        assert message.startswith(f"--net {file}: ") and caught.value.code == 2
        assert message.isprintable() and len(message) < 400
        assert all(word in message for word in words), message

    return check


@pytest.mark.parametrize(
    "net", [*NAMES, "conv2x3x4s2same,tanh,avgpool3s1,gap,dense5,sigmoid,dropout0.25,dense2"]
)
def test_a_file_says_what_its_text_says(file, net):
    layers = layers_of(net, 7)
    file.write_text(json.dumps({"layers": as_json(layers)}))
    text, loss = net_files.load(file)
    assert loss is None and layers_of_text(text) == layers and text == text_of(layers)


def test_a_file_may_say_the_loss(file):
    file.write_text(json.dumps({"layers": [DENSE], "loss": "sigmoid"}))
    assert net_files.load(file) == ("dense3", "sigmoid")


@pytest.mark.parametrize("name", ["net.json", "a/b.JSON", "lenet5.json"])
def test_a_net_that_ends_in_json_is_a_file(name):
    assert net_files.is_file(name)
    assert not net_files.is_file(name[:-5]) and not net_files.is_file(None)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"no JSON", b"[" * 100_000, b"\xff\xfe", b"[]", b"{}", b"null", b" " * 2_000_000),
        {"layers": [DENSE], "losses": "softmax"},
        {"loss": "softmax"},
    ],
    ids=lambda content: str(content)[:20],
)
def test_what_is_no_network_is_refused(refused, content):
    refused(content, 'is not {"layers": [')


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ({"0": DENSE}, "no list"),
        ([], "no layers"),
        ([DENSE] * (MOST_LAYERS + 1), f"more than {MOST_LAYERS}"),
        ([DENSE, 5], "layer 2 has no 'kind'"),
        ([DENSE, {"kind": "magic\n" * 100}], "layer 2 has no 'kind'"),
        ([{**DENSE, "x" * 1000: 1}], "layer 1: a dense layer has no 'xxx"),
        ([{**DENSE, "\x1b[31m": 1}], "layer 1: a dense layer has no"),
        ([{"kind": "dense"}], "layer 1: a dense layer needs more of units, activation"),
        ([{**DENSE, "units": 0}], "layer 1: Dense(0)"),
        ([{**DENSE, "units": 10**9}], "layer 1: units is none"),
        ([{**DENSE, "units": 2.5}], "layer 1: Dense(2.5)"),
        ([{**DENSE, "units": True}], "layer 1: units is none"),
        ([{**DENSE, "units": "3"}], "layer 1: Dense('3')"),
        ([{**DENSE, "activation": "x" * 50}], "layer 1: activation is none"),
        ([{**DENSE, "activation": "softplus"}], "layer 1: Dense: activation 'softplus'"),
        ([{"kind": "conv", "filters": 3, "size": [1, 2, 3]}], "layer 1: size is none"),
        ([{"kind": "conv", "filters": 3, "size": [1, 0]}], "layer 1: Conv2d: size 0"),
        ([{"kind": "conv", "filters": 3, "size": 1, "padding": "full"}], "padding 'full'"),
        ([{"kind": "dropout", "rate": 1}], "layer 1: Dropout: rate 1 is not 0"),
        ([{"kind": "dropout", "rate": [1, 2]}], "layer 1: Dropout: rate [1, 2]"),
        ([{"kind": "pool", "size": 17}], "layer 1: MaxPool2d"),
        ([{"kind": "pool", "size": [2, 2]}], "layer 1: MaxPool2d"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_layer_is_refused_with_its_place(refused, layers, words):
    refused({"layers": layers}, words)


@pytest.mark.parametrize("loss", ["hinge", 1, ["softmax"], {}])
def test_a_loss_that_there_is_not_is_refused(refused, loss):
    refused({"layers": [DENSE], "loss": loss}, "softmax, sigmoid")


def test_a_missing_file_a_folder_and_a_pipe_are_refused(file):
    for make in (lambda: None, file.mkdir, lambda: os.mkfifo(file)):
        make()
        with pytest.raises(UserError, match=r"^--net .*net\.json: "):
            net_files.load(file)
        if file.is_dir():
            file.rmdir()
