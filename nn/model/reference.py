"""The network in NumPy, sequential: the equations, and the truth that everything else is compared with.

Activations are row-major (samples, *shape); ``parameters`` holds W1, b1, ..., WL, bL of the layers that have
any: of dense ones W_l (H_l, H_{l-1}), b_l (H_l,). With A_0 = X, the batch of B samples, T the labels one-hot:

    forward    A_l = layer l of A_{l-1}                         Y = head(Z_L), Z_L = A_L
    cost       J = 1/B sum of losses + reg/2 sum of W_l^2
    backward   dZ_L = (Y - T) / B             dZ_l = (dZ_{l+1} W_{l+1}) f'(Z_l)
               dW_l = dZ_l^T A_{l-1} + reg W_l           db_l = sum over samples of dZ_l

Both heads with their cross-entropy have the same dZ_L. Derivatives f' are written in components of A.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Function = Callable[[np.ndarray], np.ndarray]


def sigmoid(Z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-Z)), by the half-angle identity, which overflows for no Z."""
    return 0.5 * (1 + np.tanh(0.5 * Z))


ACTIVATIONS: dict[str, tuple[Function, Function]] = {
    "identity": (lambda Z: Z, lambda A: np.ones_like(A)),
    "sigmoid": (sigmoid, lambda A: A * (1 - A)),
    "tanh": (np.tanh, lambda A: 1 - A * A),
    "relu": (lambda Z: np.maximum(Z, 0), lambda A: (A > 0).astype(A.dtype)),
}
"""name -> f, and f' as a function of A = f(Z)."""


def log_softmax(Z: np.ndarray) -> np.ndarray:
    """Z less the log of the sum of its exp over the columns, (n, c), without overflow."""
    Z = Z - Z.max(axis=1, keepdims=True)
    return Z - np.log(np.exp(Z).sum(axis=1, keepdims=True))


def probabilities(Z: np.ndarray, head: str) -> np.ndarray:
    """Y (n, c) from logits Z (n, c)."""
    return np.exp(log_softmax(Z)) if head == "softmax" else sigmoid(Z)


def losses(Z: np.ndarray, labels: np.ndarray, head: str) -> np.ndarray:
    """Cross-entropy of each sample (n,) from logits Z (n, c): never log(0), whatever the logits."""
    rows = np.arange(len(Z))
    if head == "softmax":
        return -log_softmax(Z)[rows, labels]
    return np.logaddexp(0, Z).sum(axis=1) - Z[rows, labels]


def forward(parameters: Arrays, X: np.ndarray, network: Any) -> tuple[list[np.ndarray], np.ndarray]:
    """Inputs of all layers, and the logits, by the equations of the network's layers."""
    A = [X.reshape(len(X), *network.layer_shapes[0])]
    for layer, mine in zip(network.layers, _of_layers(parameters, network), strict=True):
        A.append(layer.forward(mine, A[-1]))
    return A[:-1], A[-1]


def _of_layers(parameters: Arrays, network: Any) -> list[Arrays]:
    """Parameters of each layer, named without its number: W, b; layers without any are not numbered."""
    numbers = itertools.count(1)
    return [_of(parameters, next(numbers)) if layer.has_parameters else {} for layer in network.layers]


def _of(parameters: Arrays, number: int) -> Arrays:
    return {name[0]: parameters[name] for name in (f"W{number}", f"b{number}")}


def cost_and_gradients(
    parameters: Arrays, X: np.ndarray, labels: np.ndarray, network: Any, reg: float
) -> tuple[float, Arrays]:
    """J and its gradients, named and shaped as the parameters."""
    A, Z = forward(parameters, X, network)
    J = losses(Z, labels, network.loss).mean()
    gradient = probabilities(Z, network.loss)
    gradient[np.arange(len(X)), labels] -= 1
    gradient /= len(X)
    outputs, found = [*A[1:], Z], []
    for layer, mine, a, output in reversed(
        list(zip(network.layers, _of_layers(parameters, network), A, outputs, strict=True))
    ):
        gradient, of_layer = layer.backward(mine, a, output, gradient)
        if layer.has_parameters:
            J += 0.5 * reg * (mine["W"] * mine["W"]).sum()
            found.append({**of_layer, "W": of_layer["W"] + reg * mine["W"]})
    numbered = enumerate(reversed(found), 1)
    return float(J), {f"{name}{number}": array for number, of in numbered for name, array in of.items()}


def train(
    parameters: Arrays,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    network: Any,
    optimiser: Any,
    seed: int = 0,
    constraint: Any = None,
) -> Arrays:
    """Train a copy of ``parameters`` over batches (X, labels), by an optimiser of nn/optimisers.

    Layers that draw random numbers in training draw those of a run with this seed. A ``constraint``
    (nn/model/constraint.py) is on the weights, if there is one.
    """
    parameters = {name: array.copy() for name, array in parameters.items()}
    states = {name: [np.zeros_like(array) for _ in optimiser.states] for name, array in parameters.items()}
    for step, (X, labels) in enumerate(batches, 1):
        in_step = network.in_step(seed, step)
        reg = 0 if constraint else optimiser.reg
        _, gradients = cost_and_gradients(parameters, X, labels, in_step, reg)
        if constraint:
            gradients |= _constrained(constraint, parameters, gradients, optimiser.reg)
        for name, gradient in gradients.items():
            parameters[name], states[name] = optimiser.step(parameters[name], gradient, states[name], step)
    return parameters


def _constrained(constraint: Any, parameters: Arrays, gradients: Arrays, reg: float) -> Arrays:
    """Weight gradients under a constraint; the decay, which ``gradients`` have not, comes behind it."""
    weights = {name: array for name, array in parameters.items() if name.startswith("W")}
    return {
        name: constraint.gradient(int(name[1:]), W, gradients[name]) + reg * W for name, W in weights.items()
    }
