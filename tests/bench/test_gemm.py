"""bench/gemm.py: errors are found before anything is timed, and the tables say so."""

import numpy as np
import pytest

from bench import gemm, timing
from bench.gemm import Contender, Operands, Product, Result, compare, relative_error
from bench.timing import Times
from nn.launch.gemm.versions import GEMM_VERSIONS, runs_gemm
from pyrt.clock import StreamClock
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KernelLibrary
from tests import few

SMALL = [
    Product("small", 33, 10, 17, transpose_b=True),
    Product("small", 10, 21, 35, transpose_a=True),
    Product("small", 7, 12, 5),
]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """No time is of interest here."""
    monkeypatch.setattr(timing, "SPAN", 0.0)


@pytest.fixture
def clock(driver):
    return StreamClock(driver, driver.create_stream())


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def result(us, normal=1e-6, uniform=2e-6):
    times = None if us is None else Times(us, us - 1, us + 1)
    return Result({"normal": normal, "[0, 1)": uniform}, times)


def test_relative_error_is_of_the_largest_element():
    exact = np.array([[4.0, -8.0], [1.0, 0.0]])
    assert relative_error(np.array([[4.0, -8.0], [1.0, 0.02]]), exact) == pytest.approx(0.0025)
    assert np.isnan(relative_error(np.array([[4.0, np.nan], [1, 0]]), exact))


@pytest.mark.parametrize("product", few(SMALL[:1], of=SMALL), ids=str)
@pytest.mark.parametrize("fastest", few(["wgmma"], of=["tiled", "wgmma"]))
def test_every_version_is_right_and_timed(library, monkeypatch, product, fastest):
    """On a device whose fastest version is this one."""
    if not runs_gemm(fastest, library.driver.architecture):
        pytest.skip("needs the tensor cores of sm_90")
    monkeypatch.setattr("nn.launch.kernels.fastest_gemm", lambda dtype, architecture: fastest)
    ((measured, results),) = gemm.measure([product], library, None)
    assert measured is product
    versions = [name for name in GEMM_VERSIONS if runs_gemm(name, library.driver.architecture)]
    assert list(results) == [*versions, "auto", *([gemm.AUTO_TF32] if fastest == "wgmma" else [])]
    for name, found in results.items():
        assert 0 < max(found.errors.values()) < (2e-3 if name == gemm.AUTO_TF32 else 1e-6)
        assert found.times is not None


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a"])
def test_what_the_ladder_loads_is_compiled_ahead(monkeypatch, architecture):
    """And nothing else."""
    ahead, null = [], NullDriver(DeviceProperties("a GPU", architecture, 132, 232448), "cuda")
    monkeypatch.setattr(KernelLibrary, "compile_sources", lambda library, sources: ahead.extend(sources))
    library = gemm.compiled(null, SMALL)
    assert not null.sources
    for product in SMALL:
        gemm.ladder(Operands(StreamClock(null, null.create_stream()), product), library, None)
    assert set(ahead) == set(null.sources) != set()


def test_wrong_results_are_not_timed(clock, rng):
    product = SMALL[0]
    operands = Operands(clock, product)
    launched, uploaded = [], []

    def upload(host, stream):
        uploaded.append(host)  # it must live until the copy is done
        operands.D.queue_upload(host, stream)

    def nothing(stream):
        launched.append(stream)

    def nearly(stream):
        """The float32 product, one element 1% off."""
        host = operands._exact.astype(np.float32)
        host[3, 4] *= 1.01
        upload(host, stream)

    def exact(stream):
        upload(operands._exact.astype(np.float32), stream)

    works = {"nothing": nothing, "nearly": nearly, "exact": exact}
    contenders = {name: Contender(work, "float32") for name, work in works.items()}
    results = compare(operands, contenders, clock, rng)
    assert [results[name].times is None for name in works] == [True, True, False]
    assert len(launched) == len(gemm.DATA)
    assert "WRONG" in gemm.table(product, results)
    operands.free()


def test_operands_are_what_the_product_says(clock, rng):
    for product in SMALL:
        operands = Operands(clock, product)
        operands.fill("normal", rng)
        A, B = operands.A.to_host(), operands.B.to_host()
        A, B = A.T if product.transpose_a else A, B.T if product.transpose_b else B
        np.testing.assert_allclose(A.astype(np.float64) @ B, operands._exact, rtol=1e-12, atol=1e-12)
        assert A.min() < 0 < A.max()
        operands.fill("[0, 1)", rng)
        assert operands.A.to_host().min() >= 0
        operands.free()


def test_table_compares_with_cublas():
    product = Product("Z", 100, 200, 300, transpose_b=True)
    results = {"naive": result(80.0), "cuBLAS float32": result(40.0), "cuBLAS tf32": result(20.0)}
    lines = gemm.table(product, results).splitlines()
    assert lines[0] == "Z, 100 x 200 x 300, B transposed"
    assert lines[3].split() == [
        *("naive", "80.0", "79.0", "to", "81.0", "0.1", "0.50", "0.25", "1.0e-06", "2.0e-06")
    ]


def test_table_without_cublas_has_gaps():
    line = gemm.table(SMALL[0], {"naive": result(80.0)}).splitlines()[3]
    assert line.split()[6:8] == ["-", "-"]


def test_summary_says_how_much_of_the_allowed_error_is_used():
    with_cublas = {
        "auto": result(10.0, 3e-6, 3e-6),
        gemm.AUTO_TF32: result(8.0, 3e-4, 3e-4),
        "cuBLAS float32": result(15.0, 5e-6, 1e-6),
        "cuBLAS tf32": result(6.0, 3e-4, 3e-4),
    }
    alone = {"auto": result(10.0, 1e-6, 4e-6)}
    lines = gemm.summary({SMALL[0]: with_cublas, SMALL[1]: alone}).splitlines()
    assert lines[2].split()[-5:] == ["1.50", "0.50", "1.50", "8.0", "0.75"]
    assert lines[3].split()[-5:] == ["-", "0.50", "2.00", "-", "-"]
