"""bench/tiles.py: every cut is checked and timed, and the tables say which is chosen and which is fastest."""

import numpy as np
import pytest

from bench import tiles, timing
from bench.gemm import PRODUCTS, Product
from bench.tiles import CASES, Case, Cut, Result
from bench.timing import Times
from nn.gemm_versions import TENSOR_ARCHITECTURES
from nn.tensor_cores import TensorCores, Tiling, candidates, predicted
from pyrt.kernels import KERNELS, all_constants

SMALL = [
    Case(Product("small", 33, 10, 70, transpose_b=True), 1, 3),
    Case(Product("small", 10, 21, 130, transpose_a=True), 3, 1),
    Case(Product("small", 7, 12, 65)),
]


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
    assert [(case.terms_a, case.terms_b) for case in CASES if "Z1 = " in str(case)] == [(3, 3), (1, 3)]
    for case in CASES:
        file, constants = case.required
        given = {name: str(value) for name, value in constants.items()}
        assert given in all_constants((KERNELS / f"{file}.cu").read_text())


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_every_cut_is_right_and_timed(cores_library, case):
    driver = cores_library.driver
    ((measured, found),) = tiles.measure([case], cores_library)
    assert measured is case
    tilings = tiles.candidates(case.product.K, case.terms_a, case.terms_b, driver.shared_memory)
    assert [cut.tiling for cut in found.cuts] == tilings
    assert len({tiling.parts for tiling in tilings}) > 1
    for cut in found.cuts:
        assert 0 < cut.error < 1e-6 and cut.times is not None
        assert cut.predicted == predicted(cut.tiling, *case.sizes, driver.multiprocessors)


def test_a_wrong_cut_is_not_timed(cores_library, monkeypatch):
    """One of the cuts multiplies something else."""
    multiply = TensorCores.multiply
    case = SMALL[2]

    def wrong(cores, D, A, B, *transposed, tiling):
        alpha = 1.001 if tiling.parts == 2 else 1.0
        return multiply(cores, D, A, B, *transposed, alpha=alpha, tiling=tiling)

    monkeypatch.setattr(TensorCores, "multiply", wrong)
    ((_, found),) = tiles.measure([case], cores_library)
    is_wrong = [cut.times is None for cut in found.cuts]
    assert is_wrong == [cut.tiling.parts == 2 for cut in found.cuts]
    assert any(is_wrong) and not all(is_wrong)


def test_pixels_are_one_term():
    rng = np.random.default_rng(0)
    pixels = tiles.draw((50, 40), 1, rng)
    assert set(np.unique(pixels)) <= set(range(256)) and pixels.std() > 50
    assert tiles.draw((50, 40), 3, rng).min() < 0


def words(line):
    return " ".join(line.split())


def test_table_has_the_fastest_first_and_wrong_ones_last():
    case = Case(Product("Z", 100, 200, 300, transpose_b=True), 1, 3)
    lines = tiles.table(case, result(30.0, None, 20.0)).splitlines()
    assert lines[0] == "Z, 100 x 200 x 300, B transposed, 1 x 3 terms"
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
