"""Training under a constraint: pruned weights stay 0, shared ones equal, and all are the reference's."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from nn.input.dataset import Dataset
from nn.model import reference
from nn.model.constraint import NO_VALUE, Constraint
from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.initial import initial_values
from nn.model.network import Network
from nn.model.pool import MaxPool2d
from nn.optimisers import Adam, Sgd
from nn.train import check
from nn.train.trainer import Trainer
from pyrt.devices import open_device
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.job import join
from pyrt.phases import Phases
from pyrt.runtime import Runtime
from tests import few, spread

NETWORKS = {
    "dense": Network((36,), [Dense(17, "relu"), Dense(13, "tanh"), Dense(3)]),
    "convolution": Network((6, 6, 1), [Conv2d(5, 3, activation="relu"), MaxPool2d(2), Dense(3)]),
}
OPTIMISERS = {"sgd": Sgd(lr=0.05, reg=0.01), "adam": Adam(lr=0.003, reg=0.01)}
STEPS = 7


def noise() -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 6, 6)).astype(np.uint8).reshape(50, 36)
    return Dataset("noise", images, (np.arange(50) % 3).astype(np.int32), None, None, (6, 6))


def compressed(network: Network, dtype: str, values: int) -> tuple[dict[str, np.ndarray], Constraint]:
    """Parameters two thirds of which are pruned, the others with so many values; 0: with their own."""
    parameters, codes = initial_values(network, dtype, 5), {}
    rng = np.random.default_rng(6)
    for number in network.numbers:
        W = parameters[f"W{number}"]
        W[rng.random(W.shape) < 2 / 3] = 0
        if values:
            book = np.linspace(W.min(), W.max(), values, dtype=dtype)
            nearest = np.abs(W[..., None] - book).argmin(axis=-1)
            codes[number] = np.where(W == 0, NO_VALUE, nearest)
            W[...] = np.where(W == 0, 0, book[nearest])
    return parameters, Constraint(codes)


def require_reference(trainer: Trainer, initial: dict[str, np.ndarray], constraint: Constraint) -> None:
    """Train and compare with float64, then what the constraint says; the reference itself keeps it too."""
    start = {name: array.astype(np.float64) for name, array in initial.items()}
    for _ in range(STEPS):
        trainer.step()
    problem, trained = trainer.problem, trainer.parameters()
    if trainer.runtime.job.rank > 0:
        return
    batches = itertools.islice(check.batches(problem), STEPS)
    expected = reference.train(start, batches, problem.network, problem.optimiser, 0, constraint)
    tolerance = 1e-4 if trained["W1"].dtype == np.float32 else 1e-12
    for name, array in trained.items():
        assert check.difference(name, array, expected[name]).max_norm <= tolerance, name
        if name.startswith("W"):
            assert np.array_equal(array == 0, initial[name] == 0), name
            assert not np.array_equal(array, initial[name]), name
    for number, codes in constraint.codes.items():
        for value in range(codes.max() + 1):
            assert len(np.unique(trained[f"W{number}"][codes == value])) <= 1


def run(device: str, net: str, values: int, optimiser: str, dtype: str = "float32", **settings: str) -> None:
    job, network = join(), NETWORKS[net]
    runtime = Runtime(job, open_device(device, job, True), Phases(time.perf_counter()))
    initial, constraint = compressed(network, dtype, values)
    try:
        with Trainer(
            network,
            OPTIMISERS[optimiser],
            noise(),
            runtime,
            initial,
            constraint=constraint,
            dtype=dtype,
            val_fraction=0,
            batch=20,
            **settings,
        ) as trainer:
            require_reference(trainer, initial, constraint)
    finally:
        runtime.device.driver.close()


@pytest.mark.parallel(few([3], of=[1, 2, 3, 4]))
@pytest.mark.parametrize(
    ("net", "values", "optimiser"), spread(list(NETWORKS), [0, 4], list(OPTIMISERS), by=2)
)
def test_on_the_cpu(net: str, values: int, optimiser: str) -> None:
    run("cpu", net, values, optimiser, "float64")


@pytest.mark.parallel(few([2], of=[2, 3, 4]))
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("net", few(["convolution"], of=list(NETWORKS)))
def test_where_ranks_share_layers(net: str, optimiser: str) -> None:
    run("cpu", net, 0, optimiser, "float64", plan="model")


IN_KERNELS = [("dense", 4, "sgd"), ("dense", 0, "adam"), ("convolution", 4, "adam")]


@pytest.mark.parallel(few([2], of=[1, 2]))
@pytest.mark.parametrize("exchange", few(["peer"], of=["host", "peer", "device", "root", "blocking"]))
@pytest.mark.parametrize("net, values, optimiser", few(IN_KERNELS[1:], of=IN_KERNELS))
def test_in_kernels(driver: Driver, net: str, values: int, optimiser: str, exchange: str) -> None:
    run(driver.name, net, values, optimiser, exchange=exchange if join().size > 1 else "auto")


def test_trainings_follow_each_other_on_a_device(driver: Driver) -> None:
    """Graphs of the second one time the same phases, on the same streams."""
    job = join()
    runtime = Runtime(job, open_device(driver.name, job, True), Phases(time.perf_counter()))
    runtime.phases.use_device(runtime.driver)
    try:
        for _ in range(2):
            with Trainer(NETWORKS["dense"], Sgd(), noise(), runtime, batch=20) as trainer:
                trainer.step()
                bits = trainer.parameters()["W1"].tobytes()
        assert np.isfinite(np.frombuffer(bits, np.float32)).all()
    finally:
        runtime.device.driver.close()


@pytest.mark.parallel([2])
def test_shared_values_of_a_layer_in_parts_are_refused() -> None:
    with pytest.raises(UserError, match="--plan data"):
        run("cpu", "dense", 4, "sgd", plan="model")
