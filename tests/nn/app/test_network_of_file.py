"""nn/app/network_of_file.py: --evaluate takes from a file what it is not told of the network, no more."""

import json
from dataclasses import replace

import numpy as np
import pytest

from nn.app.network_of_file import options_of_file, with_network_of_file
from nn.app.options import Options
from nn.files import net_files, parameters
from nn.model.initial import initial_values
from nn.model.net_text import layers_of_text, make_network
from nn.model.network import Network
from pyrt.errors import UserError
from pyrt.job import join
from tests.memory import peak_below
from tests.nn.model.net_json import as_json
from train import train

NETWORK = Network.dense((6, 5, 4, 3), "tanh", "sigmoid")
TOLD = {"hidden": [5, 4], "activation": "tanh", "head": "sigmoid", "classes": 3, "pixel_scale": 2.5}
"""All of a network of --hidden, as metadata tell it."""

NAMES = tuple(TOLD)

GIVEN = {"hidden": (5, 4), "activation": "tanh", "head": "sigmoid", "classes": 3, "pixel_scale": 2.5}
"""The same as options have it."""

OTHERS = {"hidden": (5,), "activation": "sigmoid", "head": "softmax", "classes": 4, "pixel_scale": 255.0}
"""Other values of each."""


NET = "conv2x2x4s2,relu,pool2,dense5,tanh,dense3"
CONVOLUTIONAL = make_network(NET, (6, 8), 3, "sigmoid")
TOLD_NET = {"net": NET, "head": "sigmoid", "classes": 3, "pixel_scale": 2.5}
"""All of a network of --net."""


@pytest.fixture
def arrays(request):
    """Of the network of --hidden, or of the one that a test names."""
    return initial_values(getattr(request, "param", NETWORK), "float64", 0)


of_net = pytest.mark.parametrize("arrays", [CONVOLUTIONAL], indirect=True, ids=["net"])


@pytest.fixture(params=[".npz", ".safetensors", ".pyrtz"])
def file(request, tmp_path):
    if request.param != ".npz":
        package = {".safetensors": "safetensors", ".pyrtz": "bitarray"}[request.param]
        pytest.importorskip(package, reason="make test installs it")
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


@pytest.mark.parametrize("arrays", [Network.dense((6, 3), "sigmoid", "sigmoid")], indirect=True)
@pytest.mark.parametrize("activation", ["sigmoid", []])
def test_a_network_without_hidden_layers_is_told_and_has_no_activation(told, refused, activation):
    options = {"hidden": [], "activation": activation, "head": "sigmoid", "pixel_scale": 2.5}
    assert told(options) == {"hidden": [], "head": "sigmoid", "pixel_scale": 2.5, "classes": 3}
    assert told(options, hidden=())["classes"] == 3
    refused(options, "trained with --hidden none, and --hidden 5 is given", hidden=(5,))
    refused({**TOLD, "hidden": [3]}, "of another network")


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


@of_net
def test_the_layers_of_a_net_are_told_and_no_hidden_ones(told):
    """Whatever metadata have as defaults."""
    for hidden, activation in ((None, None), ([512], "sigmoid"), ([], [])):
        assert told({**TOLD_NET, "hidden": hidden, "activation": activation}) == TOLD_NET
    network = Options(**told(TOLD_NET)).make_network((6, 8), 3)
    assert network == CONVOLUTIONAL
    assert told({**TOLD_NET, "classes": None}) == TOLD_NET


@of_net
@pytest.mark.parametrize("given", [NET, NET.replace(",", " , "), NET.replace("pool2", "pool2s2")])
def test_the_same_net_may_be_given(told, given):
    assert told(TOLD_NET, net=given) == {name: TOLD_NET[name] for name in TOLD_NET if name != "net"}
    assert told({**TOLD_NET, "classes": None}, net=given)["classes"] == 3


@pytest.mark.parametrize("arrays", [make_network("lenet5", (28, 28), 7, "softmax")], indirect=True, ids=["l"])
def test_a_name_may_be_given_for_the_layers_that_it_is(told, refused):
    """With a unit for each class of the file."""
    options = {"net": make_network("lenet5", (28, 28), 7, "softmax").text, "head": "softmax"}
    assert told(options, net="lenet5") == {"head": "softmax", "classes": 7}
    refused(options, "and --net mnist-conv is given: leave it out", net="mnist-conv")


@of_net
def test_another_net_or_hidden_layers_beside_a_net_do_not_agree(refused):
    refused(
        TOLD_NET, "trained with --net conv2x2x4s2", "and --net dense3 is given: leave it out", net="dense3"
    )
    refused(TOLD_NET, "trained with --net conv", "and --hidden 5,4 is given: leave it out", hidden=(5, 4))
    refused(TOLD_NET, "and --activation relu is given: leave it out", activation="relu")
    refused(TOLD_NET, "and --hidden 512 is given: leave it out", net=None, hidden=(512,))


def test_a_net_beside_hidden_layers_does_not_agree(refused):
    refused(TOLD, f"trained with --hidden 5,4, and --net {NET[:30]}", "is given: leave it out", net=NET)
    refused({"activation": "tanh"}, "trained with --activation tanh, and --net lenet5 is", net="lenet5")


def test_all_options_may_be_given_as_dataclasses_replace_does(told):
    """Then those that the other kind of network has are defaults."""
    assert told(TOLD, **GIVEN, net=None) == {}


@of_net
def test_all_options_may_be_given_with_a_net_too(told):
    assert told(TOLD_NET, **TOLD_NET, hidden=(512,), activation="sigmoid") == {}


@of_net
@pytest.mark.parametrize(
    "net",
    [
        *(
            "dense3",
            "conv2x2x4s2,pool2,dense5,dense4",
            "conv2x2x5s2,dense5,dense3",
            "conv2x3x4,dense5,dense3",
        ),
        *("conv2x2x4,conv2x2x5,dense3", "dense4,dense5,dense3", "dense999999999," * 50 + "dense3"),
        *("conv2x2x4,dense5,dense3,dense3", "conv999999999x2x4,dense5,dense3"),
    ],
)
def test_a_net_whose_parameters_the_file_does_not_have_is_refused(refused, net):
    """Before a network is made of it."""
    refused({**TOLD_NET, "net": net}, "trained with --net ", "of another network")


@of_net
@pytest.mark.parametrize(
    "net",
    [
        *(
            "",
            "lenet5",
            "dense3,relu",
            "conv2x2x3",
            "pool2",
            "relu",
            "x.json",
            "dense0",
            "dense3,",
            5,
            True,
            1.5,
        ),
        *("two\nlines", "\x1b[31m", "\ud800", "x" * 5000, "gap," * 2000 + "dense3", "pool17,dense3"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_net_that_train_py_does_not_have_is_refused(refused, net):
    refused({**TOLD_NET, "net": net}, "was trained with --net ", "does not have")
    refused({**TOLD_NET, "net": net}, "is given: leave it out", net=NET)


NOT_OURS = [
    *(("hidden", value) for value in ([0], [-5, 4], [5.0, 4], [True, 4], ["5", 4], [[5], 4], [2**31, 4])),
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
    with peak_below(1_000_000):
        assert options_of_file(tmp_path / "w.npz", {}) == {}


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


def without_files(monkeypatch):
    """The file of --net is on rank 0's node alone."""
    if join().rank > 0:
        monkeypatch.setattr(net_files, "load", lambda path: pytest.fail(f"{path} is read"))


@pytest.mark.parallel([1, 2])
def test_rank_0_alone_reads_the_file_of_a_net(shared, monkeypatch):
    """All ranks have its layers and its loss."""
    file = shared / "net.json"
    if join().rank == 0:
        file.write_text(json.dumps({"layers": as_json(layers_of_text(NET)), "loss": "sigmoid"}))
    without_files(monkeypatch)
    options = with_network_of_file(Options(net=str(file)), join())
    assert (options.net, options.head) == (NET, "sigmoid")
    with pytest.raises(UserError, match=r"^--net .*missing\.json: "):
        with_network_of_file(Options(net=str(shared / "missing.json")), join())


def test_a_loss_that_is_given_must_be_that_of_the_file(tmp_path):
    file = tmp_path / "net.json"
    file.write_text(json.dumps({"layers": as_json(layers_of_text(NET)), "loss": "softmax"}))
    with pytest.raises(UserError, match="has the loss softmax, and --head sigmoid is given: leave it out"):
        with_network_of_file(Options(net=str(file), head="sigmoid"), join())
    file.write_text(json.dumps({"layers": as_json(layers_of_text(NET))}))
    assert with_network_of_file(Options(net=str(file), head="sigmoid"), join()).head == "sigmoid"


@pytest.mark.parametrize("net", ["lenet5", "file", NET])
def test_a_run_of_a_net_is_evaluated_resumed_and_told_without_its_file(tmp_path, digits, net):
    """From the parameters, and from a checkpoint; the last layer of a name has a unit for each class."""
    data, saved = digits(40, 20, shape=(12, 12)), tmp_path / "w.npz"
    if net == "file":
        net = str(tmp_path / "net.json")
        (tmp_path / "net.json").write_text(json.dumps({"layers": as_json(layers_of_text(NET))}))
    options = Options(
        net=net, data=data, device="cpu", epochs=1, batch=10, save=saved, checkpoint=tmp_path / "kept"
    )
    trained = train(options)
    (tmp_path / "net.json").unlink(missing_ok=True)
    text = trained.options["net"]
    assert text == (make_network("lenet5", (12, 12), 3, "softmax").text if net == "lenet5" else NET)
    (kept,) = (tmp_path / "kept").glob("step-*.npz")
    for file in (saved, kept):
        scored = train(Options(evaluate=True, init=file, data=data, device="cpu"))
        assert scored.options["net"] == text
        assert scored.test.loss == pytest.approx(trained.test.loss, rel=1e-6)  # products of other sizes
    resumed = train(replace(options, net=text, epochs=2, resume=True))
    assert len(resumed.epochs) == 2
    with pytest.raises(UserError, match="--resume: the checkpoint was made with --net "):
        train(replace(options, net="dense3", epochs=2, resume=True))
