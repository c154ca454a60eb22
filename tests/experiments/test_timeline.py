"""The study of a step's timeline: intervals worked out by hand; the section on a made-up step of two GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

pd = pytest.importorskip("pandas", reason="make test installs what the report needs")
pytest.importorskip("matplotlib")

from experiments import timeline
from experiments.study import FULL, Setup
from pyrt.timeline import HOST, MPI, RankRecord, Span
from pyrt.timeline.chrome import trace
from pyrt.timeline.clocks import HostClock


def gpus(folder: Path, count: int = 2) -> Setup:
    return Setup(FULL, count, 8, False, folder)


def test_unions_and_what_they_have_in_common() -> None:
    first = timeline.union([(5, 6), (0, 2), (1, 3), (3, 4)])
    assert first == [(0, 4), (5, 6)]
    assert timeline.length(first) == 5
    assert timeline.common(first, timeline.union([(3.5, 5.5), (7, 9)])) == [(3.5, 4), (5, 5.5)]
    assert timeline.common(first, []) == []


def record(rank: int, steps: int = 3) -> RankRecord:
    """Steps of 10, 20, 30 ms: a kernel for a half, a sum from 1/4 to 3/4 of it, a copy of 1 ms in the sum."""
    spans, start = [], 100.0
    for step in range(1, steps + 1):
        whole = step / 100
        spans += [
            Span(HOST, "step", f"step {step}", start, start + whole, step, "other"),
            Span(HOST, "phase", "batch iteration", start, start + whole, step, "batch iteration"),
            Span("stream compute", "kernel", "gemm", start, start + whole / 2, step, "forward GEMM 1"),
            Span(MPI, "mpi", "Iallreduce", start + whole / 4, start + whole * 3 / 4, step, "MPI_Iallreduce"),
            Span(
                "stream download", "copy", "down", start + whole / 4, start + whole / 4 + 1e-3, step, "x", 64
            ),
        ]
        start += whole
    return RankRecord(rank, "node of rank 0", "cuda", spans, HostClock(0.0, 0.0), 0.0)


@pytest.fixture
def run() -> pd.DataFrame:
    rows = timeline.rows_of(trace([record(0), record(1)]))
    return pd.DataFrame([{"exchange": "host", "ranks": 2, **row} for row in rows])


def test_the_step_of_median_length_is_taken(run: pd.DataFrame) -> None:
    assert set(run.step) == {2} and set(run["rank"]) == {0, 1}
    assert run.start_us.min() == 0
    assert run.stop_us.max() == pytest.approx(20_000)
    assert "step 2" not in set(run.name)


def test_shares_count_what_happens_at_once_in_each(run: pd.DataFrame) -> None:
    found = timeline.shares_of(run)
    assert found == pytest.approx((20_000, 10_000, 10_000, 5_000, 1_000, 10_000))


def test_on_the_cpu_phases_that_compute_are_what_is_computed(run: pd.DataFrame) -> None:
    """A phase within another, as a product in the backward pass, is not counted twice."""
    on_host = run[run.kind != "kernel"].copy()
    extra = on_host[on_host.name == "batch iteration"].assign(
        name="backward GEMM 1", start_us=2_000.0, stop_us=6_000.0
    )
    assert timeline.shares_of(pd.concat([on_host, extra])).computing == pytest.approx(4_000)


def test_the_section_has_a_figure_and_a_finding_for_each_exchange(run: pd.DataFrame, tmp_path: Path) -> None:
    rows = pd.concat([run, run.assign(exchange="peer")])
    section = timeline.section(rows, gpus(tmp_path))
    assert [figure.file for figure in section.figures] == ["step-host.png", "step-peer.png"]
    assert all((tmp_path / figure.file).stat().st_size > 10_000 for figure in section.figures)
    assert section.findings[0] == (
        "On 2 ranks with --exchange host the step takes 20 ms when it is launched kernel by kernel; rank 0 "
        "computes for 10 ms of it (50%), and sums over ranks are under way for 10 ms, of which 50% are "
        "hidden behind computation."
    )
    assert section.tables[0].rows["of these hidden"].tolist() == pytest.approx([5_000, 5_000])


def test_a_study_without_rows_says_nothing(run: pd.DataFrame, tmp_path: Path) -> None:
    section = timeline.section(run.iloc[:0], gpus(tmp_path))
    assert not (section.findings or section.figures or section.tables)


@pytest.mark.parametrize(("count", "exchanges"), [(0, 2), (1, 4), (4, 3)])
def test_points_are_runs_that_train_takes(tmp_path: Path, count: int, exchanges: int) -> None:
    from nn.app.command_line import parse
    from nn.input.schedule import Schedule
    from nn.train.recorded_steps import chosen

    points = timeline.points(gpus(tmp_path, count))
    assert len(points) == exchanges
    for point in points:
        options = parse(point["words"].split())
        assert point["ranks"] == (1 if point["exchange"] == "local" else 2)
        schedule = Schedule(3600, options.samples or 0, options.batch, options.epochs, True, 0)
        assert chosen(timeline.STEPS, 0, schedule.steps) == timeline.STEPS
