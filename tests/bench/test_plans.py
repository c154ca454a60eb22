"""bench/plans.py: plans are run and predicted, and the table says which is best."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.plans import Case, Length, Line, Row, measure, parse_lines, table, verdict
from bench.timing import Times
from nn.autotune import probe
from nn.autotune.cost import Cost
from nn.autotune.probe.context import EXTENTS
from pyrt.job import Job, join
from tests.nn.autotune.rates import QUICK


@pytest.fixture
def job() -> Job:
    return join()


def row(name: str, predicted: float, measured: float) -> Row:
    cost = Cost(f"{name} in words", products=predicted * 1e-6)
    return Row(name, cost, Times(measured, measured - 1, measured + 1))


ROWS = [row("data", 300.0, 330.0), row("model, 1 x 4", 200.0, 220.0), row("best", 190.0, 231.0)]


def test_the_verdict_compares_the_best_prediction_with_the_fastest_plan():
    text = verdict(ROWS)
    assert "predicted best: best; fastest: model, 1 x 4; 5% apart" in text
    assert "predictions within 18%" in text
    assert "model, 1 x 4 1.50 x, best 1.43 x" in text


def test_the_table_has_a_line_for_each_plan_and_each_way_of_pytorch():
    lines = table(ROWS, [Line("PyTorch 2, DDP", Times(500.0, 400.0, 600.0))]).splitlines()
    assert len(lines) == 2 + 4
    assert "best: best in words" in lines[4]
    assert lines[3].split()[4:6] == ["200", "220"]
    assert lines[5].split()[:4] == ["PyTorch", "2,", "DDP", "-"]


def test_lines_of_the_baseline_survive_other_output():
    text = 'a warning\n{"mode": "PyTorch 2, DDP", "us": [2.0, 1.0, 3.0]}\n'
    assert list(parse_lines(text)) == [Line("PyTorch 2, DDP", Times(2.0, 1.0, 3.0))]


@pytest.mark.long
@pytest.mark.parallel([2])
def test_every_plan_is_run_and_predicted(tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job.comm.bcast(str(tmp_path))
    monkeypatch.setattr(probe, "cache_folder", lambda name: Path(folder) / name)
    monkeypatch.setitem(EXTENTS, "cpu", QUICK)
    rows = measure(Case((32, 16), 20), folder, job, "cpu", Length(epochs=3, warm_up=1, steps=2))
    assert [one.name for one in rows][:2] == ["data", "model, 1 x 2"]
    assert all(one.predicted.seconds > 0 and one.measured.median > 0 for one in rows)
