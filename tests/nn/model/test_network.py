"""nn/model/network.py: shapes and counts that follow from the sizes; layers too large for the kernels."""

import pytest

from nn.model.network import Network
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
