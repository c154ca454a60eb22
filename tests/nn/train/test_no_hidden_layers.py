"""--hidden none: a linear classifier trains as the reference does; on two classes it is a single neuron."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nn
from nn.app.options import Options
from nn.input.dataset import NO_TEST, Part, validate
from nn.model.network import LOSSES
from pyrt.driver import Driver
from pyrt.job import join
from pyrt.runtime import Runtime, open_runtime
from tests import few
from train import train

IMAGES = np.random.default_rng(5).integers(0, 256, (53, 3, 5)).astype(np.uint8)

RANKS = pytest.mark.parallel(few([3], of=[1, 2, 3, 4]))


@pytest.fixture
def digits(shared: Path) -> str:
    """53 random images in five classes, the first 11 of them to test."""
    path, labels = shared / "digits.npz", np.arange(53) % 5
    if join().rank == 0:
        np.savez(path, x_train=IMAGES, y_train=labels, x_test=IMAGES[:11], y_test=labels[:11])
    join().comm.barrier()
    return str(path)


def passes(digits: str, device: str, head: str) -> None:
    """Train batches of 20, 20 and 13, and the reference."""
    options = Options(
        hidden=(), data=digits, device=device, head=head, batch=20, epochs=3, lr=0.5, reg=0.01,
        val_fraction=0.0, check=True, share_gpus=True,
    )  # fmt: skip
    report = train(options, join())
    assert report.passed, report.check
    assert report.environment["network"].startswith("15-5, ")


@RANKS
@pytest.mark.parametrize("head", LOSSES)
def test_a_linear_classifier_is_that_of_the_reference(digits: str, head: str) -> None:
    passes(digits, "cpu", head)


@pytest.mark.parallel(few([1], of=[1, 2, 3, 4]))
@pytest.mark.parametrize("head", LOSSES)
def test_so_it_is_on_a_device(digits: str, head: str, driver: Driver) -> None:
    passes(digits, driver.name, head)


RATE, STEPS = 0.3, 7


def neuron(X: np.ndarray, is_one: np.ndarray, w: np.ndarray, b: float) -> tuple[np.ndarray, float]:
    """Train one neuron, p = 1 / (1 + exp(-(X w + b))), by gradient descent on the cross-entropy, float64."""
    for _ in range(STEPS):
        error = (1 / (1 + np.exp(-(X @ w + b))) - is_one) / len(X)
        w, b = w - RATE * X.T @ error, b - RATE * float(error.sum())
    return w, b


@RANKS
@pytest.mark.parametrize(
    "where", ["cpu", pytest.param("driver", marks=[pytest.mark.kernels, pytest.mark.long])]
)
def test_on_two_classes_it_is_a_single_neuron(where: str, request: pytest.FixtureRequest) -> None:
    """The difference of the two output units: the probability of class 1 is a sigmoid of it.

    Both units' gradients are that neuron's, with either sign: half of its rate trains them.
    """
    device = where if where == "cpu" else request.getfixturevalue("driver").name
    labels = (IMAGES.mean(axis=(1, 2)) > 127).astype(np.int32)
    data = validate("two classes", Part("images", IMAGES), Part("labels", labels), *NO_TEST)
    network = nn.Network((15,), [nn.Dense(2)])
    rng = np.random.default_rng(6)
    initial = {"W1": rng.normal(size=(2, 15)), "b1": rng.normal(size=2)}
    with open_runtime(join(), device) as runtime:
        found = after_steps(network, data, runtime, initial)
    if join().rank == 0:
        w, b = neuron(IMAGES.reshape(53, 15) / 255, labels, *differences(initial))
        mine = differences(found)
        np.testing.assert_allclose(mine[0], w, rtol=1e-12, atol=1e-13)
        assert mine[1] == pytest.approx(b, rel=1e-12)


def after_steps(
    network: nn.Network, data: nn.Dataset, runtime: Runtime, initial: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    optimiser = nn.Sgd(lr=RATE / 2, momentum=0.0, reg=0.0)
    settings = {"batch": 53, "dtype": "float64", "val_fraction": 0.0}
    with nn.Trainer(network, optimiser, data, runtime, initial, **settings) as trainer:
        for _ in range(STEPS):
            trainer.step()
        return trainer.parameters()


def differences(parameters: dict[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """Return weights and bias of the neuron that two units are."""
    W, b = parameters["W1"], parameters["b1"]
    return W[1] - W[0], float(b[1] - b[0])
