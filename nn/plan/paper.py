"""A rank's step on paper: the real list of operations, over addresses that nothing lies at.

So what a plan costs, in time and in memory, is read from what would run, for any network, batch, number of
ranks and device, without any of these.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nn.activations import Activations
from nn.fuse import fuse
from nn.launches import Kernels, Place
from nn.model import layers_with_terms
from nn.network import Network
from nn.operations import Item, Operation
from nn.panels import gradient_layout, panels
from nn.plan import Plan, RankPart
from nn.source import Gathered
from nn.step import Pass
from nn.tensor_cores import Terms, TermsPool
from nn.update import SgdUpdate
from pyrt.driver import TENSOR_MAP_BYTES, Driver, Shape3
from pyrt.driver.cpu import ALIGNMENT, CpuDriver
from pyrt.exchange import Bucket
from pyrt.kernels import KernelLibrary
from pyrt.ledger import Ledger
from pyrt.memory import Arena, DeviceArray, Layout

_NORESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python's mmap does not name: no promise that there is memory for all of it."""


@dataclass(frozen=True)
class Device:
    """What the list of a step depends on, of a device."""

    name: str = "cpu"
    architecture: str = ""
    """Empty where NumPy computes."""
    multiprocessors: int = 0
    shared_memory: int = 0

    @classmethod
    def of(cls, driver: Driver) -> Device:
        return cls(driver.device_name, driver.architecture, driver.multiprocessors, driver.shared_memory)


@dataclass(frozen=True)
class Task:
    """What is trained, and how."""

    network: Network
    batch: int
    """Samples of a step, over all ranks."""
    dtype: str = "float32"
    momentum: bool = False
    gemm: str = "auto"
    math: str = "float32"


class PaperDriver(CpuDriver):
    """Hands out addresses and counts bytes; copies, fills, compiles and launches nothing.

    So all that allocates and binds can be built on it, to see what it would take.
    """

    def __init__(self, device: Device, name: str = "paper") -> None:
        """``name`` is that of a driver in whose place this one is."""
        self.name, self.device_id = name, "paper"
        self.device_name, self.architecture = device.name, device.architecture
        self.has_kernels = bool(device.architecture)
        self.multiprocessors, self.shared_memory = device.multiprocessors, device.shared_memory
        self.ledger = Ledger()
        self._end = ALIGNMENT

    @classmethod
    def like(cls, driver: Driver) -> PaperDriver:
        """In the place of an open driver."""
        return cls(Device.of(driver), driver.name)

    def close(self) -> None:
        pass

    def allocate(self, nbytes: int) -> int:
        pointer = self._addresses(nbytes)
        self.ledger.allocated(pointer, nbytes)
        return pointer

    def _addresses(self, nbytes: int) -> int:
        start = self._end
        self._end += -(-max(1, nbytes) // ALIGNMENT) * ALIGNMENT
        return start

    def free(self, pointer: int) -> None:
        self.ledger.freed(pointer)

    def allocate_pinned(self, nbytes: int, write_only: bool = False) -> np.ndarray:
        self.ledger.allocated_pinned(nbytes)
        # The system gives it memory page by page, as it is written; nobody writes much.
        pages = mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        return np.frombuffer(pages, np.uint8, nbytes)

    def allocate_mapped(self, nbytes: int) -> tuple[np.ndarray, int]:
        return self.allocate_pinned(nbytes), self._addresses(nbytes)

    def export_memory(self, pointer: int) -> bytes:
        return b"paper"

    def import_memory(self, handle: bytes) -> int:
        return self._addresses(0)

    def release_memory(self, pointer: int) -> None:
        pass

    def copy_to_device(self, pointer: int, host: np.ndarray, stream: None) -> None:
        pass

    def fill(self, pointer: int, byte: int, nbytes: int, stream: None) -> None:
        pass

    def tensor_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        box: tuple[int, int, int, int],
    ) -> bytes:
        return bytes(TENSOR_MAP_BYTES)

    def is_compiled(self, source: str, cache_dir: str) -> bool:
        return True

    def compile(self, source: str, cache_dir: str) -> None:
        pass

    def load_module(self, source: str, cache_dir: str) -> None:
        pass

    def function(self, module: None, name: str) -> None:
        pass

    def launcher(
        self, function: None, grid: Shape3, block: Shape3, arguments: bytes, shared: int, overlaps: bool
    ) -> Callable[[None], None]:
        return _launch_nothing


def _launch_nothing(stream: None) -> None:
    pass


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank's arrays on its device; without the training set, and the buffers of what moves."""

    weights: int
    """And biases; where tensor cores read weights as terms, these too."""
    gradients: int
    momentum: int
    activations: int
    """And their gradients, and what products need beside their operands."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.momentum + self.activations


def kernels_on(driver: Driver, task: Task) -> Kernels | None:
    """The kernels that a device runs, or that would run on one of paper; None where NumPy computes."""
    if not driver.architecture:
        return None
    return Kernels(KernelLibrary(driver), task.dtype, task.gemm, task.math)


class ListedStep:
    """A whole batch's step of a rank under a plan, its arrays allocated by the driver, on paper or not.

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
    ) -> None:
        self.task, self.plan = task, plan
        self.part = RankPart(plan, task.network, rank)
        self._driver, self._kernels = driver, kernels
        source = self._source()
        before = self._allocated
        self._parameters = Arena(driver, Layout(self.part.shapes, task.dtype))
        self._terms = self._weights_as_terms()
        weights = self._allocated
        self._gradients = Arena(driver, gradient_layout(self.part, task.dtype))
        gradients = self._allocated
        self._velocity = Arena(driver, self._parameters.layout) if task.momentum else None
        momentum = self._allocated
        ways = (exchange if ranks > 1 else "local" for ranks in (plan.ranks, plan.groups))
        self.panels = panels(self.part, self._gradients.layout, *ways)
        self.items = self._items(source)
        self.memory = Memory(
            weights - before, gradients - weights, momentum - gradients, self._allocated - momentum
        )

    @property
    def _allocated(self) -> int:
        return self._driver.ledger.device.total()

    def _source(self) -> Gathered:
        """Of a training set of one batch, uint8."""
        first, last = self.part.own_samples(self.task.batch)
        rows, inputs, driver = last - first, self.task.network.sizes[0], self._driver
        labels, order = (DeviceArray.from_host(driver, np.zeros(rows, np.int32)) for _ in range(2))
        images = DeviceArray.empty(driver, (rows, inputs), np.uint8)
        place = Place.first(driver, rows, rows)
        return Gathered(images, labels, order, place, DeviceArray.empty(driver, (rows,), np.int32))

    def _weights_as_terms(self) -> dict[int, Terms]:
        if self._kernels is None or not self._kernels.uses_terms:
            return {}
        return {
            layer: Terms.empty(self._driver, self._kernels.terms, *self._parameters[f"W{layer}"].shape)
            for layer in layers_with_terms(self._kernels, self.part)
        }

    def _items(self, source: Gathered) -> list[Item]:
        start, stop = self.part.group_samples(self.task.batch)
        activations = Activations(self._parameters, self.part, self.plan.largest_group(self.task.batch))
        work = Pass(self.part, self._parameters, activations, source, 255.0)
        items = work.gradients(self._gradients, self.panels, stop - start, self.task.batch)
        known = [(self._parameters[f"W{layer}"], terms) for layer, terms in self._terms.items()]
        return fuse(items, self._kernels, TermsPool(self._driver), known)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self._gradients.flat.dtype.itemsize

    @property
    def bucket_elements(self) -> int:
        """Gradients that leave, padding between them included."""
        return sum(panel.bucket.stop - panel.bucket.start for panel in self.panels)

    def update(self, over_all: bool) -> Operation:
        """Of those layers whose gradients are summed over all ranks, or of the others, in one."""
        momentum = 0.5 if self._velocity is not None else 0.0
        settings = (self._velocity, 1.0, momentum, 1.0, self._kernels, None, self._terms)
        update = SgdUpdate(self.task.network, self._parameters, self._gradients, *settings)
        layers = [layer for layer in self.task.network.layers if self.plan.over_all(layer) == over_all]
        return update.operation(*map(self._gradients_of, layers))

    def _gradients_of(self, layer: int) -> Bucket:
        """All that leaves with the panels of a layer, which lie side by side."""
        starts, stops = zip(*(panel.bucket for panel in self.panels if panel.layer == layer), strict=True)
        return Bucket(min(starts), max(stops))


def on_paper(task: Task, plan: Plan, device: Device, rank: int = 0, exchange: str = "host") -> ListedStep:
    """The step as it would run on such devices, with that exchange where there is one."""
    driver = PaperDriver(device)
    return ListedStep(task, plan, driver, kernels_on(driver, task), rank, exchange)
