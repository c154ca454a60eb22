"""bench/tiles.py: every cut is checked and timed, and the tables say which is chosen and which is fastest."""

import dataclasses

import numpy as np
import pytest

from bench import tiles, timing
from bench.gemm import PRODUCTS, Operands, Product
from bench.tiles import CASES, Case, Cut, Result
from bench.timing import Times
from nn.launch.gemm.product import Epilogue
from nn.launch.gemm.versions import TENSOR_ARCHITECTURES
from nn.launch.gemm.wgmma import ComponentProduct, Tiling, candidates, predicted, tensor_product
from pyrt.clock import StreamClock
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KERNELS, KernelLibrary, all_constants
from tests import few

SMALL = [
    Case(Product("small", 33, 10, 70, transpose_b=True), 1, 3),
    Case(Product("small", 10, 21, 130, transpose_a=True), 3, 1),
    Case(Product("small", 7, 12, 65)),
]


NULL = NullDriver(DeviceProperties("a GPU", "sm_90a", 132, 232448), "cuda")


def needed(case):
    """The kernel file of a case, and its constants."""
    clock = StreamClock(NULL, NULL.create_stream())
    return tensor_product(case.work(Operands(clock, case.product)))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """No time is of interest here, and some cuts are enough."""
    monkeypatch.setattr(timing, "SPAN", 0.0)
    monkeypatch.setattr(tiles, "candidates", lambda *case: candidates(*case)[::5])


@pytest.fixture
def cores_library(library):
    if library.driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    return library


def result(*microseconds, chosen=0):
    """Cuts of these times, None for a wrong one."""
    cuts = [
        Cut(Tiling(64, 64, parts, 8), 10.0 * parts, 1e-7, Times(us, us - 1, us + 1) if us else None)
        for parts, us in enumerate(microseconds, start=1)
    ]
    return Result(cuts, cuts[chosen].tiling)


def test_cases_are_what_tensor_cores_take_and_kernels_exist_for():
    assert {case.product for case in CASES} == {
        product for product in PRODUCTS if min(product.N, product.M, product.K) > 32
    }
    assert [(case.components_a, case.components_b) for case in CASES if "Z1 = " in str(case)] == [
        (3, 3),
        (1, 3),
    ]
    for file, constants in map(needed, CASES):
        given = {name: str(value) for name, value in constants.items()}
        assert given in all_constants((KERNELS / f"{file}.cu").read_text())


def test_what_the_cases_need_is_compiled_ahead(monkeypatch):
    ahead = []
    monkeypatch.setattr(KernelLibrary, "compile_sources", lambda library, sources: ahead.extend(sources))
    library = tiles.compiled(NULL, CASES)
    wanted = {library.source(*needed(case)) for case in CASES}
    assert {*wanted, library.source("gemm/split", {"REAL": "float"})} == set(ahead)


@pytest.mark.long
@pytest.mark.parametrize("case", few(SMALL[:1], of=SMALL), ids=str)
def test_every_cut_is_right_and_timed(cores_library, case):
    driver = cores_library.driver
    ((measured, found),) = tiles.measure([case], cores_library)
    assert measured is case
    tilings = tiles.candidates(case.product.K, case.components_a, case.components_b, driver.shared_memory)
    assert [cut.tiling for cut in found.cuts] == tilings
    assert len({tiling.parts for tiling in tilings}) > 1
    for cut in found.cuts:
        assert 0 < cut.error < 1e-6 and cut.times is not None
        assert cut.predicted == predicted(cut.tiling, *case.sizes, driver.multiprocessors)


@pytest.mark.long
def test_a_wrong_cut_is_not_timed(cores_library, monkeypatch):
    """One of the cuts multiplies something else."""
    on_device, case = ComponentProduct.on_device, SMALL[2]

    def wrong(work, kernels):
        epilogue = Epilogue(alpha=1.001 if work.tiling.parts == 2 else 1.0)
        return on_device(dataclasses.replace(work, epilogue=epilogue), kernels)

    monkeypatch.setattr(ComponentProduct, "on_device", wrong)
    ((_, found),) = tiles.measure([case], cores_library)
    is_wrong = [cut.times is None for cut in found.cuts]
    assert is_wrong == [cut.tiling.parts == 2 for cut in found.cuts]
    assert any(is_wrong) and not all(is_wrong)


def test_pixels_are_one_component():
    rng = np.random.default_rng(0)
    pixels = tiles.draw((50, 40), 1, rng)
    assert set(np.unique(pixels)) <= set(range(256)) and pixels.std() > 50
    assert tiles.draw((50, 40), 3, rng).min() < 0


def words(line):
    return " ".join(line.split())


def test_table_has_the_fastest_first_and_wrong_ones_last():
    case = Case(Product("Z", 100, 200, 300, transpose_b=True), 1, 3)
    lines = tiles.table(case, result(30.0, None, 20.0)).splitlines()
    assert lines[0] == "Z, 100 x 200 x 300, B transposed, 1 x 3 components"
    assert [words(line) for line in lines[3:]] == [
        "64 x 64, K in 3, 8 stages 20.0 19.0 to 21.0 30.0 fastest",
        "64 x 64, K in 1, 8 stages 30.0 29.0 to 31.0 10.0 chosen",
        "64 x 64, K in 2, 8 stages - WRONG: 1.0e-07 20.0",
    ]
    assert "chosen, fastest" in tiles.table(case, result(20.0, 30.0))


def test_summary_compares_the_chosen_with_the_fastest():
    results = {SMALL[0]: result(30.0, 20.0), SMALL[1]: result(None, 20.0), SMALL[2]: result(None)}
    lines = tiles.summary(results).splitlines()[2:]
    assert words(lines[0]).endswith(" 30.0 20.0 1.50 64 x 64, K in 2, 8 stages")
    assert words(lines[1]).endswith(" - 20.0 - 64 x 64, K in 2, 8 stages")
    assert words(lines[2]).endswith(" - - - -")
