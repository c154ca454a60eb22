"""Files of a convolutional network's parameters: filters of four dimensions, in each format."""

import numpy as np
import pytest

from nn.app.options import Options
from nn.files import parameters
from nn.model.initial import initial_values
from nn.model.net_text import make_network
from nn.model.network import Network
from pyrt.errors import UserError
from train import train

NET = "conv2x3x4,relu,pool2,conv2x1x3,tanh,dense3"
NETWORK = make_network(NET, (7, 9), 3, "softmax")


@pytest.fixture(params=[".npz", ".safetensors"])
def file(request, tmp_path):
    if request.param == ".safetensors":
        pytest.importorskip("safetensors", reason="make test installs it")
    return tmp_path / f"w{request.param}"


@pytest.fixture
def arrays():
    return initial_values(NETWORK, "float64", 0)


@pytest.mark.parametrize("order", "CF")
def test_filters_come_back_bit_by_bit(file, arrays, order):
    """In whichever order they lie in memory."""
    parameters.save(file, {name: np.asarray(array, order=order) for name, array in arrays.items()}, {})
    found = parameters.load(file, NETWORK, "float64")
    assert found["W1"].shape == (4, 2, 3, 1) and found["W2"].shape == (3, 2, 1, 4)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def refused(file, network, *words):
    with pytest.raises(UserError) as caught:
        parameters.load(file, network, "float64")
    message = str(caught.value)
    assert message.startswith(f"--init {file}: ") and message.isprintable() and len(message) < 500
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("net", "image", "words"),
    [
        (NET.replace("2x3", "3x2"), (7, 9), ["has W1 of shape (4, 2, 3, 1)", "needs (4, 3, 2, 1)"]),
        (NET, (7, 9, 3), ["has W1 of shape (4, 2, 3, 1)", "needs (4, 2, 3, 3)"]),
        (NET, (14, 9), ["has W3 of shape (3, 18)", "needs (3, 45)"]),
        (NET.replace("conv2x1x3", "dense3"), (7, 9), ["has W2 of shape (3, 2, 1, 4)", "needs (3, 36)"]),
        (NET.replace("dense3", "dense5,dense3"), (7, 9), ["has W3 of shape (3, 18)", "needs (5, 18)"]),
        ("conv2x3x4,pool2,conv2x1x3,gap,dense3", (7, 9), ["has W3 of shape (3, 18)", "needs (3, 3)"]),
    ],
)
def test_the_parameters_of_another_net_are_refused(file, arrays, net, image, words):
    parameters.save(file, arrays, {})
    refused(file, make_network(net, image, 3, "softmax"), *words, "give the --net and --classes it was saved")


def test_more_layers_and_those_of_a_dense_network_are_refused(file, arrays):
    parameters.save(file, {**arrays, "W4": np.ones((3, 3)), "b4": np.ones(3)}, {})
    refused(file, NETWORK, "has W4, b4 too: give the --net it was saved with")
    refused(file, Network.dense((63, 4, 3), "relu", "softmax"), "has W1 of shape (4, 2, 3, 1)", "--hidden")


def test_a_run_begins_at_saved_filters(file, tmp_path):
    rng, images = np.random.default_rng(0), str(tmp_path / "data.npz")
    np.savez(images, x_train=rng.integers(0, 256, (30, 7, 9)).astype("u1"), y_train=np.arange(30) % 3)
    first = file.with_name(f"first{file.suffix}")
    train(Options(net=NET, data=images, device="cpu", epochs=1, batch=10, save=first))
    options = Options(net=NET, data=images, device="cpu", epochs=0, init=first, save=file)
    train(options)
    found, begun = (parameters.load(one, NETWORK, "float32") for one in (file, first))
    assert all(array.tobytes() == begun[name].tobytes() for name, array in found.items())
