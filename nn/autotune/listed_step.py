"""A rank's step on the null device: the real list of operations, over addresses that nothing lies at.

So what a plan costs, in time and in memory, is read from what would run, for any network, batch, number of
ranks and device, without any of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nn.input.source import BatchCursor, Gathered
from nn.launch.kernels import Kernels
from nn.model.network import Network
from nn.optimisers import Sgd
from nn.optimisers.base import Optimiser
from nn.parallel.plan import Plan
from nn.parallel.shard import Shard
from nn.program.operations import Operation
from nn.program.rank_model import Numbers, RankModel, TrainingArrays
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.exchange import Bucket
from pyrt.kernels import KernelLibrary

_PLAIN = Sgd(momentum=0.0)


@dataclass(frozen=True)
class Task:
    """What is trained, and how."""

    network: Network
    batch: int
    """Samples of a step, over all ranks."""
    dtype: str = "float32"
    optimiser: Optimiser = _PLAIN
    gemm: str = "auto"
    math: str = "float32"
    conv: str = "auto"


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank's arrays on its device; without the training set, and the buffers of what moves."""

    weights: int
    """And biases; where tensor cores read weights as components, these too."""
    gradients: int
    momentum: int
    """All that the optimiser keeps."""
    activations: int
    """And their gradients, as they share memory, and what products need beside their operands."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.momentum + self.activations


def kernels_on(driver: Driver, task: Task) -> Kernels | None:
    """Make the kernels of a device, null or not; None where NumPy computes."""
    if not driver.architecture:
        return None
    return Kernels(KernelLibrary(driver), task.dtype, task.gemm, task.math, task.conv)


class ListedStep:
    """A whole batch's step of a rank under a plan, its arrays allocated by the driver, null or not.

    Raises UserError where it would not fit kernels' indices. Rank 0 is of those that get most: parts that
    cannot be equal are largest on the first ranks.
    """

    def __init__(
        self,
        task: Task,
        plan: Plan,
        driver: Driver,
        kernels: Kernels | None,
        rank: int = 0,
        exchange: str = "host",
        counts_activations: bool = True,
    ) -> None:
        """Without counting them the step is listed sooner; its ``memory`` has none then."""
        self.task, self.plan = task, plan
        self.shard = Shard(plan, task.network, rank)
        with driver.ledger.of("batches"):
            source = self._source(driver)
        model = RankModel(driver, self.shard, Numbers(task.dtype, kernels), task.batch)
        all_ranks, shard = (exchange if ranks > 1 else "local" for ranks in (plan.ranks, plan.groups))
        self._arrays = TrainingArrays(model, task.optimiser, (all_ranks, shard))
        self.panels = self._arrays.panels
        listed = self._arrays.step if counts_activations else self._arrays.step_without_places
        self.items = listed(source, task.batch)
        self.memory = _memory(driver)

    def _source(self, driver: Driver) -> Gathered:
        """Make the source of a training set of one batch, uint8."""
        first, last = self.shard.own_samples(self.task.batch)
        rows, inputs = last - first, math.prod(self.task.network.layer_shapes[0])
        labels, order = (DeviceArray.from_host(driver, np.zeros(rows, np.int32)) for _ in range(2))
        images = DeviceArray.empty(driver, (rows, inputs), np.uint8)
        cursor = BatchCursor.first(driver, rows, rows)
        return Gathered(images, labels, order, cursor, DeviceArray.empty(driver, (rows,), np.int32))

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self._arrays.gradients.flat.dtype.itemsize

    @property
    def bucket_elements(self) -> int:
        """Gradients that leave, padding between them included."""
        return sum(panel.bucket.stop - panel.bucket.start for panel in self.panels)

    def update(self, over_all: bool) -> Operation:
        """Return one update of all layers whose gradients are summed over all ranks, or of all others."""
        layers = [layer for layer in self.task.network.numbers if self.plan.over_all(layer) == over_all]
        (operation,) = self._arrays.update().operations(*map(self._gradients_of, layers))
        return operation

    def _gradients_of(self, layer: int) -> Bucket:
        """Join the buckets of a layer's panels, which lie side by side, into one."""
        starts, stops = zip(*(panel.bucket for panel in self.panels if panel.layer == layer), strict=True)
        return Bucket(min(starts), max(stops))


def _memory(driver: Driver) -> Memory:
    """Sum the ledger of a driver by use."""
    used = {
        name: sum(nbytes for row, nbytes in driver.ledger.device.items() if row.what == name)
        for name in ("weights", "gradients", "momentum", "activations", "workspaces")
    }
    activations = used.pop("activations") + used.pop("workspaces")
    return Memory(**used, activations=activations)


def on_null(
    task: Task,
    plan: Plan,
    device: DeviceProperties,
    rank: int = 0,
    exchange: str = "host",
    counts_activations: bool = True,
) -> ListedStep:
    """Build the step on a null device of these properties, with this exchange where several ranks sum."""
    driver = NullDriver(device)
    return ListedStep(task, plan, driver, kernels_on(driver, task), rank, exchange, counts_activations)
