"""nn/model/network.py: stages, shapes and counts; the table; layers that do not fit each other or kernels."""

import pytest

from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.network import Network, Stage
from nn.model.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from pyrt.errors import UserError


def test_shapes_in_the_order_of_the_files():
    network = Network.dense((784, 512, 256, 10), "sigmoid", "softmax")
    assert list(network.shapes.items()) == [
        ("W1", (512, 784)),
        ("b1", (512,)),
        ("W2", (256, 512)),
        ("b2", (256,)),
        ("W3", (10, 256)),
        ("b3", (10,)),
    ]
    assert (network.depth, list(network.numbers), network.classes) == (3, [1, 2, 3], 10)
    assert network.parameter_count == 512 * 785 + 256 * 513 + 10 * 257


def test_in_words():
    network = Network.dense((784, 512, 10), "relu", "sigmoid")
    assert str(network) == "784-512-10, relu, sigmoid cross-entropy per class"


def test_a_layer_beyond_32_bit_indices_is_refused():
    Network.dense((1 << 16, (1 << 15) - 1, 10), "sigmoid", "softmax")
    with pytest.raises(UserError, match=r"layer 1 .*--hidden"):
        Network.dense((1 << 16, 1 << 15, 10), "sigmoid", "softmax")


CONVOLUTIONS = Network(
    (12, 11, 2),
    [
        MaxPool2d(2, 1),
        Conv2d(4, 3, activation="relu"),
        MaxPool2d(2),
        AvgPool2d(2, 1),
        Conv2d(5, (2, 1), padding=1),
        Dense(7, "tanh"),
        Dense(3),
    ],
)
"""With layers without parameters before the first, between others, and none behind some."""


class TestStages:
    def test_a_layer_with_parameters_has_those_that_follow_it(self):
        pool, first, behind, mean, second, dense, last = CONVOLUTIONS.layers
        assert CONVOLUTIONS.stages == (
            Stage(None, (pool,), ((12, 11, 2), (11, 10, 2)), -1),
            Stage(first, (behind, mean), ((11, 10, 2), (9, 8, 4), (4, 4, 4), (3, 3, 4)), 1),
            Stage(second, (), ((3, 3, 4), (4, 5, 5)), 4),
            Stage(dense, (), ((4, 5, 5), (7,)), 5),
            Stage(last, (), ((7,), (3,)), 6),
        )

    def test_what_a_stage_takes_makes_and_passes_on(self):
        shapes = [(stage.input, stage.made, stage.output) for stage in CONVOLUTIONS.stages]
        assert shapes == [
            ((12, 11, 2), (12, 11, 2), (11, 10, 2)),
            ((11, 10, 2), (9, 8, 4), (3, 3, 4)),
            ((3, 3, 4), (4, 5, 5), (4, 5, 5)),
            ((4, 5, 5), (7,), (7,)),
            ((7,), (3,), (3,)),
        ]

    def test_numbers_are_of_layers_with_parameters(self):
        assert (CONVOLUTIONS.depth, list(CONVOLUTIONS.numbers)) == (4, [1, 2, 3, 4])
        assert [CONVOLUTIONS.layer(n) for n in CONVOLUTIONS.numbers] == [
            layer for layer in CONVOLUTIONS.layers if layer.has_parameters
        ]
        assert [CONVOLUTIONS.activation(n) for n in CONVOLUTIONS.numbers] == [
            "relu",
            "identity",
            "tanh",
            "identity",
        ]
        assert CONVOLUTIONS.sizes == (220, 36, 100, 7, 3) and CONVOLUTIONS.classes == 3

    def test_parameters(self):
        assert list(CONVOLUTIONS.shapes.items()) == [
            ("W1", (4, 3, 3, 2)),
            ("b1", (4,)),
            ("W2", (5, 2, 1, 4)),
            ("b2", (5,)),
            ("W3", (7, 100)),
            ("b3", (7,)),
            ("W4", (3, 7)),
            ("b4", (3,)),
        ]
        assert CONVOLUTIONS.matrix(1) == (4, 18) and CONVOLUTIONS.matrix(3) == (7, 100)
        assert CONVOLUTIONS.parameter_count == 4 * 19 + 5 * 9 + 7 * 101 + 3 * 8

    def test_of_dense_layers_alone_each_is_one(self):
        network = Network.dense((12, 9, 3), "tanh", "softmax")
        assert [stage.followers for stage in network.stages] == [(), (), ()]
        assert network.is_dense and not CONVOLUTIONS.is_dense


def test_an_image_of_two_dimensions_has_one_channel():
    layers = [Conv2d(4, 3), Dense(3)]
    assert Network((8, 9), layers).layer_shapes == Network((8, 9, 1), layers).layer_shapes
    assert Network((8, 9), layers).shapes["W1"] == (4, 3, 3, 1)


def test_the_table_has_a_line_a_layer():
    layers = [Conv2d(6, 5, 1, 2, "relu"), MaxPool2d(2), Conv2d(16, 3), GlobalAvgPool2d(), Dense(10)]
    network = Network((28, 28), layers)
    assert network.table() == [
        ("conv5x5x6p2 relu", "28x28x6", 156),
        ("pool2", "14x14x6", 0),
        ("conv3x3x16", "12x12x16", 880),
        ("gap", "1x1x16", 0),
        ("dense10", "10", 170),
    ]
    text = "conv5x5x6p2,relu,pool2,conv3x3x16,gap,dense10"
    assert network.text == text
    assert str(network) == f"28x28x1, {text}, softmax cross-entropy"


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([Conv2d(3, 2)], "the last layer, conv2x2x3, makes no logits: end with a dense layer"),
        ([Dense(4), GlobalAvgPool2d()], "the last layer, gap, makes no logits"),
        (
            [Conv2d(4, 3, activation="relu"), MaxPool2d(2), MaxPool2d(4), Dense(3)],
            r"^layer 3: pool4: a window of 4 x 4 does not fit images of 3 x 3 "
            r"\(up to it: 8x9x1, conv3x3x4 -> 6x7x4, pool2 -> 3x3x4\)$",
        ),
        (
            [Dense(5), Conv2d(4, 3), Dense(3)],
            r"^layer 2: conv3x3x4: takes images \(height, width, channels\), not 5 numbers .* dense5 -> 5\)$",
        ),
        ([Conv2d(1 << 20, 3), Conv2d(1 << 15, 3), Dense(3)], "^layer 2 would have 32768 x 9437184 weights"),
    ],
)
def test_layers_that_do_not_fit(layers, words):
    with pytest.raises(UserError, match=words):
        Network((8, 9, 1), layers)
