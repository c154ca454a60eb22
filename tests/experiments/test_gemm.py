"""experiments/gemm.py: what is measured where, rows of each device, findings from made-up rows of a GPU."""

import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pandas", reason="make test installs what the report needs")
pytest.importorskip("matplotlib")

import pandas as pd

from bench import timing
from bench.gemm import AUTO_TF32, PRODUCTS, Product
from experiments import gemm, gemm_counters, machine, ncu
from experiments.study import FAILED, Setup
from nn.launch.gemm import gemm as launched
from nn.launch.gemm.versions import GEMM_VERSIONS, runs_gemm
from nn.launch.kernels import Kernels
from pyrt.clock import StreamClock
from pyrt.job import join

TINY = Product("tiny", 33, 10, 17, transpose_a=True)


def setup_of(size, gpus, folder, emulates=True):
    return Setup(size, gpus, 2, emulates, folder)


@pytest.mark.parametrize("size", ["small", "full"])
@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_a_point_is_one_product(size, gpus, tmp_path):
    points = gemm.points(setup_of(size, gpus, tmp_path))
    points = [point for point in points if point["product"] != gemm_counters.COUNTED]
    assert len({tuple(point.values()) for point in points}) == len(points)
    for point in points:
        product = gemm._product(point)
        assert (product.name, product.M, product.N, product.K) == tuple(point.values())[:4]
        assert product in PRODUCTS or product.transpose_b


def test_a_gpu_takes_all_products_and_the_cpu_those_that_it_can(tmp_path):
    on_gpu = gemm.points(setup_of("full", 1, tmp_path))
    on_gpu = [point for point in on_gpu if point["product"] != gemm_counters.COUNTED]
    squares = [point["N"] for point in on_gpu if point["product"] == "square"]
    assert (min(squares), max(squares), len(on_gpu)) == (128, 8192, 7 + 9)
    small = gemm.points(setup_of("small", 0, tmp_path, emulates=False))
    flops = [2 * point["M"] * point["N"] * point["K"] for point in small]
    assert {point["device"] for point in small} == {"cpu"} and 1e9 < max(flops) <= 2e9
    emulated = gemm.points(setup_of("small", 0, tmp_path))[len(small) :]
    assert {point["device"] for point in emulated} == {"emulated"}


def test_numpy_is_timed_in_both_dtypes_and_has_errors_in_float32():
    single, double = gemm._on_cpu(TINY)
    assert (single["version"], double["version"]) == gemm.NUMPY
    assert 0 < single["error"] < 1e-6 and 0 < single["error01"] < 1e-6
    assert "error" not in double
    for row in (single, double):
        assert row["tflops"] == pytest.approx(2 * 33 * 10 * 17 / row["us"] * 1e-6)


class Rival:
    """cuBLAS as this project's own product; one of its two is wrong."""

    def __init__(self, library):
        self._kernels = Kernels(library, np.float32, "tiled")

    def product(self, product, math):
        if math == "tf32":
            return lambda stream: None
        return launched(self._kernels, product)


@pytest.fixture
def gpu(library, monkeypatch):
    """What a job has open, on any device with kernels."""
    monkeypatch.setattr(timing, "SPAN", 0.0)
    clock = StreamClock(library.driver, library.driver.create_stream())
    opened = gemm.Gpu(clock, library, Rival(library))
    monkeypatch.setattr(gemm, "_gpu", lambda: opened)
    return opened


def test_a_gpu_has_a_row_for_each_version(gpu):
    rows = gemm._on_gpu(TINY)
    versions = [name for name in GEMM_VERSIONS if runs_gemm(name, gpu.library.driver.architecture)]
    ours = [row["version"] for row in rows if row["version"] != AUTO_TF32]
    assert ours == [*versions, "auto", "cuBLAS float32", "cuBLAS tf32"]
    *right, wrong = rows
    assert all(0 < row["error"] < 2e-3 and row["us"] > 0 and FAILED not in row for row in right)
    assert wrong[FAILED] == "cuBLAS tf32: its result is wrong" and "us" not in wrong


def test_first_steps_are_left_out_where_they_take_long(gpu, monkeypatch):
    monkeypatch.setattr(gemm, "LARGE", 32)
    versions = {row["version"] for row in gemm._on_gpu(TINY)}
    assert versions & {"naive", "shared", "register"} == set() and "tiled" in versions


def test_a_gpu_without_cublas_says_so(gpu, monkeypatch):
    monkeypatch.setattr(gemm, "_gpu", lambda: gpu._replace(rival=None))
    *_, last = gemm._on_gpu(TINY)
    assert "neither PyTorch nor CuPy" in last[FAILED]


def test_versions_that_a_gpu_does_not_run_are_named(gpu, monkeypatch):
    monkeypatch.setattr(gpu.library.driver, "architecture", "sm_75")
    assert [row["version"] for row in gemm._not_there(gpu)] == ["mma", "wgmma"]


@pytest.mark.skipif(not machine.emulates(), reason="needs a C++ compiler")
def test_the_emulated_device_gives_errors_alone():
    rows = gemm._when_emulated(TINY)
    assert {row["version"] for row in rows} >= {"naive", "wgmma", "auto"}
    assert all(0 < row["error"] < 1e-6 and 0 < row["error01"] < 1e-6 and "us" not in row for row in rows)


SPEEDS = {
    **{"naive": 0.5, "shared": 6.0, "register": 6.5, "block": 10.0, "vector": 14.0, "warp": 16.0},
    **{"tiled": 20.0, "mma": 29.0, "wgmma": 60.0, "auto": 60.0},
    "cuBLAS float32": 30.0,
}
"""TFLOP/s of squares."""

ERRORS = {"mma": 6e-7, "wgmma": 3e-7, "auto": 3e-7}


def rows_of_a_gpu():
    """`wgmma` passes cuBLAS from N = 512 on, and is twice as fast at 8192; `auto` too."""
    rows = []
    for product in map(gemm._square, gemm.SIDES_ON_GPU["full"]):
        for version, tflops in SPEEDS.items():
            if version in ("wgmma", "auto"):
                tflops = 15 if product.N < 512 else 60 * product.N / 8192 + 31
            if version not in gemm.FIRST_STEPS or product.N <= gemm.LARGE:
                error = ERRORS.get(version, 1e-7 * product.N**0.5)
                rows.append(row(product, version, "float32", tflops, error))
        rows.append(row(product, AUTO_TF32, "tf32", 0.02 * product.N, 8e-4))
        rows.append(row(product, "cuBLAS tf32", "tf32", 0.025 * product.N, 8e-4))
    for product in gemm.OF_NETWORK:
        rows.append(row(product, "auto", "float32", 40.0 if product.N == 1000 else 45.0, 4e-7))
        rows.append(row(product, "cuBLAS float32", "float32", 80.0 if product.N == 1000 else 20.0, 3e-6))
        rows.append(row(product, AUTO_TF32, "tf32", 90.0, 7e-4))
    return pd.DataFrame(rows)


def row(product, version, math, tflops, error):
    us = product.flops / tflops * 1e-6
    numbers = {"us": us, "tflops": tflops, "error": error, "error01": 2 * error}
    numbers |= {"least_us": 0.98 * us, "most_us": 1.02 * us}
    return {**gemm._point(product, "cuda"), "version": version, "math": math, **numbers}


def test_what_a_gpu_finds_is_said_with_its_numbers(tmp_path):
    section = gemm.section(rows_of_a_gpu(), setup_of("full", 1, tmp_path))
    text = "\n".join(section.findings)
    assert "float32: wgmma 91 TFLOP/s (N = 8192), cuBLAS float32 30" in text
    assert "tf32: cuBLAS tf32 205 TFLOP/s (N = 8192), auto, --math tf32 164 TFLOP/s" in text
    assert "cuBLAS float32: wgmma at 5 of 7 sizes from N = 512 on (most at N = 8192, 3.03 times" in text
    # Eight products at 45 : 20, one at 40 : 80, whose geometric mean is (2.25^8 / 2)^(1/9) = 1.904.
    assert "auto is 0.50 (course, first layer, 800 x 1000 x 784) to 2.25" in text
    assert "1.90 times in the geometric mean" in text
    assert "auto 4.0e-07, cuBLAS float32 9.1e-06, auto, --math tf32 8.0e-04" in text
    assert [figure.file for figure in section.figures] == ["speed.png", "products.png", "errors.png"]
    assert all((tmp_path / figure.file).stat().st_size > 10000 for figure in section.figures)
    (table,) = section.tables
    assert len(table.rows) == len(gemm.OF_NETWORK) and "auto, us" in table.rows
    assert table.rows["auto, us"].iloc[0] == pytest.approx(2 * 750 * 512 * 784 / 45e6)


def test_without_cublas_speeds_are_shown_as_they_are(tmp_path, unsaved):
    rows = rows_of_a_gpu()
    section = gemm.section(rows[~rows.version.str.startswith("cuBLAS")], setup_of("full", 1, tmp_path))
    assert "cuBLAS" not in "".join(section.findings)
    assert "M x N x K: TFLOP/s." in section.figures[1].caption


def test_versions_with_the_same_errors_share_a_curve():
    errors = {"naive": 1e-6, "shared": 1e-6, "wgmma": 2e-7}
    rows = [
        {"version": version, "K": K, "error": error * K} for version, error in errors.items() for K in (1, 2)
    ]
    naive, wgmma = gemm._curves(pd.DataFrame(rows))
    assert (naive.versions, wgmma.versions) == (["naive", "shared"], ["wgmma"])
    assert wgmma.errors.to_dict() == {1: 2e-7, 2: 4e-7}


def test_few_rows_are_enough(tmp_path, unsaved):
    rows = rows_of_a_gpu()
    for some in (rows[:0], rows[rows["product"] != "square"], rows[rows.version == "naive"], rows[:1]):
        gemm.section(some, setup_of("full", 1, tmp_path))
    emulated = rows[:3].assign(
        product="emulated", device="emulated", us=np.nan, tflops=np.nan, least_us=np.nan
    )
    section = gemm.section(emulated, setup_of("small", 0, tmp_path))
    assert [figure.file for figure in section.figures] == ["errors.png"]
    assert re.search(r"emulated device at K = 128: .*naive", section.findings[-1])


def test_what_is_missing_is_named(tmp_path):
    (no_gpu,) = gemm.missing(setup_of("small", 0, tmp_path))
    assert "cuBLAS" in no_gpu and "no GPU" in no_gpu
    assert "C++ compiler" in gemm.missing(setup_of("small", 0, tmp_path, emulates=False))[1]
    slow, *_ = gemm.missing(setup_of("full", 1, tmp_path))
    assert "naive, shared, register for squares larger than 4096" in slow


COUNTS = {
    "gpu__time_duration.sum": ("us", "{us}"),
    "dram__bytes_read.sum": ("Mbyte", "11.5"),
    "lts__t_bytes.sum": ("Gbyte", "{l2}"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": ("", "1,000,000"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "62.5"),
    "launch__registers_per_thread": ("register/thread", "40"),
}
"""The counters that ncu prints for a launch: unit and value of each."""


def counted(us, l2):
    """Nsight Compute's CSV of one launch."""
    common = [
        "0",
        "7",
        "python3",
        "host",
        "gemm_naive",
        "1",
        "15",
        "(128, 1, 1)",
        "(9, 8, 1)",
        "0",
        "9.0",
        "-",
    ]
    lines = [[*common, name, unit, value.format(us=us, l2=l2)] for name, (unit, value) in COUNTS.items()]
    return "\n".join(",".join(f'"{cell}"' for cell in cells) for cells in lines)


def test_counters_of_the_versions_are_told_with_what_changed(tmp_path, monkeypatch):
    """Counters go from ncu's text to sentences: bytes in MB, 128 a wavefront."""
    outputs = {"naive": counted(700, 2.0), "shared": counted(100, 0.25)}

    def run(command, **settings):
        assert "regex:^(gemm|layer)_" in command and command[command.index("--launch-count") + 1] == "1"
        version = command[command.index("--gemm") + 1]
        return SimpleNamespace(returncode=0, stdout=outputs[version], stderr="")

    monkeypatch.setattr(ncu.subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    points = [point for point in gemm_counters.points() if point["version"] in outputs]
    rows = [{**point, **row} for point in points for row in gemm.measure(point, join(), tmp_path)]
    assert rows[0]["us"] == pytest.approx(700) and rows[0]["l2_mb"] == pytest.approx(2000)
    assert rows[0]["shared_mb"] == pytest.approx(128) and rows[0]["occupancy"] == 62.5
    section = gemm.section(pd.DataFrame(rows, columns=[*gemm.COLUMNS]), setup_of("full", 1, tmp_path))
    assert section.findings == [
        "shared (tiles in shared memory) is 7.00 times as fast as naive; of the bytes those of L2 fall most, "
        "2,000 to 250 MB; occupancy 62 to 62 %."
    ]
    assert [figure.name for figure in section.figures] == ["counters"]
    assert list(section.tables[0].rows["version"]) == ["naive", "shared"]


def test_without_ncu_counters_are_missing(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert gemm_counters.points() == [] and "ncu" in gemm_counters.missing()[0]
