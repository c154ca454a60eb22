"""nn/app/network_of_file.py: --evaluate takes from a file what it is not told of the network, no more."""

import tracemalloc

import numpy as np
import pytest

from nn.app.network_of_file import NAMES, options_of_file
from nn.app.options import Options
from nn.files import parameters
from nn.model.initial import initial_values
from nn.model.network import Network
from pyrt.errors import UserError

NETWORK = Network.dense((6, 5, 4, 3), "tanh", "sigmoid")
TOLD = {"hidden": [5, 4], "activation": "tanh", "head": "sigmoid", "classes": 3, "pixel_scale": 2.5}
"""All of the network, as metadata tell it."""

GIVEN = {"hidden": (5, 4), "activation": "tanh", "head": "sigmoid", "classes": 3, "pixel_scale": 2.5}
"""The same as options have it."""

OTHERS = {"hidden": (5,), "activation": "sigmoid", "head": "softmax", "classes": 4, "pixel_scale": 255.0}
"""Other values of each."""


@pytest.fixture
def arrays():
    return initial_values(NETWORK, "float64", 0)


@pytest.fixture(params=[".npz", ".safetensors"])
def file(request, tmp_path):
    if request.param == ".safetensors":
        pytest.importorskip("safetensors", reason="make test installs it")
    return tmp_path / f"parameters{request.param}"


@pytest.fixture
def told(file, arrays):
    """Saves such options as the metadata of the parameters, and returns what --evaluate is told."""

    def look(options, **given):
        parameters.save(file, arrays, {"options": options})
        return options_of_file(file, given)

    return look


@pytest.fixture
def refused(file, told):
    """Checks that such metadata are refused in one line that names the file and has all of ``words``."""

    def check(options, *words, **given):
        with pytest.raises(UserError) as caught:
            told(options, **given)
        message = str(caught.value)
        assert message.startswith(f"--init {file}: ") and caught.value.code == 2
        assert message.isprintable() and len(message) < 500
        assert all(word in message for word in words), message

    return check


def test_what_is_not_given_is_told(told):
    assert told(TOLD) == TOLD
    for name in NAMES:
        assert told(TOLD, **{name: GIVEN[name]}) == {key: TOLD[key] for key in NAMES if key != name}
    assert told(TOLD, **GIVEN) == {}


def test_a_number_of_classes_that_is_given_as_none_is_that_of_the_data(told):
    """As `dataclasses.replace` gives it in Python."""
    assert told(TOLD, classes=None) == {name: TOLD[name] for name in NAMES if name != "classes"}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_given_must_agree_and_both_values_are_said(refused, name):
    flag = f"--{name.replace('_', '-')}"
    value = OTHERS[name]
    text = ",".join(map(str, value)) if name == "hidden" else str(value)
    mine = "5,4" if name == "hidden" else str(TOLD[name])
    words = f"was trained with {flag} {mine}, and {flag} {text} is given: leave it out"
    refused(TOLD, words, **{name: value})
    refused({name: TOLD[name]}, words, **{**GIVEN, name: value})


def test_a_scale_may_be_told_as_a_whole_number(told):
    assert told({**TOLD, "pixel_scale": 255}, **{**GIVEN, "pixel_scale": 255.0}) == {}


@pytest.mark.parametrize("classes", [None, "left out"])
def test_without_classes_in_the_metadata_the_biases_show_their_number(told, refused, classes):
    """A run without --classes has the data's, and others may show fewer."""
    options = {name: value for name, value in TOLD.items() if name != "classes" or classes is None}
    if classes is None:
        options["classes"] = None
    assert told(options) == TOLD
    assert told(options, hidden=(5, 4)) == {name: TOLD[name] for name in NAMES if name != "hidden"}
    refused(options, "trained with --classes 3, and --classes 9 is given", classes=9)


@pytest.mark.parametrize("hidden", [[5], [5, 5], [5, 4, 3], [5, 4, 4], [5, 4, 3, 2], [1] * 10_000])
def test_layers_that_the_file_does_not_have_are_refused(refused, hidden):
    """Before a network is made of them."""
    refused({**TOLD, "hidden": hidden}, "trained with --hidden", "of another network")


NOT_OURS = [
    *(("hidden", value) for value in ([], [0], [-5, 4], [5.0, 4], [True, 4], ["5", 4], [[5], 4], [2**31, 4])),
    *(("hidden", value) for value in ("5,4", 5, [[[[5]]]], [10**4000])),
    *(("activation", value) for value in ("identity", ["tanh", "relu"], ["tanh"], [], 5, True, "", "Tanh")),
    *(("activation", value) for value in ("two\nlines", "\x1b[31m", "\ud800", "x" * 5000, 10**4000)),
    *(("head", value) for value in ("hinge", 0, "softmax ")),
    *(("classes", value) for value in (0, -3, 2**16 + 1, 3.0, True, "3")),
    *(("pixel_scale", value) for value in (0, -1, np.nan, np.inf, 1e300, 1e-300, 10**400, True, "255")),
]


@pytest.mark.parametrize(("name", "value"), NOT_OURS, ids=lambda value: ascii(value)[:30])
def test_values_that_train_py_does_not_have_are_refused_in_one_short_line(refused, name, value):
    refused({**TOLD, name: value}, f"was trained with --{name.replace('_', '-')} ", "does not have")
    if value != TOLD[name]:  # else it is the same number, of another type
        refused({**TOLD, name: value}, "is given: leave it out", **{name: GIVEN[name]})


@pytest.mark.parametrize(
    "text",
    [
        *("", "no JSON", "null", "[]", "{}", '{"options": null}', '{"options": [1]}', '{"options": "tanh"}'),
        *('{"options": {"activation": null}}', '{"options": {"head": ["softmax"]}}', "[" * 100_000),
        *('{"options": {}}', '{"options": {"pixel_scale": {}, "hidden": null, "classes": []}}'),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_metadata_tells_nothing(tmp_path, arrays, text):
    np.savez(tmp_path / "w.npz", **arrays, run=np.array(text))
    assert options_of_file(tmp_path / "w.npz", {}) == {}
    assert options_of_file(tmp_path / "w.npz", OTHERS) == {}


@pytest.mark.parametrize(
    "metadata", [np.zeros(3), np.array(["{}", "{}"]), np.array(b"{}"), np.array(1)], ids=str
)
def test_an_array_that_is_no_text_is_no_metadata(tmp_path, arrays, metadata):
    np.savez(tmp_path / "w.npz", **arrays, run=metadata)
    assert options_of_file(tmp_path / "w.npz", {}) == {}


def test_a_file_without_metadata_tells_nothing(file, arrays, monkeypatch):
    parameters.save(file, arrays, {})
    assert options_of_file(file, {}) == {}


def test_a_text_of_megabytes_is_no_metadata_and_is_not_read(tmp_path, arrays):
    np.savez_compressed(tmp_path / "w.npz", **arrays, run=np.zeros((), "U16000000"))
    tracemalloc.start()
    assert options_of_file(tmp_path / "w.npz", {}) == {}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_file_that_cannot_be_read_tells_nothing(file):
    """What reads its parameters refuses it, and names the file."""
    assert options_of_file(file, {}) == {}
    file.write_bytes(b"neither")
    assert options_of_file(file, {}) == {}


def test_a_metadata_that_cannot_be_read_is_refused_in_one_line(tmp_path, arrays):
    file = tmp_path / "w.npz"
    np.savez(file, **arrays, run=np.array("x" * 1000))
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"x\0\0\0x", b"x\0\0\0y", 1))  # the zip's checksum finds it
    with pytest.raises(UserError, match=r"^--init .*w\.npz: run\.npy is damaged"):
        options_of_file(file, {})


def test_what_is_told_makes_the_network_that_was_trained(told):
    values = told(TOLD)
    options = Options(**{**values, "hidden": tuple(values["hidden"])})
    assert str(options.make_network((6,), options.classes)) == str(NETWORK)
