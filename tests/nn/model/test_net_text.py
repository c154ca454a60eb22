"""nn/model/net_text.py: every form of text and JSON, the known networks, and what is said of wrong ones."""

import json
import math

import numpy as np
import pytest

from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.dropout import Dropout
from nn.model.net_text import NAMES, layers_of_json, layers_of_text, make_network
from nn.model.network import Network
from nn.model.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from pyrt.errors import UserError
from tests.nn.model.net_json import as_json

FORMS = {
    "conv3x5x8": Conv2d(8, (3, 5)),
    "conv3x3x8s2": Conv2d(8, 3, stride=2),
    "conv3x3x8p1": Conv2d(8, 3, padding=1),
    "conv11x11x96s4p2": Conv2d(96, 11, 4, 2),
    "conv3x3x8same": Conv2d(8, 3, padding="same"),
    "conv3x3x8s2same": Conv2d(8, 3, 2, "same"),
    "pool2": MaxPool2d(2),
    "pool3s2": MaxPool2d(3, 2),
    "avgpool2": AvgPool2d(2),
    "avgpool3s1": AvgPool2d(3, 1),
    "gap": GlobalAvgPool2d(),
    "dense10": Dense(10),
    "dropout0.25": Dropout(0.25),
}


@pytest.mark.parametrize(("text", "layer"), FORMS.items())
def test_every_form(text, layer):
    assert layers_of_text(text) == [layer]
    assert str(layer) == text


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
def test_an_activation_is_of_the_layer_before(activation):
    expected = [Conv2d(4, 3, activation=activation), MaxPool2d(2), Dense(5, activation), Dense(3)]
    assert layers_of_text(f" conv3x3x4 , {activation},pool2,dense5,{activation}, dense3") == expected


def test_no_activation_may_be_called_identity():
    network = Network((6, 5, 1), [Conv2d(4, 3, activation="identity"), Dense(5, "identity"), Dense(3)])
    assert network.text == "conv3x3x4,dense5,dense3"
    assert [name for name, _, _ in network.table()] == ["conv3x3x4", "dense5", "dense3"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'', word 1, is no layer"),
        ("dense5,,dense3", "'', word 2, is no layer: give convRxCxF .*poolN, avgpoolN, gap, denseN"),
        ("conv3x3", "'conv3x3', word 1, is no layer"),
        ("conv3x3x4p1s2", "'conv3x3x4p1s2', word 1"),  # the stride comes first
        ("conv3x3x4p1same", "'conv3x3x4p1same', word 1"),
        ("conv3x3x-4", "'conv3x3x-4', word 1"),
        ("Conv3x3x4", "'Conv3x3x4', word 1"),
        ("dense5,pool", "'pool', word 2"),
        ("gap2", "'gap2', word 1"),
        ("dense1.5", "'dense1.5', word 1"),
        ("dense٣", "word 1, is no layer"),
        ("dense5,dropout1.5", "'dropout1.5', word 2"),
        ("dense5,lenet5", "'lenet5', word 2"),
        ("dense1234567890", "'dense1234567890', word 1"),
        ("relu", "relu, word 1, belongs right behind a conv or dense layer"),
        ("dense5,relu,tanh", "tanh, word 3, belongs right behind"),
        ("conv3x3x4,pool2,relu", "relu, word 3, belongs right behind"),
        ("dense5,dense0", r"dense0, word 2: Dense\(0\): must have a unit or more"),
        ("conv3x3x0", "conv3x3x0, word 1: Conv2d: number of filters 0 is not"),
        ("conv0x3x4", "conv0x3x4, word 1: Conv2d: size 0 is not"),
        ("conv3x3x4s0", "conv3x3x4s0, word 1: Conv2d: stride 0 is not"),
        ("conv3x3x4,pool0", "pool0, word 2: MaxPool2d: size 0 is not"),
        ("pool2s0", "pool2s0, word 1: MaxPool2d: stride 0 is not"),
        ("avgpool2s0", "avgpool2s0, word 1: AvgPool2d: stride 0 is not"),
        ("pool17", "pool17, word 1: MaxPool2d: a window of 17 x 17 has more than 256 pixels"),
    ],
)
def test_of_what_is_no_layer_the_place_is_said(text, words):
    with pytest.raises(UserError, match=f"^--net: .*{words}") as caught:
        layers_of_text(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "image", "classes", "parameters"),
    [
        ("lenet5", (28, 28, 1), 10, 61_706),
        ("mnist-conv", (28, 28), 10, 1_199_882),  # Keras's first example
        ("vgg-small", (32, 32, 3), 10, 3_248_202),
        ("alexnet", (224, 224, 3), 1000, 62_378_344),  # without groups
        ("vgg16", (224, 224, 3), 1000, 138_357_544),
    ],
)
def test_known_networks_have_as_many_parameters_as_is_known(name, image, classes, parameters):
    network = make_network(name, image, classes, "softmax")
    assert network.parameter_count == parameters
    assert network.classes == classes
    assert sum(count for _, _, count in network.table()) == parameters


def test_shapes_of_known_networks():
    """Of what convolutions and pools leave for the dense layers."""
    shapes = {"lenet5": (5, 5, 16), "mnist-conv": (12, 12, 64), "vgg-small": (4, 4, 256)}
    shapes |= {"alexnet": (6, 6, 256), "vgg16": (7, 7, 512)}
    images = {"lenet5": (28, 28, 1), "mnist-conv": (28, 28, 1), "vgg-small": (32, 32, 3)}
    assert set(shapes) == set(NAMES)
    for name, shape in shapes.items():
        network = make_network(name, images.get(name, (224, 224, 3)), 7, "sigmoid")
        assert [s for s in network.layer_shapes if len(s) == 3][-1] == shape
        assert (network.classes, network.loss) == (7, "sigmoid")


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (
            "conv3x3x4,pool3,pool9,dense10",
            r"layer 3: pool9: a window of 9 x 9 does not fit images of 8 x 8 "
            r"\(up to it: 28x28x1, conv3x3x4 -> 26x26x4, pool3 -> 8x8x4\)",
        ),
        ("conv3x30x4,dense10", r"layer 1: conv3x30x4: .* does not fit .* \(up to it: 28x28x1\)"),
        (
            "dense5,relu,pool2,dense10",
            r"layer 2: pool2: takes images \(height, width, channels\), not 5 numbers "
            r"\(up to it: 28x28x1, dense5 -> 5\)",
        ),
        ("alexnet,dense10", "'alexnet', word 1, is no layer"),
        ("alexnet", r"layer \d+: .* \(up to it: 28x28x1, conv11x11x96s4p2 -> 6x6x96, "),
        ("conv3x3x10", "the last layer, conv3x3x10, makes no logits: end with a dense layer"),
        ("dense20,gap", r"the last layer, gap, makes no logits"),
        ("dense10,relu", "the last layer makes the logits: give it no activation"),
        ("conv3x3x4,relu,dense9", "ends with 9 units, and the data have 10 classes"),
        ("dense999999999,dense10", r"layer 1 would have 999999999 x 784 weights, more than"),
    ],
)
def test_of_a_net_that_cannot_be_the_layer_is_said_and_the_shapes_up_to_it(net, words):
    with pytest.raises(UserError, match=f"^--net: .*{words}") as caught:
        make_network(net, (28, 28, 1), 10, "softmax")
    assert "\n" not in str(caught.value)


def test_images_without_shape_are_for_dense_layers_alone():
    assert make_network("dense5,tanh,dense10", (784,), 10, "softmax") == Network.dense(
        (784, 5, 10), "tanh", "softmax"
    )
    with pytest.raises(UserError, match=r"^--net: layer 1: conv5x5x6p2: takes images .* not 784 numbers"):
        make_network("lenet5", (784,), 10, "softmax")


def random_layers(rng):
    """Layers that fit images of 24 x 20, activations among them."""
    layers, side = [], 20
    activations = [None, "sigmoid", "tanh", "relu"]
    while side > 4:
        activation, kind = activations[rng.integers(4)], rng.integers(4)
        if kind < 2:
            padding = [0, 1, 2, "same"][rng.integers(4)]
            size = tuple(int(n) for n in rng.integers(1, 4, 2))
            layer = Conv2d(int(rng.integers(1, 5)), size, int(rng.integers(1, 3)), padding, activation)
        else:
            layer = (MaxPool2d, AvgPool2d)[kind - 2](2, [None, 1, 2, 3][rng.integers(4)])
        layers.append(layer)
        side = min(Network((24, 20, 3), [*layers, Dense(1)]).layer_shapes[-2][:2])
    layers += [Dropout(float(rng.random()))] * int(rng.integers(2))
    layers += [GlobalAvgPool2d()] * int(rng.integers(2)) + [Dense(6, activations[rng.integers(4)])]
    return [*layers, Dense(4)]


def test_text_and_json_of_any_network_make_it_again():
    for seed in range(50):
        network = Network((24, 20, 3), random_layers(np.random.default_rng(seed)))
        assert tuple(layers_of_text(network.text)) == network.layers
        assert make_network(network.text, (24, 20, 3), 4, "softmax") == network
        again = json.loads(json.dumps(as_json(network.layers)))
        assert tuple(layers_of_json(again)) == network.layers


def test_all_that_json_says():
    content = [
        {"kind": "conv", "filters": 4, "size": [3, 2], "stride": 2, "padding": "same", "activation": "relu"},
        {"kind": "conv", "filters": 4, "size": 3},
        {"kind": "pool", "size": 3, "stride": 2},
        {"kind": "avgpool", "size": 2},
        {"kind": "gap"},
        {"kind": "dense", "units": 5, "activation": "tanh"},
        {"kind": "dense", "units": 2, "activation": None},
    ]
    assert layers_of_json(content) == [
        Conv2d(4, (3, 2), 2, "same", "relu"),
        Conv2d(4, 3),
        MaxPool2d(3, 2),
        AvgPool2d(2),
        GlobalAvgPool2d(),
        Dense(5, "tanh"),
        Dense(2),
    ]


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (5, "has no 'kind' of conv, pool, avgpool, gap, dense"),
        ({}, "has no 'kind'"),
        ({"kind": "lstm"}, "has no 'kind'"),
        ({"kind": ["conv"]}, "has no 'kind'"),
        ({"kind": "conv", "filters": 4}, ": a conv layer needs more of filters, size, stride, padding"),
        ({"kind": "pool"}, ": a pool layer needs more of size, stride"),
        ({"kind": "dense", "units": 4, "size": 2}, ": a dense layer has no 'size': units, activation"),
        ({"kind": "gap", "size": 2}, ": a gap layer has no 'size'"),
        ({"kind": "dense", "units": 2.5}, r": Dense\(2.5\): must have a unit"),
        ({"kind": "dense", "units": math.inf}, ": units is none that a dense layer can have"),
        ({"kind": "dense", "units": 2, "activation": "Relu"}, ": Dense: activation 'Relu' is none of"),
        ({"kind": "dense", "units": 2, "activation": ["relu"]}, ": activation is none that a dense"),
        ({"kind": "conv", "filters": 4, "size": [3, 3, 3]}, ": size is none that a conv layer can have"),
        ({"kind": "conv", "filters": 4, "size": {"rows": 3}}, ": size is none that a conv"),
        ({"kind": "conv", "filters": 4, "size": 3, "padding": "valid"}, ": Conv2d: padding 'valid'"),
        ({"kind": "conv", "filters": 4, "size": 3, "padding": ["same"]}, ": padding is none that a conv"),
        ({"kind": "pool", "size": True}, ": size is none that a pool"),
        ({"kind": "pool", "size": [2, 2]}, r": MaxPool2d: size \[2, 2\] is not"),
    ],
)
def test_of_json_that_is_no_layer_the_place_is_said(layer, words):
    with pytest.raises(UserError, match=f"^--net: layer 2 ?{words}"):
        layers_of_json([{"kind": "gap"}, layer])
