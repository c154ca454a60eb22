"""The network in NumPy, sequential: the equations, and the truth that everything else is compared with.

Activations are row-major (samples, units); ``parameters`` holds W1 (H_1, H_0), b1 (H_1,), ..., WL, bL.
With A_0 = X, the batch of B samples, and T the labels one-hot:

    forward    A_l = layer l of A_{l-1}                         Y = head(Z_L), Z_L = A_L
    cost       J = 1/B sum of losses + reg/2 sum of W_l^2
    backward   dZ_L = (Y - T) / B             dZ_l = (dZ_{l+1} W_{l+1}) f'(Z_l)
               dW_l = dZ_l^T A_{l-1} + reg W_l           db_l = sum over samples of dZ_l

Both heads with their cross-entropy have the same dZ_L. Derivatives f' are written in components of A.
"""

from __future__ import annotations

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
    """Activations A_0 .. A_{L-1} and logits Z_L, by the equations of the network's layers."""
    A = [X.reshape(len(X), -1)]
    for number, layer in enumerate(network.layers, 1):
        A.append(layer.forward(_of_layer(parameters, number), A[-1]))
    return A[:-1], A[-1]


def _of_layer(parameters: Arrays, number: int) -> Arrays:
    """Return the parameters of a layer, named without its number: W, b."""
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
    outputs, gradients = [*A[1:], Z], {}
    for number in reversed(range(1, len(A) + 1)):
        layer, mine = network.layers[number - 1], _of_layer(parameters, number)
        gradient, of_layer = layer.backward(mine, A[number - 1], outputs[number - 1], gradient)
        J += 0.5 * reg * (mine["W"] * mine["W"]).sum()
        of_layer["W"] = of_layer["W"] + reg * mine["W"]
        gradients.update({f"{name}{number}": array for name, array in of_layer.items()})
    return float(J), gradients


def train(
    parameters: Arrays,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    network: Any,
    optimiser: Any,
) -> Arrays:
    """Train a copy of ``parameters`` over batches (X, labels), by an optimiser of nn/optimisers."""
    parameters = {name: array.copy() for name, array in parameters.items()}
    states = {name: [np.zeros_like(array) for _ in optimiser.states] for name, array in parameters.items()}
    for step, (X, labels) in enumerate(batches, 1):
        _, gradients = cost_and_gradients(parameters, X, labels, network, optimiser.reg)
        for name, gradient in gradients.items():
            parameters[name], states[name] = optimiser.step(parameters[name], gradient, states[name], step)
    return parameters
