"""The roofline of CME 213: its own numbers from its own formulas, and the section on made-up rows of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

pd = pytest.importorskip("pandas", reason="make test installs what the report needs")
pytest.importorskip("matplotlib")

from experiments import course_roofline as study
from experiments.course_roofline import Rates, Work
from experiments.study import FULL, SMALL, Setup
from pyrt.job import join

FIGURE_11 = Rates(1.6327e12, 1.2720e10, 7.950e9, 3.975e9)
"""The rates that the course works out from the medians of its Figure 11; the last one is of two ranks."""


def setup_of(folder: Path, size: str = FULL, gpus: int = 2) -> Setup:
    return Setup(size, gpus, 8, False, folder)


def test_the_course_gets_its_own_roof() -> None:
    """H = 512, B = 3000, two ranks, float32: AI 374.5 and 1.129e12 flops a second."""
    work = Work(512, 3000, 2)
    assert work.intensity == pytest.approx(374.5, abs=0.05)
    assert FIGURE_11.roof(work.intensity) == pytest.approx(1.129e12, rel=5e-4)


def test_the_rates_follow_from_medians_of_ranges() -> None:
    """Goes from rates to medians, by hand, and forward again: the medians of the course's Figure 11 are not
    known here, only the three rates that it gets from them. 2.4392e9 flops; 407,050 gradients of 4 bytes that
    go down and up, and twice in MPI.
    """
    flops, moved = 4 * 1500 * 512 * 794, 2 * 4 * (512 * 784 + 512 + 10 * 512 + 10)
    medians = flops / 1.6327e12, moved / 1.2720e10, moved / 7.950e9
    assert medians == pytest.approx((1.494e-3, 2.560e-4, 4.096e-4), rel=1e-3)
    found = Rates.of(Work(512, 3000, 2), *medians)
    assert found == pytest.approx(FIGURE_11, rel=1e-12)


def test_any_number_of_ranks() -> None:
    """A rank has a quarter of the flops; a ring of four moves 3/4 of what the course counts."""
    two, four = Work(512, 3000, 2), Work(512, 3000, 4)
    assert four.intensity == two.intensity / 2
    rates = Rates.of(four, 1e-3, 1e-4, 2e-4)
    assert rates.flops == pytest.approx(two.flops / 2 / 1e-3)
    assert rates.ring == pytest.approx(0.75 * rates.mpi)


def test_a_roof_adds_the_times_of_flops_and_bytes() -> None:
    """Whatever the ranks: the time at the roof is that of the products, the copies and the sums together."""
    work = Work(64, 700, 3)
    rates = Rates.of(work, 5e-3, 2e-3, 1e-3)
    assert work.flops / rates.roof(work.intensity) == pytest.approx(8e-3)


@pytest.mark.parametrize(("size", "gpus", "ranks"), [(SMALL, 0, {2}), (FULL, 4, {2, 4}), (FULL, 1, {2})])
def test_points_begin_with_the_size_that_gives_the_rates(
    tmp_path: Path, size: str, gpus: int, ranks: set[int]
) -> None:
    setup = Setup(size, gpus, 2, False, tmp_path)
    points = study.points(setup)
    assert {point["ranks"] for point in points} == ranks
    assert all(set(point) <= set(study.COLUMNS) for point in points)
    for count in ranks:
        first = next(point for point in points if point["ranks"] == count)
        assert (first["hidden"], first["batch"]) == (512, 3000)


@pytest.mark.long
@pytest.mark.parallel([2])
def test_a_step_is_measured_range_by_range(tmp_path: Path) -> None:
    job = join()
    point = {"hidden": 6, "batch": 40, "ranks": 2, "threads": 1, "device": "cpu", "steps": 4}
    rows = study.measure(point, job, tmp_path)
    if job.rank > 0:
        assert rows == []
        return
    (row,) = rows
    assert set(row) | set(point) == set(study.COLUMNS)
    assert all(value > 0 for value in row.values())
    assert row["products_us"] < row["passes_us"]


def made(base: Rates, faster: float = 1.0) -> pd.DataFrame:
    """Steps that take what the roof says, but the products of all but the base by ``faster`` times fewer."""
    rows = []
    for hidden, batch in ((512, 3000), (2048, 12000), (128, 750)):
        work, speed = Work(hidden, batch, 2), 1.0 if hidden == 512 else faster
        moved = 2e6 * work.nbytes
        products, copies, mpi = 1e6 * work.flops / base.flops / speed, moved / base.pci, moved / base.mpi
        rows.append(
            {
                **{"hidden": hidden, "batch": batch, "ranks": 2, "device": "cuda", "steps": 9},
                **{"products_us": products, "copies_us": copies, "mpi_us": mpi},
                **{"iteration_us": 1.01 * (products + copies + mpi), "passes_us": 1.02 * products},
                **{"iteration_std_us": 0.1 * products, "passes_std_us": 0.2 * products},
            }
        )
    return pd.DataFrame(rows)


def test_the_section_names_the_rates_and_the_roof(tmp_path: Path) -> None:
    section = study.section(made(FIGURE_11), setup_of(tmp_path))
    base, whole, passes = section.findings
    for said in ("P_flops = 1.633 TFLOP/s", "P_pci = 12.72 GB/s", "P_mpi = 7.95 GB/s by the course's 2n"):
        assert said in base
    assert "3.975 GB/s by the bytes that a ring" in base and "AI = 374.5" in base
    assert "the roof there is 1.129 TFLOP/s, 69% of P_flops" in base
    assert "0 of 3 steps lie above the roof, from 0.99" in whole and "All are below" in whole
    assert "3 of 3 lie above it" in passes and "leave them out" in passes
    assert [figure.file for figure in section.figures] == ["roofline-2.png"]
    assert (tmp_path / "roofline-2.png").stat().st_size > 20_000
    assert section.tables[0].rows["roof GFLOP/s"].iloc[0] == pytest.approx(1129, rel=1e-3)


@pytest.mark.usefixtures("unsaved")
def test_points_above_are_explained_by_their_own_rates(tmp_path: Path) -> None:
    section = study.section(made(FIGURE_11, faster=3.0), setup_of(tmp_path))
    assert "2 of 3 steps lie above the roof" in section.findings[1]
    assert (
        "products run at 3.00 times, copies at 1.00 times, sums at 1.00 times the rates"
        in section.findings[1]
    )


@pytest.mark.usefixtures("unsaved")
def test_passes_below_the_roof_are_told_too(tmp_path: Path) -> None:
    rows = made(FIGURE_11).assign(passes_us=1e9)
    assert "which weigh more here" in study.section(rows, setup_of(tmp_path)).findings[2]


def test_rows_without_the_size_of_the_rates_say_nothing(tmp_path: Path) -> None:
    section = study.section(made(FIGURE_11).iloc[1:], setup_of(tmp_path))
    assert not (section.findings or section.figures or section.tables)
