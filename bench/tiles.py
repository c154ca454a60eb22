"""What the choice of tiles rests on: every cut of a product for tensor cores, timed, beside the model's time.

The operands are there as bf16 components, as in a training step: three of a float32 matrix, one of pixels.
Each cut's result is compared with a float64 product first; what is wrong is not timed, and ends in exit code
1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tabulate import tabulate

from bench.gemm import PRODUCTS, TOLERANCES, Operands, Product
from bench.program import require_gpu, start
from bench.timing import Times, alternate, repetition
from nn.launch.gemm.components import COMPONENTS, Components, Split
from nn.launch.gemm.versions import TENSOR_ARCHITECTURES, version_for
from nn.launch.gemm.wgmma import ComponentProduct, Tiling, candidates, choose_tiling, predicted
from nn.launch.kernels import Kernels
from pyrt.arguments import Parser
from pyrt.clock import StreamClock
from pyrt.driver import Driver
from pyrt.driver.null import NullDriver
from pyrt.kernels import KernelLibrary

WHOLE = COMPONENTS["float32"]
"""Components of a float32 matrix, to its last bit."""

PIXELS = {
    "Z1 = X W1^T": (1, WHOLE),
    "dW1 = dZ1^T X": (WHOLE, 1),
    "Z1, one GPU": (1, WHOLE),
    "dW1, one GPU": (WHOLE, 1),
}
"""Products of a step that read pixels, with the components of A and B."""


@dataclass(frozen=True)
class Case:
    """A product, and of how many components its operands are."""

    product: Product
    components_a: int = WHOLE
    components_b: int = WHOLE

    def __str__(self) -> str:
        return f"{self.product}, {self.components_a} x {self.components_b} components"

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """M, N, K and the components, as the choice of tiles takes them."""
        return self.product.M, self.product.N, self.product.K, self.components_a, self.components_b

    def work(self, operands: Operands) -> ComponentProduct:
        """Make room for the components of the operands; the product of these."""
        sides = (operands.A, self.components_a), (operands.B, self.components_b)
        A, B = (Components.empty(array.driver, count, *array.shape) for array, count in sides)
        return ComponentProduct(operands.on_device, A, B)


def reads_components(product: Product) -> bool:
    """Return whether training would split its operands into components."""
    return version_for("wgmma", product.M, product.N, product.K, "float32") == "wgmma"


CASES = (
    *(Case(product) for product in PRODUCTS if reads_components(product)),
    *(Case(product, *PIXELS[product.name]) for product in PRODUCTS if product.name in PIXELS),
)
"""The products that tensor cores take, first of float32 matrices, then of those and pixels."""


def name(tiling: Tiling) -> str:
    """Name a cut in a table."""
    turns = ", in turns" if tiling.ping_pong else ""
    return f"{tiling.rows} x {tiling.columns}, K in {tiling.parts}, {tiling.stages} stages{turns}"


@dataclass(frozen=True)
class Cut:
    """A candidate: the microseconds that the model says, its error, its times unless it was wrong."""

    tiling: Tiling
    predicted: float
    error: float
    times: Times | None

    def __str__(self) -> str:
        return name(self.tiling)


@dataclass(frozen=True)
class Result:
    """All cuts of a case, and which of them a training would take."""

    cuts: Sequence[Cut]
    chosen: Tiling

    @property
    def timed(self) -> list[tuple[Times, Cut]]:
        """The right ones with their times, the fastest first."""
        timed = [(cut.times, cut) for cut in self.cuts if cut.times is not None]
        return sorted(timed, key=lambda pair: pair[0].median)

    def words(self, cut: Cut) -> str:
        """Say if a cut is chosen or fastest."""
        is_fastest = bool(self.timed) and cut is self.timed[0][1]
        said = (("chosen", cut.tiling == self.chosen), ("fastest", is_fastest))
        return ", ".join(word for word, is_so in said if is_so)


def draw(shape: tuple[int, ...], components: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a normal float32 matrix, or one of pixels, which are one component to their last bit."""
    if components == 1:
        return rng.integers(0, 256, shape).astype(np.float32)
    return rng.standard_normal(shape, np.float32)


def measure_case(case: Case, kernels: Kernels, clock: StreamClock, rng: np.random.Generator) -> Result:
    """Check all cuts, then time in turns those that are right."""
    driver, product = clock.driver, case.product
    operands = Operands(clock, product)
    sides = (operands.A, case.components_a), (operands.B, case.components_b)
    operands.set(*(draw(array.shape, count, rng) for array, count in sides))
    work = case.work(operands)
    _split(operands, work).on_device(kernels)(clock.stream)
    tilings = candidates(product.K, case.components_a, case.components_b, driver.shared_memory)
    works = {tiling: replace(work, tiling=tiling).on_device(kernels) for tiling in tilings}
    errors = {tiling: operands.error(work) for tiling, work in works.items()}
    right = [tiling for tiling in tilings if is_right(errors[tiling])]
    times = alternate({name(tiling): repetition(clock, works[tiling]) for tiling in right})
    for components in (work.A, work.B):
        driver.free(components.array.pointer)
    operands.free()
    cuts = [
        Cut(
            tiling,
            predicted(tiling, *case.sizes, driver.multiprocessors),
            errors[tiling],
            times.get(name(tiling)),
        )
        for tiling in tilings
    ]
    return Result(cuts, choose_tiling(*case.sizes, driver.multiprocessors, driver.shared_memory))


def _split(operands: Operands, work: ComponentProduct) -> Split:
    return Split(((operands.A, work.A), (operands.B, work.B)))


def is_right(error: float) -> bool:
    """Return whether a relative error is within float32's tolerance; a NaN is not."""
    return error <= TOLERANCES["float32"]


def measure(cases: Sequence[Case], library: KernelLibrary) -> Iterator[tuple[Case, Result]]:
    """Yield the results of each case, as soon as they are there."""
    clock = StreamClock(library.driver, library.driver.create_stream())
    rng = np.random.default_rng(0)
    for case in cases:
        yield case, measure_case(case, Kernels(library, np.float32), clock, rng)


def compiled(driver: Driver, cases: Sequence[Case]) -> KernelLibrary:
    """Compile the kernels that these cases take, together."""
    null, library = NullDriver.like(driver), KernelLibrary(driver)
    clock, kernels = StreamClock(null, None), Kernels(KernelLibrary(null), np.float32)
    for case in cases:
        operands = Operands(clock, case.product)
        work = case.work(operands)
        for one in (_split(operands, work), work):
            one.on_device(kernels)
    library.compile_sources(null.sources)
    return library


def table(case: Case, result: Result) -> str:
    """Tabulate one case: a row for each cut, the fastest first, wrong ones last."""
    rows = [
        [cut, times.median, times.spread, cut.predicted, result.words(cut)] for times, cut in result.timed
    ]
    wrong = [
        [cut, None, f"WRONG: {cut.error:.1e}", cut.predicted, result.words(cut)]
        for cut in result.cuts
        if cut.times is None
    ]
    headers = ["rows x columns of a block", "us", "min to max", "predicted us", ""]
    body = tabulate([*rows, *wrong], headers=headers, floatfmt=("", ".1f", "", ".1f", ""), missingval="-")
    return f"{case}\n{body}"


def summary(results: Mapping[Case, Result]) -> str:
    """Tabulate a line for each case: the chosen cut against the fastest one."""
    rows: list[list[object]] = []
    for case, result in results.items():
        if not result.timed:
            rows.append([case, None, None, None, None])
            continue
        fastest, cut = result.timed[0]
        chosen = next((times.median for times, cut in result.timed if cut.tiling == result.chosen), None)
        rows.append([case, chosen, fastest.median, chosen and chosen / fastest.median, cut])
    headers = ["tiles", "chosen us", "fastest us", "chosen / fastest", "fastest"]
    return tabulate(rows, headers=headers, floatfmt=("", ".1f", ".1f", ".2f", ""), missingval="-")


def main(arguments: Sequence[str]) -> int:
    Parser("tiles.py", __doc__).parse_args(arguments)
    require_gpu()
    from pyrt.driver.cuda import CudaDriver

    driver = CudaDriver(0)
    if driver.architecture not in TENSOR_ARCHITECTURES:
        print(f"tiles: left out: {driver.device_name} has no tensor cores of sm_90a")
        return 0
    on = f"{driver.device_name}, {driver.multiprocessors} multiprocessors"
    print(f"Matrix products of bf16 components on {on}")
    results = {}
    for case, result in measure(CASES, compiled(driver, CASES)):
        results[case] = result
        print(f"\n{table(case, result)}", flush=True)
    print(f"\n{summary(results)}", flush=True)
    driver.close()
    wrong = [
        f"{cut} of {case}" for case, result in results.items() for cut in result.cuts if cut.times is None
    ]
    for what in wrong:
        print(f"tiles.py: error: wrong result: {what}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    start("tiles.py", main)
