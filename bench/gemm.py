"""The ladder of matrix products: every version, and what `auto` takes, against cuBLAS on the same data.

    python -m bench.gemm
    python -m bench.gemm --file examples/my_gemm.cu --kernel my_gemm --shape 512,512,512

The second line is for a kernel of your own: it takes part in one product (bench/own_gemm.py says what it must
look like). Without a GPU that is done on the emulated device, where times mean nothing: give small sizes.

Each product is compared with a float64 one first, on normal and on uniform [0, 1) data; what is wrong is
not timed, and ends in exit code 1. Times are for normal data that the GPU's cache may hold, as in a step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tabulate import tabulate

from bench import cublas
from bench.cublas import MATHS, Cublas
from bench.own_gemm import OwnKernel, add_options, read_options
from bench.program import require_gpu, start
from bench.timing import ROUNDS, Times, alternate, repetition
from nn.launch import gemm as launch
from nn.launch.gemm.versions import GEMM_VERSIONS, runs_gemm
from nn.launch.kernels import Kernels
from pyrt.arguments import Parser
from pyrt.arrays import DeviceArray
from pyrt.clock import StreamClock, Work
from pyrt.devices import first_device
from pyrt.driver import Driver
from pyrt.driver.null import NullDriver
from pyrt.kernels import KernelLibrary

TOLERANCES = {"float32": 3e-5, "tf32": 5e-3}
"""Relative max norm of the error above which a product of that kind of arithmetic is wrong, not inexact."""

DATA = ("[0, 1)", "normal")
"""Kinds of random data, the timed one last."""

AUTO_TF32 = "auto, --math tf32"

ROUNDS_WITHOUT_GPU = 2
"""Repetitions on the emulated device, whose times mean nothing."""

HEADERS = {
    "version": "version",
    "us": "us",
    "spread": "min to max",
    "tflops": "TFLOP/s",
    "float32": "x cuBLAS float32",
    "tf32": "x cuBLAS tf32",
    "error": "error, normal",
    "error01": "error, [0, 1)",
}


@dataclass(frozen=True)
class Product:
    """op(A) op(B): op(A) (M, K), op(B) (K, N); A or B may be given transposed."""

    name: str
    M: int
    N: int
    K: int
    transpose_a: bool = False
    transpose_b: bool = False

    @property
    def flops(self) -> int:
        return 2 * self.M * self.N * self.K

    def __str__(self) -> str:
        given = [word for word, is_so in (("A", self.transpose_a), ("B", self.transpose_b)) if is_so]
        how = f", {given[0]} transposed" if given else ""
        return f"{self.name}, {self.M} x {self.N} x {self.K}{how}"


PRODUCTS = (
    Product("Z1 = X W1^T", 750, 512, 784, transpose_b=True),
    Product("dW1 = dZ1^T X", 512, 784, 750, transpose_a=True),
    Product("Z2 = A1 W2^T", 750, 10, 512, transpose_b=True),
    Product("dW2 = dZ2^T A1", 10, 512, 750, transpose_a=True),
    Product("dA1 = dZ2 W2", 750, 512, 10),
    Product("course, first layer", 800, 1000, 784),
    Product("course, second layer", 800, 10, 1000),
    Product("Z1, one GPU", 3000, 512, 784, transpose_b=True),
    Product("dW1, one GPU", 512, 784, 3000, transpose_a=True),
    Product("square", 4096, 4096, 4096, transpose_b=True),
)
"""The products of a 784-512-10 step of 750 and of 3000 samples, the course's sizes, and a large one."""


@dataclass(frozen=True)
class Contender:
    """One way to a product: its work, and the arithmetic that it is judged by."""

    work: Work
    math: str


@dataclass(frozen=True)
class Result:
    """What one contender did: its error on each kind of `DATA`, and its times unless it was wrong."""

    errors: dict[str, float]
    times: Times | None


def relative_error(found: np.ndarray, exact: np.ndarray) -> float:
    """max |found - exact| / max |exact|; NaN where an element of ``found`` is."""
    return float(np.abs(found - exact).max() / np.abs(exact).max())


class Operands:
    """A, B and D of a product on the device, in float32."""

    def __init__(self, clock: StreamClock, product: Product) -> None:
        self.product = product
        self._clock = clock
        M, N, K = product.M, product.N, product.K
        shapes = ((K, M) if product.transpose_a else (M, K)), ((N, K) if product.transpose_b else (K, N))
        self.A, self.B, self.D = (
            DeviceArray.empty(clock.driver, shape, np.float32) for shape in (*shapes, (M, N))
        )
        self._exact = np.zeros((M, N))

    @property
    def on_device(self) -> launch.Product:
        """Return the product of these operands, as launches take it."""
        return launch.Product(self.D, self.A, self.B, self.product.transpose_a, self.product.transpose_b)

    def fill(self, kind: str, rng: np.random.Generator) -> None:
        """Draw A and B anew, and multiply them in float64."""
        draw = rng.standard_normal if kind == "normal" else rng.random
        self.set(*(draw(array.shape, np.float32) for array in (self.A, self.B)))

    def set(self, A: np.ndarray, B: np.ndarray) -> None:
        """Take these as A and B, and multiply them in float64."""
        self.A.set(A)
        self.B.set(B)
        left, right = (host.astype(np.float64) for host in (A, B))
        product = self.product
        self._exact = (left.T if product.transpose_a else left) @ (right.T if product.transpose_b else right)

    def error(self, work: Work) -> float:
        """Run the work; return the relative error of D, which is NaN before."""
        driver, stream = self._clock.driver, self._clock.stream
        driver.fill(self.D.pointer, 0xFF, self.D.nbytes, stream)  # all bits set are a NaN
        work(stream)
        driver.synchronize_stream(stream)
        return relative_error(self.D.to_host(), self._exact)

    def free(self) -> None:
        for array in (self.A, self.B, self.D):
            self._clock.driver.free(array.pointer)


def ladder(operands: Operands, library: KernelLibrary, cublas: Cublas | None) -> dict[str, Contender]:
    """List all ways to the product that the device has, by name: the versions from the first to the
    fastest, `auto`, cuBLAS."""
    product = operands.on_device
    contenders = {
        version: Contender(launch.gemm(Kernels(library, np.float32, version), product), "float32")
        for version in (*GEMM_VERSIONS, "auto")
        if runs_gemm(version, library.driver.architecture)
    }
    kernels = Kernels(library, np.float32, math="tf32")
    if kernels.uses_tensor_cores:
        contenders[AUTO_TF32] = Contender(launch.gemm(kernels, product), "tf32")
    if cublas is not None:
        for math in MATHS:
            contenders[f"cuBLAS {math}"] = Contender(cublas.product(product, math), math)
    return contenders


def errors_of(
    operands: Operands, contenders: Mapping[str, Contender], rng: np.random.Generator
) -> dict[str, dict[str, float]]:
    """Return each contender's relative error on each kind of `DATA`."""
    errors: dict[str, dict[str, float]] = {name: {} for name in contenders}
    for kind in DATA:
        operands.fill(kind, rng)
        for name, contender in contenders.items():
            errors[name][kind] = operands.error(contender.work)
    return errors


def compare(
    operands: Operands,
    contenders: Mapping[str, Contender],
    clock: StreamClock,
    rng: np.random.Generator,
    rounds: int = ROUNDS,
) -> dict[str, Result]:
    """Check all, then time in turns those that are right, so many times each."""
    errors = errors_of(operands, contenders, rng)
    right = [name for name in contenders if is_right(errors[name], contenders[name].math)]
    times = alternate({name: repetition(clock, contenders[name].work) for name in right}, rounds)
    return {name: Result(errors[name], times.get(name)) for name in contenders}


def is_right(errors: Mapping[str, float], math: str) -> bool:
    """Return whether all errors are within what that arithmetic allows; a NaN is not."""
    return all(error <= TOLERANCES[math] for error in errors.values())


def table(product: Product, results: Mapping[str, Result]) -> str:
    """Tabulate one product: a row for each contender."""
    rows = [_row(product, name, result, results) for name, result in results.items()]
    formats = ("", ".1f", "", ".1f", ".2f", ".2f", ".1e", ".1e")
    body = tabulate(rows, headers=HEADERS, floatfmt=formats, missingval="-")
    return f"{product}\n{body}"


def _row(product: Product, name: str, result: Result, results: Mapping[str, Result]) -> dict[str, object]:
    times = result.times
    return {
        "version": name,
        "us": times.median if times else None,
        "spread": times.spread if times else "WRONG",
        "tflops": product.flops / times.median * 1e-6 if times else None,
        "float32": times_as_fast(result, results.get("cuBLAS float32")),
        "tf32": times_as_fast(result, results.get("cuBLAS tf32")),
        "error": result.errors["normal"],
        "error01": result.errors["[0, 1)"],
    }


def times_as_fast(result: Result, other: Result | None) -> float | None:
    """Divide the other's time by this one's; return None if one of them has no time."""
    if result.times is None or other is None or other.times is None:
        return None
    return other.times.median / result.times.median


def allowed_error(kind: str, results: Mapping[str, Result]) -> float:
    """Return `auto`'s allowed float32 error: 2e-6 or, if larger, 1.2 times cuBLAS's on the same data."""
    rival = results.get("cuBLAS float32")
    return max(2e-6, 1.2 * rival.errors[kind]) if rival is not None else 2e-6


def summary(all_results: Mapping[Product, Mapping[str, Result]]) -> str:
    """Compare `auto` with cuBLAS on all products: times, errors over the allowed ones, TF32's times."""
    rows = []
    for product, results in all_results.items():
        auto = results["auto"]
        parts = [auto.errors[kind] / allowed_error(kind, results) for kind in reversed(DATA)]
        row = [str(product), auto.times.median if auto.times else None]
        row += [times_as_fast(auto, results.get("cuBLAS float32")), *parts]
        if (tf32 := results.get(AUTO_TF32)) is not None and tf32.times is not None:
            row += [tf32.times.median, times_as_fast(tf32, results.get("cuBLAS tf32"))]
        rows.append(row)
    headers = ["auto", "us", HEADERS["float32"], "error / allowed", "[0, 1)", "tf32 us", HEADERS["tf32"]]
    formats = ("", ".1f", ".2f", ".2f", ".2f", ".1f", ".2f")
    return tabulate(rows, headers=headers, floatfmt=formats, missingval="-")


def compiled(driver: Driver, products: Sequence[Product] = PRODUCTS) -> KernelLibrary:
    """Compile the kernels of all versions of these products that the device runs, side by side."""
    null = NullDriver.like(driver)
    for product in products:
        ladder(Operands(StreamClock(null, None), product), KernelLibrary(null), None)
    library = KernelLibrary(driver)
    library.compile_sources(null.sources)
    return library


def measure(
    products: Sequence[Product], library: KernelLibrary, cublas: Cublas | None
) -> Iterator[tuple[Product, dict[str, Result]]]:
    """Yield the results of each product, as soon as they are there."""
    clock = StreamClock(library.driver, library.driver.create_stream())
    rng = np.random.default_rng(0)
    for product in products:
        operands = Operands(clock, product)
        yield product, compare(operands, ladder(operands, library, cublas), clock, rng)
        operands.free()


def compare_own(own: OwnKernel, sizes: Sequence[int]) -> int:
    """Print how a kernel of the user's own does beside the others, on one product; the exit code."""
    driver = first_device()
    clock = StreamClock(driver, driver.create_stream())
    M, N, K = sizes
    product = Product(own.name, M, N, K)
    operands = Operands(clock, product)
    operands.fill(DATA[-1], np.random.default_rng(0))
    contenders = {own.name: Contender(own.bind(operands, clock), "float32")}
    is_gpu = driver.name == "cuda"
    print(f"{own.file}: a product in float32 on {driver.name}: {driver.device_name}", flush=True)
    if not is_gpu:
        print("No GPU: results are checked on the emulated device, and times mean nothing.", flush=True)
    rival = cublas.find() if is_gpu else None
    contenders |= ladder(operands, compiled(driver, [product]), rival)
    rounds = ROUNDS if is_gpu else ROUNDS_WITHOUT_GPU
    results = compare(operands, contenders, clock, np.random.default_rng(0), rounds)
    print(f"\n{table(product, results)}", flush=True)
    driver.close()
    return exit_code({product: results})


def exit_code(all_results: Mapping[Product, Mapping[str, Result]]) -> int:
    """1 where a result was wrong, which is said."""
    wrong = [
        f"{name} of {product}"
        for product, results in all_results.items()
        for name, result in results.items()
        if result.times is None
    ]
    for what in wrong:
        print(f"gemm.py: error: wrong result: {what}", file=sys.stderr)
    return 1 if wrong else 0


def main(arguments: Sequence[str]) -> int:
    parser = Parser("gemm.py", __doc__)
    add_options(parser)
    options = parser.parse_args(arguments)
    own = read_options(parser, options)
    if own is not None:
        return compare_own(own, options.shape)
    require_gpu()
    from pyrt.driver.cuda import CudaDriver

    driver = CudaDriver(0)
    rival = cublas.find()
    print(f"Matrix products in float32 on {driver.device_name}; x: times as fast as")
    print(rival.name if rival else "cuBLAS: not installed: PyTorch or CuPy would bring it", flush=True)
    library, all_results = compiled(driver), {}
    for product, results in measure(PRODUCTS, library, rival):
        all_results[product] = results
        print(f"\n{table(product, results)}", flush=True)
    print(f"\n{summary(all_results)}", flush=True)
    driver.close()
    return exit_code(all_results)


if __name__ == "__main__":
    start("gemm.py", main)
