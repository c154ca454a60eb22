"""nn/model/reference.py: gradients against finite differences, heads at any logits, descent step by step."""

from dataclasses import replace

import numpy as np
import pytest

from nn.model import reference
from nn.model.net_text import make_network
from nn.model.network import Network
from nn.model.pool import MaxPool2d
from nn.optimisers import Adam, Sgd
from tests import few

STEP = 1e-5
"""Of the central differences: their error is about STEP^2 + eps / STEP, 1e-10 of the cost."""

HUGE = 1e300


def random_parameters(rng, sizes):
    """Of a network of these sizes, all of them random."""
    parameters = {}
    for layer in range(1, len(sizes)):
        parameters[f"W{layer}"] = rng.normal(0, 1, (sizes[layer], sizes[layer - 1]))
        parameters[f"b{layer}"] = rng.normal(0, 1, sizes[layer])
    return parameters


def hidden_inputs(parameters, X, network):
    """All inputs of hidden units, flat."""
    A, _ = reference.forward(parameters, X, network)
    Z = [A[layer - 1] @ parameters[f"W{layer}"].T + parameters[f"b{layer}"] for layer in range(1, len(A))]
    return np.concatenate([z.ravel() for z in Z])


def problem(seed, activation, hidden_layers, loss="softmax"):
    """Network, parameters, images and labels of random sizes.

    Drawn again until every hidden unit's input keeps away from 0 by far more than a difference moves it,
    so that no difference reaches over the kink of relu.
    """
    rng = np.random.default_rng(seed)
    while True:
        sizes = rng.integers(2, 8, hidden_layers + 2)
        network = Network.dense([int(size) for size in sizes], activation, loss)
        parameters, X = random_parameters(rng, sizes), rng.normal(0, 1, (rng.integers(1, 10), sizes[0]))
        if np.abs(hidden_inputs(parameters, X, network)).min() > 100 * STEP:
            return network, parameters, X, rng.integers(0, sizes[-1], len(X))


def central_difference(cost, array):
    """The gradient of ``cost()`` for an array that it reads, which is changed and changed back."""
    gradient = np.empty_like(array)
    for index, value in np.ndenumerate(array):
        array[index] = value + STEP
        above = cost()
        array[index] = value - STEP
        gradient[index] = (above - cost()) / (2 * STEP)
        array[index] = value
    return gradient


@pytest.mark.parametrize("seed", few(range(1), of=range(3)))
@pytest.mark.parametrize("hidden_layers", [1, 3])
@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
def test_gradients_are_those_of_finite_differences(activation, head, hidden_layers, seed):
    network, parameters, X, labels = problem(seed, activation, hidden_layers, head)

    def cost():
        return reference.cost_and_gradients(parameters, X, labels, network, reg=0.1)[0]

    _, gradients = reference.cost_and_gradients(parameters, X, labels, network, reg=0.1)
    assert gradients.keys() == parameters.keys()
    for name, gradient in gradients.items():
        expected = central_difference(cost, parameters[name])
        assert np.linalg.norm(gradient - expected) <= 1e-6 * np.linalg.norm(expected), name


def distance_to_kinks(parameters, X, network):
    """How far inputs of relu are from 0, and the largest pixels of windows from the second largest."""
    A, _ = reference.forward(parameters, X, network)
    distances, number = [np.inf], 0
    for layer, a in zip(network.layers, A, strict=True):
        number += layer.has_parameters
        if layer.activation == "relu":
            mine = {name: parameters[f"{name}{number}"] for name in "Wb"}
            distances.append(np.abs(replace(layer, activation=None).forward(mine, a)).min())
        if isinstance(layer, MaxPool2d) and layer.size > 1:
            w = layer.window(a.shape[1:])
            windows = np.empty((len(a), w.out_height, w.out_width, w.rows, w.columns, w.channels))
            w.gather(a, windows)
            ordered = np.sort(windows.reshape(*windows.shape[:3], -1, w.channels), axis=3)
            apart = ordered[..., -1, :] - ordered[..., -2, :]
            distances.append(apart[ordered[..., -1, :] != 0].min(initial=np.inf))  # 0: of relu, and stays so
    return min(distances)


@pytest.mark.parametrize("seed", few([0], of=range(2)))
@pytest.mark.parametrize(
    ("net", "loss"),
    [
        ("conv3x3x3p1,tanh,pool2,conv2x2x2,sigmoid,dense5,relu,dense3", "softmax"),
        ("conv3x2x2s2p2,relu,pool3s2,dense3", "sigmoid"),
        ("pool2s1,conv3x3x2same,relu,avgpool2,conv1x1x3,tanh,gap,dense3", "softmax"),
        ("avgpool2,dense4,tanh,dense3", "softmax"),
    ],
)
def test_gradients_of_convolutional_networks_are_those_of_finite_differences(net, loss, seed):
    """Drawn again until no difference reaches over a kink."""
    network, rng = make_network(net, (5, 6, 2), 3, loss), np.random.default_rng(seed)
    while True:
        parameters = {name: rng.normal(0, 0.7, shape) for name, shape in network.shapes.items()}
        X, labels = rng.normal(0, 1, (3, 60)), rng.integers(0, 3, 3)
        if distance_to_kinks(parameters, X, network) > 20 * STEP:
            break

    def cost():
        return reference.cost_and_gradients(parameters, X, labels, network, reg=0.1)[0]

    _, gradients = reference.cost_and_gradients(parameters, X, labels, network, reg=0.1)
    assert list(gradients) == list(network.shapes)
    for name, gradient in gradients.items():
        assert gradient.shape == network.shapes[name]
        expected = central_difference(cost, parameters[name])
        assert np.linalg.norm(gradient - expected) <= 1e-6 * np.linalg.norm(expected), name


def test_cost_is_the_mean_loss_and_half_the_decay_of_weights_alone():
    network, parameters, X, labels = problem(0, "tanh", 1)
    _, Z = reference.forward(parameters, X, network)
    cost, _ = reference.cost_and_gradients(parameters, X, labels, network, reg=0.5)
    squares = sum((array**2).sum() for name, array in parameters.items() if name[0] == "W")
    assert cost == pytest.approx(reference.losses(Z, labels, "softmax").mean() + 0.25 * squares)


def test_softmax_by_its_formula():
    Z, labels = np.random.default_rng(0).normal(0, 5, (20, 7)), np.arange(20) % 7
    Y = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(reference.probabilities(Z, "softmax"), Y, rtol=1e-13)
    np.testing.assert_allclose(
        reference.losses(Z, labels, "softmax"), -np.log(Y[np.arange(20), labels]), rtol=1e-12
    )


def test_sigmoid_head_by_its_formula():
    Z, labels = np.random.default_rng(0).normal(0, 5, (20, 7)), np.arange(20) % 7
    Y, T = 1 / (1 + np.exp(-Z)), np.eye(7)[labels]
    np.testing.assert_allclose(reference.probabilities(Z, "sigmoid"), Y, atol=1e-15)
    losses = -(T * np.log(Y) + (1 - T) * np.log(1 - Y)).sum(axis=1)
    np.testing.assert_allclose(reference.losses(Z, labels, "sigmoid"), losses, rtol=1e-12)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("head", "logits", "label", "loss", "probabilities"),
    [
        ("softmax", [HUGE, -HUGE], 0, 0, [1, 0]),
        ("softmax", [HUGE, -HUGE], 1, 2 * HUGE, [1, 0]),
        ("softmax", [HUGE, HUGE], 1, np.log(2), [0.5, 0.5]),
        ("softmax", [-HUGE, -HUGE], 0, np.log(2), [0.5, 0.5]),
        ("softmax", [700, -700], 1, 1400, [1, 0]),
        ("softmax", [1000, 1000], 0, np.log(2), [0.5, 0.5]),
        ("softmax", [-1000, -1000], 0, np.log(2), [0.5, 0.5]),
        ("softmax", [0, 1 / HUGE], 0, np.log(2), [0.5, 0.5]),
        ("sigmoid", [HUGE, -HUGE], 0, 0, [1, 0]),
        ("sigmoid", [HUGE, -HUGE], 1, 2 * HUGE, [1, 0]),
        ("sigmoid", [-HUGE, -HUGE], 0, HUGE, [0, 0]),
        ("sigmoid", [HUGE, HUGE], 1, HUGE, [1, 1]),
        ("sigmoid", [700, -700], 1, 1400, [1, 0]),
        ("sigmoid", [0, 1 / HUGE], 0, 2 * np.log(2), [0.5, 0.5]),
    ],
)
def test_extreme_logits_neither_overflow_nor_give_log_of_zero(head, logits, label, loss, probabilities):
    """Nor do they disturb a sample of other logits beside them."""
    Z, labels = np.array([logits, [0.5, -0.5]]), np.array([label, 1])
    losses, Y = reference.losses(Z, labels, head), reference.probabilities(Z, head)
    np.testing.assert_allclose(losses[0], loss, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(Y[0], probabilities, atol=1e-15)
    np.testing.assert_allclose(losses[1:], reference.losses(Z[1:], labels[1:], head), rtol=1e-12)
    np.testing.assert_allclose(Y[1:], reference.probabilities(Z[1:], head), rtol=1e-12)


def test_train_descends_with_momentum_from_a_copy():
    network, start, X, labels = problem(0, "sigmoid", 1)
    before = {name: array.copy() for name, array in start.items()}
    batches = [(X[:2], labels[:2]), (X[2:], labels[2:])]
    trained = reference.train(start, batches, network, Sgd(0.3, 0.9, 0.1))

    def gradients(parameters, batch):
        return reference.cost_and_gradients(parameters, *batch, network, 0.1)[1]

    first = gradients(start, batches[0])
    between = {name: start[name] - 0.3 * first[name] for name in start}
    second = gradients(between, batches[1])
    for name in start:
        step = 0.3 * (0.9 * first[name] + second[name])
        np.testing.assert_allclose(trained[name], between[name] - step, rtol=1e-13, atol=1e-15)
        np.testing.assert_array_equal(start[name], before[name])


def test_train_takes_the_steps_of_adam():
    """Each with averages of its own number of gradients, biased to zero by less and less."""
    network, start, X, labels = problem(1, "tanh", 1)
    batches = [(X, labels)] * 3
    trained = reference.train(start, batches, network, Adam(0.01, 0.8, 0.9, 1e-3, 0.1))
    p = {name: array.copy() for name, array in start.items()}
    m, v = ({name: np.zeros_like(array) for name, array in start.items()} for _ in range(2))
    for bias1, bias2 in ((0.2, 0.1), (0.36, 0.19), (0.488, 0.271)):  # 1 - 0.8^t, 1 - 0.9^t
        _, gradients = reference.cost_and_gradients(p, X, labels, network, 0.1)
        for name, g in gradients.items():
            m[name] = 0.8 * m[name] + 0.2 * g
            v[name] = 0.9 * v[name] + 0.1 * g * g
            p[name] = p[name] - 0.01 * (m[name] / bias1) / (np.sqrt(v[name] / bias2) + 1e-3)
    for name in start:
        np.testing.assert_allclose(trained[name], p[name], rtol=1e-12, atol=1e-14)


def test_two_softmax_units_are_one_logistic_neuron():
    """w = w1 - w0 and b = b1 - b0 learn as a neuron with twice the rate and half the decay, from there on."""
    generator = np.random.default_rng(5)
    network, lr, momentum, reg = Network.dense((6, 2), "sigmoid", "softmax"), 0.3, 0.8, 0.01
    parameters = {"W1": generator.standard_normal((2, 6)), "b1": generator.standard_normal(2)}
    batches = [(generator.standard_normal((9, 6)), generator.integers(0, 2, 9)) for _ in range(5)]
    w, b = (parameters[name][1] - parameters[name][0] for name in ("W1", "b1"))
    v_w, v_b = np.zeros(6), 0.0
    for X, t in batches:
        error = (1 / (1 + np.exp(-(X @ w + b))) - t) / len(X)
        v_w, v_b = momentum * v_w + X.T @ error + reg / 2 * w, momentum * v_b + error.sum()
        w, b = w - 2 * lr * v_w, b - 2 * lr * v_b
    trained = reference.train(parameters, batches, network, Sgd(lr, momentum, reg))
    np.testing.assert_allclose(trained["W1"][1] - trained["W1"][0], w, rtol=1e-12)
    np.testing.assert_allclose(trained["b1"][1] - trained["b1"][0], b, rtol=1e-12)
    _, Z = reference.forward(trained, X, network)
    entropy = np.logaddexp(0, X @ w + b) - t * (X @ w + b)
    np.testing.assert_allclose(reference.losses(Z, t, "softmax"), entropy, rtol=1e-12)
