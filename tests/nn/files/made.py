"""The network of the tests of parameter files, and how they load its parameters."""

from nn.files import parameters
from nn.model.network import Network

NETWORK = Network.dense((6, 5, 3), "sigmoid", "softmax")


def load(file, dtype="float64"):
    return parameters.load(file, NETWORK, dtype)
