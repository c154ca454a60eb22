"""The ladder of matrix products: each version's speed and error over sizes, beside cuBLAS."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench import cublas, gemm
from bench.gemm import AUTO_TF32, PRODUCTS, Contender, Operands, Product, Result
from bench.timing import Times, alternate
from experiments import figures, gemm_counters, jobs
from experiments.noise import noisy
from experiments.study import FAILED, Figure, Point, Row, Section, Setup, Table, Taken
from nn.launch.gemm.versions import GEMM_VERSIONS, runs_gemm
from pyrt.clock import StreamClock, Work

if TYPE_CHECKING:
    import pandas as pd

    from bench.cublas import Cublas
    from pyrt.driver import StreamHandle
    from pyrt.job import Job
    from pyrt.kernels import KernelLibrary

TITLE = "Matrix products"
QUESTION = (
    "How fast is each version of the matrix product, from naive to tensor cores, at which size does it pass "
    "cuBLAS, and how large are its errors? Each is compared with a float64 product first and then timed, in "
    "turns with the others, on squares and on the products of the course's network; all operands are float32."
)
COLUMNS = (
    *("product", "M", "N", "K", "device", "version", "math"),
    *("us", "least_us", "most_us", "tflops", "error", "error01"),
    *("dram_mb", "l2_mb", "shared_mb", "occupancy", "registers"),
)

SQUARE, EMULATED = "square", "emulated"
"""Names of products that are not the network's."""

OF_NETWORK = tuple(product for product in PRODUCTS if product.name != SQUARE)

ROUNDS = {"cuda": 10, "cpu": 5}
"""Repetitions that count of a version, by device."""

FIRST_STEPS, LARGE = ("naive", "shared", "register"), 4096
"""Versions that take a second or so for larger squares than this one: they are left out there."""

RIVAL = "cuBLAS float32"
NUMPY = SINGLE, DOUBLE = ("NumPy float32", "NumPy float64")
ORDER = (*GEMM_VERSIONS, RIVAL, "cuBLAS tf32", AUTO_TF32, "auto", *NUMPY)
"""Of versions, in figures and tables."""

SHOWN = ("auto", RIVAL, AUTO_TF32, "cuBLAS tf32", *NUMPY)
"""Of the network's products."""


class Extent(NamedTuple):
    """Sides of squares, and the most flops of a product, where there is no GPU."""

    sides: tuple[int, ...]
    flops: int


SIDES_ON_GPU = {"small": (128, 256, 512, 1024), "full": (128, 256, 512, 1024, 2048, 4096, 8192)}
ON_CPU = {
    "small": Extent((128, 256, 512), 2 * 1000**3),
    "full": Extent((128, 256, 512, 1024, 2048, 4096), 2 * 4096**3),
}
EMULATED_SIDE, EMULATED_DEPTHS = 64, (128, 512, 2048)
"""M and N, and K, of the products of which the emulated device gives the errors."""


def points(setup: Setup) -> list[Point]:
    """List a point per product; on the emulated device, of errors alone."""
    if setup.gpus:
        sides = SIDES_ON_GPU[setup.size]
        on_gpu = [_point(product, "cuda") for product in (*map(_square, sides), *OF_NETWORK)]
        return on_gpu + gemm_counters.points()
    sides, flops = ON_CPU[setup.size]
    products = [*map(_square, sides), *(product for product in OF_NETWORK if product.flops <= flops)]
    found = [_point(product, "cpu") for product in products]
    if setup.emulates:
        found += [_point(_emulated(K), "emulated") for K in EMULATED_DEPTHS]
    return found


def _square(side: int) -> Product:
    return Product(SQUARE, side, side, side, transpose_b=True)


def _emulated(K: int) -> Product:
    return Product(EMULATED, EMULATED_SIDE, EMULATED_SIDE, K, transpose_b=True)


def _point(product: Product, device: str) -> Point:
    return {"product": product.name, "M": product.M, "N": product.N, "K": product.K, "device": device}


def _product(point: Point) -> Product:
    """Return the product that a point is of."""
    if point["product"] == SQUARE:
        return _square(point["N"])
    if point["product"] == EMULATED:
        return _emulated(point["K"])
    return next(product for product in OF_NETWORK if product.name == point["product"])


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    return jobs.measured(__name__, points, setup)


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Return a row for each version; a wrong one says so."""
    if point["product"] == gemm_counters.COUNTED:
        with job.agree():
            return gemm_counters.measure(point["version"])
    take_one = {"cuda": _on_gpu, "cpu": _on_cpu, "emulated": _when_emulated}[point["device"]]
    return take_one(_product(point))


class Gpu(NamedTuple):
    """What all products of a job are measured with."""

    clock: StreamClock
    library: KernelLibrary
    rival: Cublas | None


@cache
def _gpu() -> Gpu:
    """Opened, compiled and found once: the driver closes itself when the process ends."""
    from pyrt.driver.cuda import CudaDriver

    driver = CudaDriver(0)
    return Gpu(StreamClock(driver, driver.create_stream()), gemm.compiled(driver), cublas.find())


def _on_gpu(product: Product) -> list[Row]:
    gpu = _gpu()
    operands = Operands(gpu.clock, product)
    contenders = {
        version: contender
        for version, contender in gemm.ladder(operands, gpu.library, gpu.rival).items()
        if version not in FIRST_STEPS or max(product.M, product.N) <= LARGE
    }
    results = gemm.compare(operands, contenders, gpu.clock, np.random.default_rng(0), ROUNDS["cuda"])
    operands.free()
    rows = [_row(product, name, contenders[name].math, result) for name, result in results.items()]
    return rows + _not_there(gpu)


def _not_there(gpu: Gpu) -> list[Row]:
    """Return a row that says why for each version that this GPU does not run, and for a missing cuBLAS."""
    whys = {
        version: f"{version}: this GPU has no tensor cores for it"
        for version in GEMM_VERSIONS
        if not runs_gemm(version, gpu.library.driver.architecture)
    }
    if gpu.rival is None:
        whys["cuBLAS"] = "cuBLAS: neither PyTorch nor CuPy is there and sees a GPU"
    return [{"version": version, FAILED: why} for version, why in whys.items()]


def _row(product: Product, version: str, math: str, result: Result) -> Row:
    row = {"version": version, "math": math, "error": result.errors["normal"]}
    row["error01"] = result.errors["[0, 1)"]
    if result.times is None:
        return {**row, FAILED: f"{version}: its result is wrong"}
    return {**row, **_speed(product, result.times)}


def _speed(product: Product, us: Times) -> Row:
    tflops = product.flops / us.median * 1e-6
    return {"us": us.median, "least_us": us.least, "most_us": us.most, "tflops": tflops}


def _on_cpu(product: Product) -> list[Row]:
    """NumPy in float32 and, timed alone, in float64: the product that errors are measured from."""
    from pyrt.driver.cpu import CpuDriver

    clock = StreamClock(CpuDriver(), None)
    operands = Operands(clock, product)
    A, B, D = (array.host_view() for array in (operands.A, operands.B, operands.D))
    single = _multiply(product, A, B, D)
    errors = gemm.errors_of(operands, {SINGLE: Contender(single, "float32")}, np.random.default_rng(0))
    double = _multiply(product, A.astype(np.float64), B.astype(np.float64), np.empty(D.shape))
    works = {SINGLE: single, DOUBLE: double}
    times = alternate({name: partial(clock.seconds, work) for name, work in works.items()}, ROUNDS["cpu"])
    return [
        _row(product, SINGLE, "float32", Result(errors[SINGLE], times[SINGLE])),
        {"version": DOUBLE, "math": "float64", **_speed(product, times[DOUBLE])},
    ]


def _multiply(product: Product, A: np.ndarray, B: np.ndarray, D: np.ndarray) -> Work:
    """D = op(A) op(B) by NumPy's BLAS."""
    left, right = A.T if product.transpose_a else A, B.T if product.transpose_b else B

    def multiply(stream: StreamHandle) -> None:
        np.matmul(left, right, out=D)

    return multiply


def _when_emulated(product: Product) -> list[Row]:
    """Return the errors of all versions that the emulated device runs; its times mean nothing."""
    from pyrt.driver.emulated import EmulatedDriver
    from pyrt.kernels import KernelLibrary

    driver = EmulatedDriver()
    operands = Operands(StreamClock(driver, driver.create_stream()), product)
    contenders = gemm.ladder(operands, KernelLibrary(driver), None)
    errors = gemm.errors_of(operands, contenders, np.random.default_rng(0))
    driver.close()
    return [
        {
            "version": name,
            "math": contenders[name].math,
            "error": found["normal"],
            "error01": found["[0, 1)"],
        }
        for name, found in errors.items()
    ]


def missing(setup: Setup) -> list[str]:
    if setup.gpus:
        first = ", ".join(FIRST_STEPS)
        slow = f"{first} for squares larger than {LARGE}: a product takes up to some seconds there"
        return [slow, *gemm_counters.missing()]
    reasons = [
        "times and counters of the ladder's kernels, and cuBLAS: there is no GPU; NumPy's product is in "
        "their place"
    ]
    if not setup.emulates:
        reasons.append("errors of the ladder's kernels: there is no C++ compiler to emulate a device with")
    return reasons


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    is_counted = rows["product"] == gemm_counters.COUNTED
    counted, rows = rows[is_counted], rows[~is_counted]
    squares, network = rows[rows["product"] == SQUARE], rows[~rows["product"].isin([SQUARE, EMULATED])]
    if len(squares):
        _squares(squares, setup, result)
    if len(network):
        _network(network, setup, result)
    if len(counted):
        gemm_counters.section(counted, setup, result)
    _errors(rows, setup, result)
    return result


def _place(version: str) -> int:
    """Return its place in the order of all; NumPy has cuBLAS's, for which it stands."""
    as_cublas = dict(zip(NUMPY, (RIVAL, "cuBLAS tf32"), strict=True))
    return ORDER.index(as_cublas.get(version, version))


def _style(version: str) -> dict[str, str]:
    """Return one style for all figures."""
    return figures.style(_place(version))


def _unit(rows: pd.DataFrame) -> tuple[str, float]:
    """Return a unit of speed, and how many make a TFLOP/s."""
    return ("TFLOP/s", 1.0) if rows.tflops.max() > 1 else ("GFLOP/s", 1e3)


def _by_version(rows: pd.DataFrame, index: str, values: str) -> pd.DataFrame:
    """Make a column for each version, in the order of the ladder."""
    table = rows.pivot(index=index, columns="version", values=values)
    return table[[version for version in ORDER if version in table]]


def _squares(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    speeds = _by_version(rows, "N", "tflops")
    unit, scale = _unit(rows)
    for arithmetic, mine in rows[rows.version != "auto"].groupby("math", sort=False):
        best = mine.loc[mine.groupby("version").tflops.idxmax()].nlargest(3, "tflops")
        tops = [f"{row.version} {row.tflops * scale:.3g} {unit} (N = {row.N})" for row in best.itertuples()]
        result.find("speed", f"The fastest on squares in {arithmetic}: {', '.join(tops)}.")
    if RIVAL in speeds:
        _passing(speeds, result)
    result.find("speed", *noisy(rows.least_us, rows.us, rows.most_us))
    figure, axes = figures.canvas()
    for version in speeds.drop(columns="auto", errors="ignore"):
        curve = speeds[version].dropna()
        axes.plot(curve.index, curve * scale, label=version, **_style(version))
        mine = rows[rows.version == version].set_index("N").loc[curve.index]
        least, most = (curve * mine.us / end * scale for end in (mine.most_us, mine.least_us))
        figures.error_bars(axes, curve.index, least, curve * scale, most, _place(version))
    axes.set(xlabel="N", ylabel=unit, xscale="log")
    figures.plain_ticks(axes, "x", list(speeds.index))
    figures.plain_log(axes, "y")
    figure.legend(loc="outside upper center", ncols=3)
    caption = (
        "Speed of products of N x N matrices, the second one transposed: 2 N^3 flops over the median of "
        f"{ROUNDS[setup.device]} repetitions, taken in turns; bars reach from the least to the largest."
    )
    result.figures.append(Figure(figures.save(figure, setup.folder, "speed"), caption))


def _passing(speeds: pd.DataFrame, result: Section) -> None:
    """Report where ours is faster than cuBLAS in float32."""
    factors = speeds.div(speeds[RIVAL], axis=0)
    passing = []
    for version in [version for version in GEMM_VERSIONS if version in factors]:
        sides = factors.index[factors[version] > 1]
        if len(sides):
            sizes = f"{len(sides)} of {factors[version].count()} sizes"
            best = factors[version].idxmax()
            most = f"most at N = {best}, {factors[version].max():.2f} times as fast"
            passing.append(f"{version} at {sizes} from N = {sides.min()} on ({most})")
    result.find("speed", f"Squares on which ours passes {RIVAL}: {'; '.join(passing) or 'none'}.")


def _network(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    rows = rows.assign(name=[_name(row) for row in rows.to_dict("records")])
    speeds = _by_version(rows, "name", "tflops").reindex(rows.name.unique())
    if RIVAL in speeds:
        values, what = speeds.div(speeds[RIVAL], axis=0), f"times as fast as {RIVAL}"
        _against_cublas(values["auto"].dropna(), result)
        values = values.drop(columns=RIVAL)
    else:
        what, scale = _unit(rows)
        values = speeds * scale
    values = values[[version for version in SHOWN if version in values]]
    figure, axes = figures.canvas()
    colours = [_style(version)["color"] for version in values]
    low, high = (values * _relative(rows, end) for end in ("most_us", "least_us"))
    around = np.array([[values[each] - low[each], high[each] - values[each]] for each in values])
    values.plot.barh(ax=axes, color=colours, width=0.8, legend=False, xerr=around, ecolor="black")
    axes.invert_yaxis()
    axes.set(xlabel=what, ylabel="")
    axes.tick_params("y", labelsize=9)
    axes.grid(False, axis="y")
    figure.legend(loc="outside upper center", ncols=3)
    caption = (
        f"The products of the network's steps and of the course, M x N x K: {what}. Bars: from the slowest "
        "to the fastest repetition."
    )
    if RIVAL in speeds:
        axes.axvline(1, color="black", linestyle=":")
        caption += (
            " Longer is faster; the dotted line is that of cuBLAS in float32. auto is what training takes."
        )
    result.figures.append(Figure(figures.save(figure, setup.folder, "products"), caption))
    _table(rows, result)


def _relative(rows: pd.DataFrame, end: str) -> pd.DataFrame:
    """Return the median time over the least or the most, by name and version."""
    return _by_version(rows.assign(ratio=rows.us / rows[end]), "name", "ratio").reindex(rows.name.unique())


def _name(row: Row) -> str:
    """Name a product, in two lines."""
    return f"{row['product'].partition(' = ')[0]}\n{row['M']} x {row['N']} x {row['K']}"


def _against_cublas(factors: pd.Series, result: Section) -> None:
    slowest, fastest = (name.replace("\n", ", ") for name in (factors.idxmin(), factors.idxmax()))
    mean = math.exp(np.log(factors).mean())
    result.find(
        "products",
        f"On {len(factors)} products of the network auto is {factors.min():.2f} ({slowest}) to "
        f"{factors.max():.2f} ({fastest}) times as fast as {RIVAL}, {mean:.2f} times in the geometric mean.",
    )


def _table(rows: pd.DataFrame, result: Section) -> None:
    """Microseconds of each product, and errors."""
    times, errors = (
        _by_version(rows, "name", values).reindex(rows.name.unique()) for values in ("us", "error")
    )
    shown = [version for version in SHOWN if version in times]
    table = times[shown].add_suffix(", us")
    for version in ("auto", RIVAL, SINGLE):
        if version in errors:
            table[f"{version}, error"] = [f"{error:.1e}" for error in errors[version]]
    table.insert(0, "product", [name.replace("\n", ", ") for name in table.index])
    result.tables.append(
        Table(
            "Products of the network: time, and error relative to the largest element (normal data).", table
        )
    )


def _errors(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Over K, of squares and on the emulated device."""
    measured = rows[rows.error.notna()]
    real, emulated = measured[measured.device != "emulated"], measured[measured.device == "emulated"]
    if len(real):
        worst = real.groupby("version").error.max()
        parts = [
            f"{version} {worst[version]:.1e}" for version in (*SHOWN, "mma", "naive") if version in worst
        ]
        result.find(
            "errors",
            "The largest errors over all products, relative to the largest element, normal data: "
            f"{', '.join(parts)}.",
        )
    curves = [*_curves(real[real["product"] == SQUARE]), *_curves(emulated)]
    if len(emulated):
        K, said = emulated.K.max(), _curves(emulated)
        parts = [f"{' / '.join(curve.versions)} {curve.errors[K]:.1e}" for curve in said]
        result.find("errors", f"The kernels' errors on the emulated device at K = {K}: {'; '.join(parts)}.")
    if curves:
        _draw_errors(curves, len(emulated) > 0, setup, result)


class Curve(NamedTuple):
    """Errors over K, of versions that have the same ones: they add up in the same order."""

    versions: list[str]
    errors: pd.Series


def _curves(rows: pd.DataFrame) -> list[Curve]:
    errors = _by_version(rows, "K", "error")
    same: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for version in errors:
        same.setdefault(tuple(errors[version].dropna().items()), []).append(version)
    return [Curve(versions, errors[versions[0]].dropna()) for versions in same.values()]


def _draw_errors(curves: Sequence[Curve], are_emulated: bool, setup: Setup, result: Section) -> None:
    figure, axes = figures.canvas()
    for versions, errors in curves:
        axes.plot(errors.index, errors, label=" / ".join(versions), **_style(versions[0]))
    axes.set(xlabel="K", ylabel="error / largest element", xscale="log", yscale="log")
    figures.plain_ticks(axes, "x", sorted(set().union(*(curve.errors.index for curve in curves))))
    figure.legend(loc="outside upper center", ncols=2)
    caption = (
        "Largest error of a product relative to its largest element over the length K of its sums, against "
        "float64, normal data. Versions with the same errors share a curve. Products are squares"
    )
    caption += f"; of kernels, emulated here, {EMULATED_SIDE} x {EMULATED_SIDE} x K." if are_emulated else "."
    result.figures.append(Figure(figures.save(figure, setup.folder, "errors"), caption))
