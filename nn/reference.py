"""The network in NumPy, sequential: the equations, and the truth that everything else is compared with.

Activations are row-major (samples, units); ``parameters`` holds W1 (H_1, H_0), b1 (H_1,), ..., WL, bL.
With A_0 = X, the batch of B samples, and T the labels one-hot:

    forward    Z_l = A_{l-1} W_l^T + b_l      A_l = f(Z_l)      Y = head(Z_L)
    cost       J = 1/B sum of losses + reg/2 sum of W_l^2
    backward   dZ_L = (Y - T) / B             dZ_l = (dZ_{l+1} W_{l+1}) f'(Z_l)
               dW_l = dZ_l^T A_{l-1} + reg W_l           db_l = sum over samples of dZ_l

Both heads with their cross-entropy have the same dZ_L. Derivatives f' are written in terms of A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

Arrays = dict[str, np.ndarray]
Function = Callable[[np.ndarray], np.ndarray]


def sigmoid(Z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-Z)), by the half-angle identity, which overflows for no Z."""
    return 0.5 * (1 + np.tanh(0.5 * Z))


ACTIVATIONS: dict[str, tuple[Function, Function]] = {
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


def forward(parameters: Arrays, X: np.ndarray, activation: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Activations A_0 .. A_{L-1} and logits Z_L."""
    f, _ = ACTIVATIONS[activation]
    depth = len(parameters) // 2
    A = [X]
    for layer in range(1, depth):
        A.append(f(A[-1] @ parameters[f"W{layer}"].T + parameters[f"b{layer}"]))
    return A, A[-1] @ parameters[f"W{depth}"].T + parameters[f"b{depth}"]


def cost_and_gradients(
    parameters: Arrays, X: np.ndarray, labels: np.ndarray, activation: str, head: str, reg: float
) -> tuple[float, Arrays]:
    """J and its gradients, named and shaped as the parameters."""
    _, derivative = ACTIVATIONS[activation]
    A, Z = forward(parameters, X, activation)
    J = losses(Z, labels, head).mean()
    dZ = probabilities(Z, head)
    dZ[np.arange(len(X)), labels] -= 1
    dZ /= len(X)
    gradients: Arrays = {}
    for layer in reversed(range(1, len(A) + 1)):
        W = parameters[f"W{layer}"]
        J += 0.5 * reg * (W * W).sum()
        gradients[f"W{layer}"] = dZ.T @ A[layer - 1] + reg * W
        gradients[f"b{layer}"] = dZ.sum(axis=0)
        if layer > 1:
            dZ = (dZ @ W) * derivative(A[layer - 1])
    return float(J), gradients


def train(
    parameters: Arrays,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    activation: str,
    head: str,
    reg: float,
    rate: float,
    momentum: float,
) -> Arrays:
    """Stochastic gradient descent over batches (X, labels) from a copy of ``parameters``.

    v = momentum v + gradient;  parameter -= rate v
    """
    parameters = {name: array.copy() for name, array in parameters.items()}
    velocity = {name: np.zeros_like(array) for name, array in parameters.items()}
    for X, labels in batches:
        _, gradients = cost_and_gradients(parameters, X, labels, activation, head, reg)
        for name, gradient in gradients.items():
            velocity[name] = momentum * velocity[name] + gradient
            parameters[name] -= rate * velocity[name]
    return parameters
