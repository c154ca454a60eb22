"""The long runs of the study of convergence: where a run has converged, by hand, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

pd = pytest.importorskip("pandas", reason="make test installs what the report needs")
pytest.importorskip("matplotlib")

from experiments import convergence, convergence_length
from experiments.study import FULL, SMALL, Section, Setup


def run(hidden: int, precisions: list[float], seconds: float) -> pd.DataFrame:
    """A run with such precisions after its epochs, each of so many seconds; its loss is 1 / epoch."""
    epochs = range(1, len(precisions) + 1)
    return pd.DataFrame(
        {
            **{"varied": "length", "lr": 1.0, "hidden": hidden, "batch": 400, "device": "cuda"},
            "epoch": epochs,
            "loss": [1 / epoch for epoch in epochs],
            "validation_precision": precisions,
            "test_precision": precisions[-1] - 0.01,
            "seconds": seconds,
        }
    )


ROWS = pd.concat(
    [
        run(16, [0.1, 0.6, *[0.7 + 0.01 * step for step in range(10)], *[0.8] * 7, 0.84], 0.5),
        run(64, [0.5, 0.893, 0.9, 0.88, *[0.9] * 15, 0.902], 2.0),
    ]
)
"""20 epochs each, so that the last level is the mean of the last two: 0.82 and 0.901."""


def test_a_run_has_converged_where_it_first_comes_near_its_last_level() -> None:
    """0.815 is first passed at the last epoch, 0.896 at the third; a later step back does not matter."""
    found = convergence_length.converged(ROWS)
    assert found.hidden.tolist() == [16, 64]
    assert found.level.tolist() == pytest.approx([0.82, 0.901])
    assert found.epoch.tolist() == [20, 3]
    assert found.seconds.tolist() == pytest.approx([10.0, 6.0])
    assert found.test_precision.tolist() == pytest.approx([0.83, 0.892])


def test_a_single_epoch_is_a_run_too() -> None:
    found = convergence_length.converged(run(8, [0.3], 1.0))
    assert (found.epoch.iloc[0], found.level.iloc[0]) == (1, 0.3)


def test_the_section_says_how_well_and_how_fast(tmp_path: Path) -> None:
    section = convergence.section(ROWS, Setup(FULL, 1, 8, False, tmp_path))
    assert [figure.file for figure in section.figures] == ["length.png", "converged.png"]
    assert all((tmp_path / figure.file).stat().st_size > 20_000 for figure in section.figures)
    loss, well, fast = section.findings
    assert loss.startswith("After 20 epochs the training loss is 0.05 with 16 hidden units and 0.05 with 64")
    assert loss.figure == "length" and well.figure == "converged"
    assert "from 0.820 to 0.901 (test: 0.830 to 0.892); 64 units are enough" in well
    assert "takes 20 epochs and 10 s with 16 hidden units, 3 epochs and 6 s with 64, on one GPU" in fast
    assert len(section.tables[0].rows) == 2
    assert convergence.section(ROWS.iloc[:0], Setup(SMALL, 0, 2, False, tmp_path)) == Section()


@pytest.mark.parametrize(("size", "gpus", "epochs"), [(SMALL, 0, 50), (FULL, 0, 1000), (FULL, 1, 1000)])
def test_the_longest_runs_are_of_several_widths(tmp_path: Path, size: str, gpus: int, epochs: int) -> None:
    points = convergence.points(Setup(size, gpus, 2, False, tmp_path))
    longest = [point for point in points if point["varied"] == "length"]
    assert {point["epochs"] for point in longest} == {epochs}
    widths = [point["hidden"] for point in longest]
    assert widths == sorted(set(widths)) and len(widths) >= 3
    assert all(set(point) <= set(convergence.COLUMNS) for point in points)
