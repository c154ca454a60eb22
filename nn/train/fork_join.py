"""Fork and join around every product: rank 0 trains alone, and the other ranks compute parts of its products.

    rank 0   | operands down | MPI_Scatterv, MPI_Bcast | its rows of D | MPI_Gatherv | D up |
    others   |                MPI_Scatterv, MPI_Bcast | their rows of D | MPI_Gatherv |

For D = op(A) op(B) each rank gets its rows of op(A), and all of op(B). Operands and results go through the
host, one product at a time, and nothing overlaps: the plain way to use several ranks, and the one to measure
plans against. `nn.autotune.cost.fork_and_join` predicts its cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from nn.launch.gemm.product import Product
from nn.launch.kernels import Kernels
from nn.problem.settings import Settings
from pyrt.arrays import DeviceArray, pinned
from pyrt.driver import Driver, StreamHandle
from pyrt.exchange import QueueWork
from pyrt.job import AgreedError, Job
from pyrt.kernels import KernelLibrary
from pyrt.phases import Phases
from pyrt.redistribute.regions import share
from pyrt.runtime import Runtime

if TYPE_CHECKING:
    from nn.program.operations import Operation

SENDING, RECEIVING = "MPI_Scatterv, MPI_Bcast", "MPI_Gatherv"
"""Phases of a product: operands go out, results come in; copies between host and device are in them."""

SERVING, WAITING = "products for rank 0", "wait for rank 0"
"""Phases of the other ranks."""

_NEW, _END = -1, -2
"""Messages of rank 0 in place of a product's number: a new product follows; the training is over."""


@dataclass(frozen=True)
class Shape:
    """The sizes, layout and dtype of a product, as all ranks must know them."""

    sizes: tuple[int, int, int]
    transpose_a: bool
    transpose_b: bool
    dtype: str

    @classmethod
    def of(cls, product: Product) -> Shape:
        return cls(product.sizes, product.transpose_a, product.transpose_b, product.D.dtype.name)

    def rows(self, ranks: int) -> list[int]:
        """Count the rows of D of each rank."""
        bounds = [share(self.sizes[0], ranks, rank) for rank in range(ranks)]
        return [stop - start for start, stop in bounds]


class Fork:
    """Rank 0's side: announces products to the other ranks, and wraps its own."""

    def __init__(self, comm: MPI.Comm, phases: Phases) -> None:
        self.comm = comm
        self.sending, self.receiving = phases.phase(SENDING), phases.phase(RECEIVING)
        self._products = 0

    @property
    def helpers(self) -> int:
        """The ranks beside this one."""
        return self.comm.size - 1

    def wrap(self, operation: Operation, queue: QueueWork, kernels: Kernels | None) -> QueueWork:
        """Return a call that forks the operation, if it is a product; else ``queue``, which runs it here."""
        work = operation.work
        if not isinstance(work, Product) or not work.D.is_contiguous:
            return queue
        return _Forked(self, work, kernels)

    def announce(self, shape: Shape) -> int:
        """Tell the other ranks of a product; return its number. Collective."""
        self.call(_NEW)
        self.comm.bcast(shape)
        self._products += 1
        return self._products - 1

    def call(self, number: int) -> None:
        """Call the other ranks to a product."""
        self.comm.Ibcast(np.array([number], np.int64)).Wait()

    def end(self, result: Any) -> None:
        """Send the other ranks the result of the training, or the error with which all ranks end."""
        self.call(_END)
        self.comm.bcast(result)


class _Forked:
    """A product that is forked each time it is called."""

    def __init__(self, fork: Fork, product: Product, kernels: Kernels | None) -> None:
        self._fork, self._product, self._shape = fork, product, Shape.of(product)
        self._rows = self._shape.rows(fork.comm.size)
        self._own = bound(_upper_rows(product, self._rows[0]), kernels) if self._rows[0] else None
        driver = product.D.driver
        self._a, self._b = _HostCopy(product.A), _HostCopy(product.B)
        self._packed = pinned(driver, (product.A.size,), product.A.dtype)
        self._whole_b = pinned(driver, product.B.shape, product.B.dtype)
        self._d = pinned(driver, product.D.shape, product.D.dtype)
        self._number: int | None = None

    def __call__(self, stream: StreamHandle) -> None:
        fork, (_, N, K) = self._fork, self._shape.sizes
        with fork.sending:
            self._take_operands(stream)
            if self._number is None:
                self._number = fork.announce(self._shape)
            fork.call(self._number)
            sent = [self._packed, [rows * K for rows in self._rows]]
            fork.comm.Scatterv(sent, MPI.IN_PLACE)
            fork.comm.Bcast(self._whole_b)
        if self._own is not None:
            self._own(stream)
        with fork.receiving:
            fork.comm.Gatherv(MPI.IN_PLACE, [self._d, [rows * N for rows in self._rows]])
            self._give_results(stream)

    def _take_operands(self, stream: StreamHandle) -> None:
        """Copy both to the host; pack A's parts behind each other, in the order of the ranks."""
        self._a.queue_download(stream)
        self._b.queue_download(stream)
        self._product.D.driver.synchronize_stream(stream)
        np.copyto(self._whole_b, self._b.matrix)
        first, K = 0, self._shape.sizes[2]
        for rows in self._rows:
            rows_of = slice(first, first + rows)
            part = self._a.matrix[:, rows_of] if self._shape.transpose_a else self._a.matrix[rows_of]
            np.copyto(self._packed[first * K : (first + rows) * K].reshape(part.shape), part)
            first += rows

    def _give_results(self, stream: StreamHandle) -> None:
        """Copy the others' rows to the device; the host's buffer is free again when this returns."""
        own, M = self._rows[0], self._shape.sizes[0]
        if own < M:
            self._product.D.rows(own, M).queue_upload(self._d[own:], stream)
        self._product.D.driver.synchronize_stream(stream)


class _HostCopy:
    """A matrix on the device and room for it on the host, with the columns that lie between its rows."""

    def __init__(self, array: DeviceArray) -> None:
        rows, columns = array.shape
        self._array = array
        self._elements = (rows - 1) * array.ld + columns
        self._host = pinned(array.driver, (rows * array.ld,), array.dtype)
        self.matrix = self._host.reshape(rows, array.ld)[:, :columns]

    def queue_download(self, stream: StreamHandle) -> None:
        self._array.queue_download(self._host[: self._elements], stream)


def _upper_rows(product: Product, rows: int) -> Product:
    """Return the product that makes the first rows of D."""
    A = product.A.columns(0, rows) if product.transpose_a else product.A.rows(0, rows)
    return replace(product, D=product.D.rows(0, rows), A=A)


def bound(product: Product, kernels: Kernels | None) -> QueueWork:
    """Bind a product to a device, or to NumPy where there are no kernels."""
    if kernels is not None:
        return product.on_device(kernels).call
    compute = product.in_numpy()
    return lambda stream: compute()


class _Part:
    """The part of a product that another rank computes."""

    def __init__(self, shape: Shape, comm: MPI.Comm, driver: Driver, kernels: Kernels | None) -> None:
        self._comm, self._driver = comm, driver
        rows, (_, N, K) = shape.rows(comm.size)[comm.rank], shape.sizes
        shapes = (
            (K, rows) if shape.transpose_a else (rows, K),
            (N, K) if shape.transpose_b else (K, N),
            (rows, N),
        )
        self._hosts = [pinned(driver, one, shape.dtype) for one in shapes]
        self._compute: QueueWork | None = None
        if rows:
            self._arrays = [DeviceArray.empty(driver, one, shape.dtype) for one in shapes]
            A, B, D = self._arrays
            self._compute = bound(Product(D, A, B, shape.transpose_a, shape.transpose_b), kernels)

    def receive(self) -> None:
        """Receive the operands."""
        a, b, _ = self._hosts
        self._comm.Scatterv(None, a)
        self._comm.Bcast(b)

    def compute(self, stream: StreamHandle) -> None:
        """Compute this rank's rows, and wait for them."""
        if self._compute is None:
            return
        for array, host in zip(self._arrays[:2], self._hosts[:2], strict=True):
            array.queue_upload(host, stream)
        self._compute(stream)
        self._arrays[2].queue_download(self._hosts[2], stream)
        self._driver.synchronize_stream(stream)

    def send(self) -> None:
        """Send the result."""
        self._comm.Gatherv(self._hosts[2], None)


def _kernels(settings: Settings, runtime: Runtime) -> Kernels | None:
    """Make the kernels of a rank that serves; each is compiled when a product first needs it."""
    if not runtime.driver.has_kernels:
        return None
    library = KernelLibrary(runtime.driver)
    return Kernels(library, settings.dtype, settings.gemm, settings.math, settings.conv)


def serve(comm: MPI.Comm, runtime: Runtime, kernels: Kernels | None) -> Any:
    """Compute parts of rank 0's products until it has trained; return what it sends then.

    Raises the error with which its training ended.
    """
    stream, phase = runtime.streams.compute, runtime.phases.phase
    receiving, serving, sending = phase(SENDING), phase(SERVING, stream), phase(RECEIVING)
    waiting, parts = phase(WAITING), list[_Part]()
    number = np.zeros(1, np.int64)
    while True:
        with waiting:
            request = comm.Ibcast(number)
            while not request.Test():
                runtime.job.pause()
        if number[0] == _END:
            result = comm.bcast(None)
            if isinstance(result, AgreedError):
                raise result
            return result
        if number[0] == _NEW:
            parts.append(_Part(comm.bcast(None), comm, runtime.driver, kernels))
            continue
        part = parts[number[0]]
        with receiving:
            part.receive()
        with serving:
            part.compute(stream)
        with sending:
            part.send()


def run(settings: Settings, runtime: Runtime, train: Callable[[Runtime, Fork], Any]) -> Any:
    """Let rank 0 ``train`` in a job of its own, with the others' help; return its result on all ranks.

    Collective. What ``train`` raises as AgreedError is raised on all ranks.
    """
    job: Job = runtime.job
    comm = job.comm.Dup()
    if runtime.phases.profile:
        runtime.phases.use_profile(lambda: None)  # rank 0 would wait for ranks that only serve
    if job.rank > 0:
        # As on rank 0: a loss that is not finite says it once.
        with np.errstate(all="ignore"):
            return serve(comm, runtime, _kernels(settings, runtime))
    fork = Fork(comm, runtime.phases)
    try:
        result = train(replace(runtime, job=job.alone()), fork)
    except AgreedError as error:
        fork.end(error)
        raise
    fork.end(result)
    return result
