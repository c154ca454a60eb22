"""Flops and bytes of a step, counted where they happen, beside those of its list of operations.

On the CPU the products that NumPy is given, the copies that the driver makes and what MPI is given are
counted in runs of a few and of some more steps, whose difference is that of so many steps alone. On a GPU
the hardware counts: Nsight Compute reads multiply-adds and bytes of each kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from experiments import ncu
from experiments.study import Point, Row
from pyrt.errors import UserError

if TYPE_CHECKING:
    from nn.app.options import Options
    from nn.autotune.listed_step import ListedStep
    from pyrt.driver.null import DeviceProperties
    from pyrt.job import Job

RATE = 1e-4
"""Learning rate: so small that no wide network diverges; it is work that is counted and timed."""

INPUTS, CLASSES = 784, 10
"""Of the embedded digits."""

FEW, MORE = 4, 12
"""Steps of the two runs whose counts are subtracted: losses come down every fourth step, or every one."""

UPLOAD, DOWN, UP = "images and labels up", "gradients down", "gradients up"
"""Copies between host and device;"""
LOSSES = "losses down"
SUM, SHARDS = "given to MPI_Iallreduce", "to other ranks by MPI_Ialltoallv, MPI_Iallgatherv"
"""what MPI sums, or sends by itself;"""
UNLISTED = "products that are not listed"

FLOP, BYTE = "flop", "byte"

METRICS = {
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": "ffma",
    "dram__bytes_read.sum": "read",
    "gpu__time_duration.sum": "seconds",
}
"""Counters of Nsight Compute: multiply-adds of threads, bytes from the device's memory, a kernel's time."""


def options_of(point: Point, steps: int, epochs: int, **others: Any) -> Options:
    """Return options: one hidden layer, so many steps an epoch, rows in the set's order, no validation."""
    from nn.app.options import Options

    return Options(
        hidden=(point["hidden"],),
        batch=point["batch"],
        samples=point["batch"] * steps,
        epochs=epochs,
        lr=RATE,
        momentum=0.0,
        val_fraction=0.0,
        shuffle=False,
        device=point["device"],
        placement=point["placement"],
        exchange=point["exchange"],
        **others,
    )


def listed_step(
    point: Point, ranks: int, device: Any = None, exchange: str = "host", gemm: str = "auto"
) -> ListedStep:
    """Rank 0's list of the step of a point, on such a device; by default NumPy's."""
    from nn.autotune.listed_step import Task, on_null
    from nn.model.network import Network
    from nn.parallel.plan import Plan
    from pyrt.driver.null import DeviceProperties

    network = Network.dense((INPUTS, point["hidden"], CLASSES), "sigmoid", "softmax")
    task = Task(network, point["batch"], gemm=gemm)
    return on_null(task, Plan.data(ranks, network.depth), device or DeviceProperties(), exchange=exchange)


class Multiplied(NamedTuple):
    """A product of the list."""

    name: str
    M: int
    N: int
    K: int
    bytes_read: int

    @property
    def flops(self) -> int:
        return 2 * self.M * self.N * self.K


def products(listed: ListedStep) -> list[Multiplied]:
    """List the products of a list that is not fused, in order; one for each panel."""
    from nn.launch.gemm.product import Product
    from nn.program.operations import Operation

    return [
        Multiplied(item.name, *item.work.sizes, sum(array.nbytes for array in item.reads))
        for item in listed.items
        if isinstance(item, Operation) and isinstance(item.work, Product)
    ]


def transfers(listed: ListedStep, ranks: int) -> dict[str, int]:
    """Bytes a step that go up and down, and that MPI is given, where rows are streamed and host memory
    exchanges; of a list that is not fused."""
    from nn.launch.pixels import Pixels
    from nn.program.operations import Operation

    pixels = next(
        item for item in listed.items if isinstance(item, Operation) and isinstance(item.work, Pixels)
    )
    images, labels, *_ = pixels.reads
    gradients = listed.bucket_elements * listed.itemsize
    exchanged = {DOWN: gradients, SUM: gradients, UP: gradients} if ranks > 1 else {}
    return {UPLOAD: images.nbytes + labels.nbytes, **exchanged, LOSSES: listed.itemsize}


class CountingDriver:
    """A driver that adds up the bytes of copies by what they are of: images are uint8, labels int32."""

    def __init__(self, driver: Any, counted: Counter[Any]) -> None:
        self._driver, self._counted = driver, counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def copy_to_device(self, pointer: int, host: Any, stream: Any) -> None:
        self._counted[UP if host.dtype.kind == "f" else UPLOAD] += host.nbytes
        self._driver.copy_to_device(pointer, host, stream)

    def copy_to_host(self, host: Any, pointer: int, stream: Any) -> None:
        from nn.train.losses import RING

        self._counted[LOSSES if host.size == RING else DOWN] += host.nbytes
        self._driver.copy_to_host(host, pointer, stream)


class CountingComm:
    """A communicator that adds up the bytes that this rank gives to the calls of exchanges."""

    def __init__(self, comm: Any, counted: Counter[Any], itemsize: int) -> None:
        self._comm, self._counted, self._itemsize = comm, counted, itemsize

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Dup(self) -> CountingComm:
        return CountingComm(self._comm.Dup(), self._counted, self._itemsize)

    def Iallreduce(self, send: Any, receive: Any) -> Any:
        self._counted[SUM] += send.nbytes
        return self._comm.Iallreduce(send, receive)

    def Ialltoallv(self, send: Any, receive: Any) -> Any:
        others = sum(send[1]) - send[1][self._comm.rank]
        self._counted[SHARDS] += others * self._itemsize
        return self._comm.Ialltoallv(send, receive)

    def Iallgatherv(self, send: Any, message: Any) -> Any:
        own = message[1][self._comm.rank]
        self._counted[SHARDS] += own * (self._comm.size - 1) * self._itemsize
        return self._comm.Iallgatherv(send, message)


@contextmanager
def _counting(counted: Counter[Any]) -> Iterator[None]:
    """Within the block `train` opens counting drivers, and NumPy's products count by (M, N, K)."""
    import numpy as np

    from nn.app import start

    open_device, matmul = start.open_device, np.matmul

    def opened(*arguments: Any) -> Any:
        device = open_device(*arguments)
        return replace(device, driver=CountingDriver(device.driver, counted))

    def multiplied(A: Any, B: Any, **others: Any) -> Any:
        counted[A.shape[0], B.shape[1], A.shape[1]] += 1
        return matmul(A, B, **others)

    with patch.object(start, "open_device", opened), patch.object(np, "matmul", multiplied):
        yield


def count(point: Point, job: Job) -> Counter[Any]:
    """Count what this rank does in a step. Collective.

    Both runs have the same work done once, and the same test at the end. An epoch is one step: setup
    depends on its length.
    """
    from train import train

    of_runs = []
    for steps in (FEW, MORE):
        counted = Counter[Any]()
        comm: Any = CountingComm(job.comm, counted, 4)
        with _counting(counted):
            train(options_of(point, 1, steps, graph=False), replace(job, comm=comm))
        of_runs.append(counted)
    few, more = of_runs
    return Counter({what: (more[what] - few[what]) / (MORE - FEW) for what in more})


def compared(listed: ListedStep, counted: Mapping[Any, float], point: Point, ranks: int) -> list[Row]:
    """Listed beside counted: products where NumPy multiplies, copies, and what MPI is given."""
    if point["exchange"] == "device":
        from pyrt.exchange.registry import exchanges

        buckets = [panel.bucket for panel in listed.panels]
        sent = exchanges()["device"].sent(buckets, ranks, 0, listed.itemsize).elements * listed.itemsize
        return [{"what": SHARDS, "unit": BYTE, "listed": sent, "counted": counted[SHARDS]}]
    moved = [
        {"what": what, "unit": BYTE, "listed": nbytes, "counted": counted[what]}
        for what, nbytes in transfers(listed, ranks).items()
    ]
    return (_products_compared(listed, counted) if point["device"] == "cpu" else []) + moved


def _products_compared(listed: ListedStep, counted: Mapping[Any, float]) -> list[Row]:
    """Make a row for each product, its panels together, and one for work that nobody has listed."""
    all_products, rows = products(listed), []
    for name in dict.fromkeys(product.name for product in all_products):
        mine = [product for product in all_products if product.name == name]
        sizes = {(product.M, product.N, product.K) for product in mine}
        flops = sum(2 * M * N * K * counted[M, N, K] for M, N, K in sizes)
        listed_flops = sum(product.flops for product in mine)
        rows.append({"what": name, "unit": FLOP, "listed": listed_flops, "counted": flops})
    known = {(product.M, product.N, product.K) for product in all_products}
    unknown = sum(
        2 * what[0] * what[1] * what[2] * calls
        for what, calls in counted.items()
        if isinstance(what, tuple) and what not in known
    )
    return rows + ([{"what": UNLISTED, "unit": FLOP, "listed": 0, "counted": unknown}] if unknown else [])


def measure_counts(point: Point, job: Job) -> list[Row]:
    """Rows of `compared`. Collective."""
    return compared(listed_step(point, job.size), count(point, job), point, job.size)


def measure_counters(point: Point, job: Job, device: DeviceProperties) -> list[Row]:
    """Compare each product of the first step with what the hardware counts when `gemm_tiled` does it.

    The list is that of the device: NumPy's has the products of the backward pass in another order.
    """
    with job.agree():
        launches = ncu.launches(step_words(point["hidden"], point["batch"], "tiled"), "gemm_tiled", METRICS)
        return counters_compared(products(listed_step(point, 1, device, gemm="tiled")), launches)


def step_words(hidden: int, batch: int, gemm: str) -> list[str]:
    """Return the words of `train.py` for one step on a GPU, launched kernel by kernel."""
    words = f"--hidden {hidden} --batch {batch} --samples {batch} --epochs 1 --val-fraction 0 --lr {RATE}"
    return f"{words} --momentum 0 --device cuda --gemm {gemm} --no-graph".split()


def counters_compared(listed: Sequence[Multiplied], launches: Sequence[ncu.Launch]) -> list[Row]:
    """Flops and bytes read of each product of the list, which the first launches must be of."""
    from nn.launch.gemm.ladder import ladder_shape

    if len(launches) < len(listed):
        raise UserError(f"ncu: counted {len(launches)} products, the list has {len(listed)}")
    rows = []
    for product, launch in zip(listed, launches, strict=False):
        grid, _ = ladder_shape("tiled", product.M, product.N)
        if launch.grid[: len(grid)] != grid or launch.counts.keys() != set(METRICS.values()):
            raise UserError(f"ncu: {launch} is not {product.name} of the list")
        about = {"what": product.name, "us": 1e6 * launch.counts["seconds"]}
        flops, read = 2 * launch.counts["ffma"], launch.counts["read"]
        rows.append({**about, "unit": FLOP, "listed": product.flops, "counted": flops})
        rows.append({**about, "unit": BYTE, "listed": product.bytes_read, "counted": read})
    return rows
