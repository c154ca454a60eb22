"""The reference training in JAX, one process for all GPUs, a JSON line for each way of running it:

    jit step    one jitted step after the other
    epoch scan  a whole epoch in one jitted lax.scan

With several GPUs the samples of a batch are sharded over them, and XLA adds the sums.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from bench.baselines import work
from bench.baselines.work import CHECKED, RATE, REG, Task
from bench.program import start
from nn.model.reference import Arrays
from pyrt.errors import UserError

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs may be on the GPU
try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = None

PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "bf16": "bfloat16"}
"""What JAX calls the arithmetic of a product."""


def cost(parameters: Any, X: Any, labels: Any) -> Any:
    """Return the mean cross-entropy plus the L2 term; products are in the dtype of X."""
    depth = len(parameters) // 2
    cast = {name: array.astype(X.dtype) for name, array in parameters.items()}
    A = X
    for layer in range(1, depth):
        A = jax.nn.sigmoid(A @ cast[f"W{layer}"].T + cast[f"b{layer}"])
    Z = (A @ cast[f"W{depth}"].T + cast[f"b{depth}"]).astype(jnp.float32)
    targets = jax.nn.one_hot(labels, Z.shape[1])
    data_term = -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(Z), axis=1))
    weights = (parameters[f"W{layer}"] for layer in range(1, depth + 1))
    return data_term + REG / 2 * sum(jnp.sum(W**2) for W in weights)


def update(parameters: Any, batch: Any) -> tuple[Any, None]:
    """Return the parameters after a step on a batch (X, labels), in the form that lax.scan wants."""
    gradients = jax.grad(cost)(parameters, *batch)
    return jax.tree.map(lambda value, gradient: value - RATE * gradient, parameters, gradients), None


class Placed:
    """A task on the devices: batches sharded by samples, parameters on every device.

    In bf16 the samples are kept so.
    """

    def __init__(self, task: Task, devices: Sequence[Any], math: str = "float32") -> None:
        mesh = jax.sharding.Mesh(np.array(devices), ("samples",))
        partition = jax.sharding.PartitionSpec
        self._sharded = jax.sharding.NamedSharding(mesh, partition(None, "samples"))
        self._one = jax.sharding.NamedSharding(mesh, partition("samples"))
        self._everywhere = jax.sharding.NamedSharding(mesh, partition())
        self._task = task
        self._X = task.X.astype(jnp.bfloat16) if math == "bf16" else task.X

    def parameters(self) -> Any:
        """Place the first parameters."""
        return jax.device_put(self._task.parameters, self._everywhere)

    def epoch(self, batches: int) -> Any:
        """Place the first batches as two arrays."""
        X, labels = self._X[:batches], self._task.labels[:batches].astype(np.int32)
        return jax.device_put((X, labels), self._sharded)

    def each(self) -> list[Any]:
        """Place all batches one by one."""
        labels = self._task.labels.astype(np.int32)
        return [jax.device_put(batch, self._one) for batch in zip(self._X, labels, strict=True)]


class JitStep:
    """A dispatch a step."""

    name = "jit step"

    def __init__(self, placed: Placed) -> None:
        self._parameters = placed.parameters()
        self._batches = placed.each()
        self._step = jax.jit(lambda parameters, batch: update(parameters, batch)[0], donate_argnums=0)

    def queue(self, steps: int) -> None:
        for batch in self._batches[:steps]:
            self._parameters = self._step(self._parameters, batch)

    def wait(self) -> None:
        jax.block_until_ready(self._parameters)

    def parameters(self) -> Arrays:
        return {name: np.array(array) for name, array in self._parameters.items()}


class EpochScan(JitStep):
    """A dispatch an epoch."""

    name = "epoch scan"

    def __init__(self, placed: Placed, batches: int) -> None:
        self._parameters = placed.parameters()
        self._epochs = {count: placed.epoch(count) for count in {CHECKED, batches}}
        self._epoch = jax.jit(
            lambda parameters, epoch: jax.lax.scan(update, parameters, epoch)[0], donate_argnums=0
        )

    def queue(self, steps: int) -> None:
        self._parameters = self._epoch(self._parameters, self._epochs[steps])


def modes(task: Task, devices: Sequence[Any], math: str) -> Iterator[work.Mode]:
    """Yield all ways of running the training, each made when the one before is done."""
    placed = Placed(task, devices, math)
    yield JitStep(placed)
    yield EpochScan(placed, task.batches)


def find_devices(gpus: int) -> list[Any]:
    """List so many GPUs. Raises UserError without them."""
    if jax is None:
        raise UserError("JAX is not installed")
    devices = [device for device in jax.devices() if device.platform == "gpu"]
    if len(devices) < gpus:
        raise UserError(f"JAX sees {len(devices)} GPU(s), not {gpus}")
    return devices[:gpus]


def main(arguments: Sequence[str]) -> int:
    wanted = work.parse("jax_step.py", __doc__, arguments)
    devices = find_devices(wanted.gpus)
    for batch in wanted.batches:
        task = work.make_task(batch, wanted.hidden)
        for math in wanted.maths:
            jax.config.update("jax_default_matmul_precision", PRECISIONS[math])
            setting = work.Setting("JAX", jax.__version__, math, wanted.gpus, devices[0].device_kind)
            for mode in modes(task, devices, math):
                work.run(mode, task, setting)
    return 0


if __name__ == "__main__":
    start("jax_step.py", main)
