"""Products of pruned layers that share their weights against dense ones and cuSPARSE, on one GPU.

    python3 -m bench sparse
    python3 bench/sparse.py fc6 fc7               some of the layers

Random weights of which some are left, with random codes; normal inputs, one sample and 64. Beside the sparse
products: the dense weights in float32, bf16, signed bytes and signs. Results are compared with float64 first,
and what is wrong ends in exit code 1. Each product is timed twice: on copies of the weights in turns, so many
that no cache holds them, and on one copy, which a cache may hold. Beside it: the bytes that it must read and
write, the time of those at the rate of a large update of parameters, and the first time in units of that.
cuSPARSE and cuBLAS run in PyTorch (bench/baselines/torch_sparse.py), in the same two ways.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tabulate import tabulate

from bench.nets import baseline
from bench.program import WrongResult, read_names, require_gpu, start
from bench.timing import Times, alternate, repetition
from nn.launch.binary import BinaryProduct, binarise
from nn.launch.csr import Csr, SparseMatrix, csr_of
from nn.launch.gemm import gemm
from nn.launch.gemm.components import Components, Split
from nn.launch.gemm.layer import component_product
from nn.launch.gemm.product import Product
from nn.launch.gemm.versions import runs_gemm
from nn.launch.int8 import Int8Product, quantise
from nn.launch.kernels import Kernels
from nn.launch.quantised import QuantisedProduct, QuantisedRows
from nn.launch.sparse import FEW, SparseProduct, bind_shared
from nn.launch.update import Segment, Update, UpdateArrays
from nn.optimisers import Sgd
from pyrt.arguments import Parser
from pyrt.arrays import DeviceArray
from pyrt.clock import StreamClock
from pyrt.errors import UserError
from pyrt.kernels import KernelLibrary, Launch, in_order


@dataclass(frozen=True)
class Layer:
    """A dense layer, the part of its weights that is left, and the numbers that these share."""

    name: str
    inputs: int
    units: int
    kept: float
    numbers: int

    def __str__(self) -> str:
        return f"{self.name}, {self.inputs} x {self.units}, {self.kept:.0%} kept"


LAYERS = {
    "fc6": Layer("fc6 of vgg16", 25088, 4096, 0.04, 32),
    "fc7": Layer("fc7 of vgg16", 4096, 4096, 0.04, 32),
    "fc8": Layer("fc8 of vgg16", 4096, 1000, 0.23, 32),
    "lenet": Layer("the first of LeNet-300-100", 784, 300, 0.08, 64),
}
"""Rates and codebooks of Han, Mao and Dally (2016), tables 2 and 4: 8, 5 and 6 bits hold their codes."""

BATCHES = (1, 64)
ROUNDS = 20
SHARED_THREADS = (256, 512, 1024)
"""Threads of a block, where a sample is in shared memory."""

DENSE = (("tiled", "float32"), ("mma", "float32"), ("wgmma", "float32"), ("wgmma", "bf16"))
"""Dense products: the version, and its accuracy."""

CHECKED = 4
"""Samples whose results are compared with float64."""

UPDATED = 1 << 26
"""Parameters of the update that tells the rate of memory."""

BEYOND_CACHES = 200e6
"""Bytes of copies that no cache holds."""

MOST_COPIES = 64
"""Where more would be needed, weights are always in a cache."""

TOLERANCES = {"sparse": 1e-5, "float32": 3e-5, "bf16": 2e-2, "int8": 5e-2, "binary": math.inf}
"""Relative max norm of the error above which a result is wrong, not inexact; signs alone say nothing here."""


class Arrays:
    """A layer's weights, and inputs for so many samples, on the host."""

    def __init__(self, layer: Layer, batch: int) -> None:
        generator = np.random.default_rng(0)
        size = layer.units * layer.inputs
        places = np.flatnonzero(generator.random(size, np.float32) < layer.kept)
        codebook = generator.standard_normal(layer.numbers, np.float32)
        codes = generator.integers(0, layer.numbers, len(places), np.uint8)
        self.csr = csr_of((layer.units, layer.inputs), places, codes, codebook)
        self.X = generator.standard_normal((batch, layer.inputs), np.float32)

    def exact(self) -> np.ndarray:
        """Return X W^T of the first samples, float64."""
        csr, count = self.csr, self.csr.weights
        weights, units = csr.codebook[csr.codes[:count]].astype(np.float64), csr.unit_of[csr.rows]
        return np.array(
            [np.bincount(units, weights * x[csr.columns[:count]], csr.shape[0]) for x in self.X[:CHECKED]]
        )


Bind = Callable[[], Launch]
"""Binds a product to its inputs and outputs and to a copy of the weights."""


@dataclass(frozen=True)
class Contender:
    """A way to the product: how it is bound to each copy of its weights, and the bytes of one."""

    binds: Sequence[Bind]
    nbytes: int
    math: str


def copies(nbytes: int) -> int:
    """Count the copies of so many bytes that no cache holds; 1 where they would be too many."""
    count = math.ceil(BEYOND_CACHES / nbytes)
    return count if count <= MOST_COPIES else 1


def sparse_ways(
    library: KernelLibrary, csr: Csr, X: DeviceArray, Y: DeviceArray
) -> Iterator[tuple[str, Contender]]:
    """Yield the rungs of sparse products that suit so many samples."""
    kernels = Kernels(library, np.float32)
    matrices = [SparseMatrix.from_host(library.driver, csr) for _ in range(copies(csr.nbytes))]
    few = X.shape[0] <= FEW
    for version in ("thread", "warp", "vector") if few else ("vector", "lanes", "tile"):
        works = [SparseProduct(Y, X, W, version=version) for W in matrices]
        yield version, Contender([partial(work.on_device, kernels) for work in works], csr.nbytes, "sparse")
    if few:
        yield "shared", _shared(kernels, [SparseProduct(Y, X, W) for W in matrices], 512)
        interleaved = csr.interleaved()
        works = [SparseProduct(Y, X, SparseMatrix.from_host(library.driver, interleaved)) for _ in matrices]
        for threads in SHARED_THREADS:
            yield f"shared, interleaved, {threads} threads", _shared(kernels, works, threads)


def _shared(kernels: Kernels, works: Sequence[SparseProduct], threads: int) -> Contender:
    binds = [partial(bind_shared, kernels, work, threads) for work in works]
    return Contender(binds, works[0].W.csr.nbytes, "sparse")


def dense_ways(
    library: KernelLibrary, csr: Csr, X: DeviceArray, Y: DeviceArray
) -> Iterator[tuple[str, Contender]]:
    """Yield the dense products for these sizes that the device has."""
    host = csr.dense()
    matrices = [DeviceArray.from_host(library.driver, host) for _ in range(copies(host.nbytes))]
    for version, accuracy in DENSE:
        if not runs_gemm(version, library.driver.architecture):
            continue
        kernels = Kernels(library, np.float32, version, accuracy)
        products = [Product(Y, X, W, transpose_b=True) for W in matrices]
        if kernels.choose(products[0]) == version:  # and not another one, which is there by itself
            itemsize = 2 * kernels.components if version == "wgmma" else 4
            binds = [partial(dense, kernels, product) for product in products]
            yield f"dense, {version}, {accuracy}", Contender(binds, itemsize * host.size, accuracy)


def few_bits_ways(
    library: KernelLibrary, csr: Csr, X: DeviceArray, Y: DeviceArray
) -> Iterator[tuple[str, Contender]]:
    """Yield the products of the dense weights as signed bytes, and as signs."""
    kernels, driver, host = Kernels(library, np.float32), library.driver, csr.dense()
    ways: dict[str, tuple[type[QuantisedProduct], Callable[[np.ndarray], Quantised]]]
    ways = {"int8": (Int8Product, quantise), "binary": (BinaryProduct, binarise)}
    for name, (product, pack) in ways.items():
        numbers, scales = pack(host)
        binds: list[Bind] = []
        for _ in range(copies(numbers.nbytes)):
            W = QuantisedRows.from_host(driver, host.shape[1], numbers, scales)
            binds.append(partial(product(Y, X, W).on_device, kernels))
        yield name, Contender(binds, numbers.nbytes + scales.nbytes, name)


Quantised = tuple[np.ndarray, np.ndarray]
"""Numbers and scales of rows."""


def dense(kernels: Kernels, product: Product) -> Launch:
    """Bind a dense product as inference has it: where it reads components, those of W are there."""
    if kernels.gemm_version != "wgmma":
        return gemm(kernels, product)
    a, b = (
        Components.empty(kernels.driver, kernels.components, *array.shape) for array in (product.A, product.B)
    )
    stream = kernels.driver.create_stream()
    Split([(product.B, b)]).on_device(kernels)(stream)
    kernels.driver.synchronize_stream(stream)
    works = Split([(product.A, a)]), component_product(product, a, b)
    return in_order([work.on_device(kernels) for work in works])


def measure(clock: StreamClock, launches: Sequence[Launch]) -> Callable[[], float]:
    """Make a function that takes one repetition of these in turns: seconds of one of them."""
    take = repetition(clock, in_order(launches).call)
    return lambda: take() / len(launches)


def error(clock: StreamClock, launch: Launch, Y: DeviceArray, exact: np.ndarray) -> float:
    """Return the largest error of the first samples, relative to the largest element."""
    clock.driver.fill(Y.pointer, 0xFF, Y.nbytes, clock.stream)  # all bits set are a NaN
    launch(clock.stream)
    clock.driver.synchronize_stream(clock.stream)
    found = Y.to_host()[: len(exact)]
    return float(np.abs(found - exact).max() / np.abs(exact).max())


def rate(clock: StreamClock, library: KernelLibrary) -> float:
    """Measure the bytes that a large update p -= lr g reads and writes in a microsecond."""
    p, g = (DeviceArray.empty(clock.driver, (UPDATED,), np.float32) for _ in range(2))
    arrays = UpdateArrays(Sgd(lr=0.0, momentum=0.0), p, g, {}, None)
    update = Update(arrays, [Segment(0, UPDATED, 0)]).on_device(Kernels(library, np.float32))
    times = alternate({"update": repetition(clock, update.call)}, ROUNDS)["update"]
    for array in (p, g):
        clock.driver.free(array.pointer)
    return (2 * p.nbytes + g.nbytes) / times.median


ONE = "one copy, "
"""Before the name of a way that is timed on one copy of the weights."""

Rows = list[list[object]]


def rows(clock: StreamClock, library: KernelLibrary, arrays: Arrays, bytes_a_us: float) -> Rows:
    """Check and time all ways to a product. Raises WrongResult for one that is wrong."""
    X = DeviceArray.from_host(clock.driver, arrays.X)
    Y = DeviceArray.empty(clock.driver, (len(arrays.X), arrays.csr.shape[0]), np.dtype(np.float32))
    exact = arrays.exact()
    errors: dict[str, float] = {}
    measures: dict[str, Callable[[], float]] = {}
    ways = {
        name: way
        for kind in (sparse_ways, dense_ways, few_bits_ways)
        for name, way in kind(library, arrays.csr, X, Y)
    }
    for name, way in ways.items():
        launches = [bind() for bind in way.binds]
        errors[name] = error(clock, launches[-1], Y, exact)
        if not errors[name] <= TOLERANCES[way.math]:
            raise WrongResult(f"{name}: off by {errors[name]:.1e}")
        measures[name] = measure(clock, launches)
        measures[ONE + name] = measure(clock, launches[:1])
    times = alternate(measures, ROUNDS)
    found: Rows = []
    for name, way in ways.items():
        moved = way.nbytes + X.nbytes + Y.nbytes
        memory = times[name] if len(way.binds) * way.nbytes >= BEYOND_CACHES else None
        found.append(row(name, memory, times[ONE + name], moved / bytes_a_us))
        found[-1] += [moved / 1e6, errors[name]]
    return found


def row(name: str, memory: Times | None, one: Times, floor: float) -> list[object]:
    """Make the first columns of a row: times from memory and of one copy, and what they could be."""
    medians = [memory.median, memory.spread] if memory else [None, None]
    return [name, *medians, one.median, one.spread, floor, memory.median / floor if memory else None]


def theirs(line: Mapping[str, Any]) -> list[object]:
    """Make a row of a line of PyTorch's."""
    return [line["way"], line["memory"], line["memory_spread"], line["one"], line["one_spread"]]


HEADERS = ["product", "us", "min to max", "us, one copy", "min to max", "us of its bytes", "x", "MB", "error"]
FORMATS = ("", ".1f", "", ".1f", "", ".1f", ".2f", ".2f", ".1e")


def main(arguments: Sequence[str]) -> int:
    names = read_names(Parser("sparse.py", __doc__), arguments, "LAYER", "layer", LAYERS)
    require_gpu()
    import pyrt

    try:
        lines = list(baseline(*names, program="torch_sparse.py"))
    except UserError as failed:
        print(f"left out: {failed}", flush=True)
        lines = []
    for name in names:
        for batch in BATCHES:
            with pyrt.start() as runtime:  # all of a layer's memory goes when it is done
                library = KernelLibrary(runtime.driver)
                clock = StreamClock(runtime.driver, runtime.driver.create_stream())
                bytes_a_us = rate(clock, library)
                body = rows(clock, library, Arrays(LAYERS[name], batch), bytes_a_us)
            body += [theirs(line) for line in lines if (line["layer"], line["batch"]) == (name, batch)]
            print(f"\n{LAYERS[name]}, batch {batch}; a large update moves {bytes_a_us / 1e6:.2f} TB/s")
            print(tabulate(body, headers=HEADERS, floatfmt=FORMATS, missingval="-"), flush=True)
    return 0


if __name__ == "__main__":
    start("sparse.py", main)
