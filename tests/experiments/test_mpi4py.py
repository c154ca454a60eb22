"""experiments/mpi4py.py: the setting of the mpi4py report, and what is made of its times."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import mpi4py
from experiments.mpi4py import ITERATIONS, STRONG, WEAK
from experiments.study import Setup
from nn.app.options import Options
from pyrt.job import join

pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def setup(folder: Path = Path(), size: str = "small", cores: int = 2) -> Setup:
    return Setup(size, 0, cores, True, folder)


def test_points_are_those_of_the_report_as_far_as_there_are_cores():
    full = mpi4py.points(setup(size="full", cores=64))
    strong = [point for point in full if point["kind"] == STRONG]
    weak = [point for point in full if point["kind"] == WEAK]
    assert {(point["ranks"], point["samples"]) for point in strong} == {(p, 60000) for p in (1, 2, 4, 6, 8)}
    assert {point["samples"] for point in weak} == {5000, 10000, 20000, 30000, 40000}
    assert len(strong) == len(weak) == 5 * 5
    assert {point["ranks"] for point in mpi4py.points(setup(cores=4))} == {1, 2, 4}
    assert {point["ranks"] for point in mpi4py.points(setup(cores=1))} == {1}


def test_an_iteration_is_an_epoch_of_one_batch(monkeypatch: pytest.MonkeyPatch):
    asked: list[Options] = []

    def run(options: Options, job: object) -> SimpleNamespace:
        asked.append(options)
        epochs = range(1, options.epochs + 1)
        return SimpleNamespace(
            epochs=[SimpleNamespace(epoch=n, loss=9.0 / n, seconds=0.5 * n) for n in epochs]
        )

    monkeypatch.setattr("train.train", run)
    rows = mpi4py.measure(mpi4py.points(setup())[0], join(), Path())
    assert [row["iteration"] for row in rows] == list(range(1, 11))
    assert rows[3] == {"iteration": 4, "cost": 2.25, "seconds": 2.0}
    (options,) = asked
    assert (options.exchange, options.head, options.lr, options.momentum) == ("root", "sigmoid", 0.1, 0.0)
    assert (options.samples, options.batch, options.epochs) == (60000, 60000, ITERATIONS)


def test_a_point_is_measured_and_its_cost_falls():
    rows = mpi4py.measure({"hidden": 5, "samples": 100}, join(), Path())
    assert len(rows) == ITERATIONS and rows[-1]["cost"] < rows[0]["cost"]
    assert all(row["seconds"] > 0 for row in rows)


def frame(ranks: tuple[int, ...], noise: float, repeats: int = 3) -> pd.DataFrame:
    """Times with a serial share of 0.1 in strong scaling, and 0.2 in weak."""
    rng = np.random.default_rng(0)
    rows = []
    for kind, repeat, p in ((k, r, p) for k in (STRONG, WEAK) for r in range(repeats) for p in ranks):
        each = 0.1 + 0.9 / p if kind == STRONG else 0.1 * p / (p - 0.2 * (p - 1))
        for iteration in range(1, ITERATIONS + 1):
            rows.append(
                {
                    "kind": kind,
                    "repeat": repeat,
                    "ranks": p,
                    "iteration": iteration,
                    "cost": 8 / iteration,
                    "seconds": each * (1 + noise * rng.standard_normal()),
                }
            )
    return pd.DataFrame(rows, columns=[*mpi4py.COLUMNS])


def test_the_section_has_the_reports_tables_and_figures(tmp_path: Path):
    section = mpi4py.section(frame((1, 2, 4, 6, 8), 0.01), setup(tmp_path, cores=8))
    strong, weak, cost = section.findings
    assert "60,000 samples: ten iterations take 9.99 s on one rank, 5.50, 3.25, 2.50 and 2.13 s" in strong
    assert "Amdahl's law gives a serial share of 10.1 % ± 0.3 (95 %)." in strong
    assert strong.endswith("The mpi4py report has 1.84, 2.95 and 3.97 on 2, 4 and 8.")
    assert "5,000 samples a rank" in weak and "Gustafson's law gives a serial share of 20.0 %" in weak
    assert cost.endswith("8.000 in the first iteration to 0.800 in the last.")
    assert [figure.file for figure in section.figures] == ["strong.png", "weak.png", "iterations.png"]
    assert all((tmp_path / figure.file).stat().st_size > 20_000 for figure in section.figures)
    one, two = (table.rows for table in section.tables)
    assert list(one.ranks) == list(two.ranks) == [1, 2, 4, 6, 8]
    assert list(one["published speed-up"].fillna(0)) == [1, 1.84, 2.95, 0, 3.97]
    assert list(two.samples) == [5000, 10000, 20000, 30000, 40000]
    assert one["speed-up"].iloc[2] == pytest.approx(1 / 0.325, rel=0.02)
    assert two["scaled speed-up"].iloc[2] == pytest.approx(3.4, rel=0.02)
    assert two.efficiency.iloc[0] == 1


@pytest.fixture
def no_scaling_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a second each."""
    monkeypatch.setattr(mpi4py, "_draw_scaling", lambda *_: None)


@pytest.mark.usefixtures("no_scaling_figures")
def test_a_noisy_machine_makes_no_claim(tmp_path: Path):
    section = mpi4py.section(frame((1, 2), 0.5), setup(tmp_path))
    assert "no serial share: the times scatter" in section.findings[0]
    assert "noisy a machine none of these times" in section.findings[2]


@pytest.mark.usefixtures("no_scaling_figures")
def test_one_core_tells_its_times_alone(tmp_path: Path):
    section = mpi4py.section(frame((1,), 0.01), setup(tmp_path, cores=1))
    assert "there is no core for more ranks" in section.findings[0] and len(section.tables) == 2
    assert not mpi4py.section(frame((), 0), setup(tmp_path)).findings


def test_a_job_that_was_cut_short_does_not_count():
    rows = frame((1, 2), 0.0)
    cut = rows[~((rows.repeat == 1) & (rows.ranks == 2) & (rows.iteration == 7))]
    times = mpi4py.times_of(cut[cut.kind == STRONG])
    assert [len(times[p]) for p in (1, 2)] == [3, 2]


def test_what_is_missing_is_named():
    few, many = (mpi4py.missing(setup(cores=cores)) for cores in (2, 8))
    assert "4, 6 and 8 ranks: there are 2 cores, and each rank takes one" in few
    assert len(many) == 2 and "not known here" in many[1]
