"""experiments/plans.py and plans_figures.py: which points there are, who wins by rows made by hand, what the
CPU measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.plans import search_of
from experiments import plans, plans_figures
from experiments.plans_points import COUNTED, DATA, FAMILIES, FORK_AND_JOIN, HERE, MAP, MIXED, MODEL, TIMED
from experiments.study import FAILED, Setup
from nn.autotune import probe
from nn.autotune.probe.context import EXTENTS
from nn.parallel.plan import COLUMNS, ROWS, SAMPLES, Plan
from pyrt.job import Job, join
from tests.nn.autotune.rates import QUICK

pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")


def setup(folder: Path, gpus: int = 0, cores: int = 2, size: str = "small") -> Setup:
    return Setup(size, gpus, cores, False, folder)


SETUPS = [(0, 2, "small"), (0, 16, "full"), (1, 16, "full"), (2, 32, "small"), (4, 32, "full")]


@pytest.mark.parametrize(("gpus", "cores", "size"), SETUPS)
def test_points_are_told_apart_and_what_is_timed_is_on_the_map(tmp_path, gpus, cores, size):
    points = plans.points(setup(tmp_path, gpus, cores, size))
    assert len({tuple(point.items()) for point in points}) == len(points)
    assert all(set(point) <= set(plans.COLUMNS) for point in points)
    here = [point for point in points if point.get("rates") == HERE]
    if gpus == 1:
        assert not here
        return
    assert {point["device"] for point in here} == {"cuda" if gpus else "cpu"}
    assert {point["ranks"] for point in here} == {gpus or {2: 2, 16: 8}[cores]}
    (grid,) = [plans.GRIDS[point["grid"]] for point in here if point["kind"] == MAP]
    timed = [point for point in here if point["kind"] == TIMED]
    assert {point["hidden"] for point in timed} <= set(grid.hidden)
    assert {point["batch"] for point in timed} <= set(grid.batches)
    assert timed


def test_maps_of_other_machines_and_counted_bytes_need_no_gpu(tmp_path):
    for gpus in (0, 1, 4):
        points = plans.points(setup(tmp_path, gpus))
        others = [point for point in points if point.get("rates") != HERE]
        assert {point["device"] for point in others} == {"cpu"}
        assert {point["rates"] for point in others if point["kind"] == MAP} == {"h200", "h100-cluster"}
        assert sum(point["kind"] == COUNTED for point in others) == 3


def test_what_is_missing_is_said(tmp_path):
    said = {gpus: plans.missing(setup(tmp_path, gpus)) for gpus in (0, 1, 2, 3, 4)}
    assert "no GPU" in said[0][0]
    assert "one GPU has nothing to split" in said[1][0]
    assert "2 x 2 takes 4 GPUs, here are 2" in said[2][0] and said[3]
    assert said[4] == []


@pytest.mark.parametrize(
    ("plan", "family", "text"),
    [
        (Plan.data(4, 3), DATA, "data"),
        (Plan.model(1, 4, 3), MODEL, "model, 1 x 4: rows, columns, columns"),
        (Plan.model(2, 2, 3), MIXED, "mixed, 2 x 2: rows, columns, columns"),
        (Plan(1, 4, (ROWS, SAMPLES, COLUMNS)), MIXED, "mixed, 1 x 4: rows, samples, columns"),
    ],
)
def test_plans_are_data_model_or_both(plan, family, text):
    assert plans.family_of(plan) == family
    assert plans.described(plan) == text


def test_epochs_take_about_as_long_in_steps_at_which_the_clock_is_read():
    assert plans.steps_of(1e-3) == 20
    assert plans.steps_of(19e-3) == plans.LEAST
    assert plans.steps_of(1e-5) == plans.MOST


def row(hidden: int, batch: int, family: str, us: float, measured: float | None = None, **more: Any) -> dict:
    """Of a plan of two ranks."""
    groups, shards = (2, 1) if family == DATA else (1, 2)
    kind = MAP if measured is None else TIMED
    values = {"kind": kind, "rates": HERE, "planned": 2, "device": "cuda", "card": "GPU", "hidden": hidden}
    sizes = {"sent": us * 1e5, "messages": 4, "weights": 3e6, "activations": 1e6}
    plan = family if family in (DATA, FORK_AND_JOIN) else f"{family}, 1 x 2"
    values |= {"batch": batch, "family": family, "plan": plan, "groups": groups, "shards": shards, **sizes}
    return {**values, "predicted_us": us, "measured_us": measured, **more}


def frame(*rows: dict) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*plans.COLUMNS, FAILED])


MAPPED = [
    *(row(64, 16, DATA, 100.0), row(64, 16, MODEL, 40.0), row(64, 16, FORK_AND_JOIN, 20.0)),
    *(row(64, 32, DATA, 100.0), row(64, 32, MODEL, 90.0), row(64, 32, MIXED, 80.0)),
    *(row(64, 64, DATA, 100.0), row(64, 64, MODEL, 110.0)),
    *(row(32, batch, family, us) for batch in (16, 32, 64) for family, us in ((DATA, 50.0), (MODEL, 60.0))),
    *(row(128, 16, DATA, 300.0), row(128, 32, DATA, 300.0), row(128, 64, DATA, 300.0)),
    *(row(128, 16, MODEL, 200.0), row(128, 32, MODEL, 200.0), row(128, 64, MIXED, 299.0)),
]
RUN = [
    *(row(64, 16, DATA, 100.0, 125.0), row(64, 16, MODEL, 40.0, 50.0)),
    *(row(64, 64, DATA, 100.0, 200.0), row(64, 64, MODEL, 110.0, 110.0)),
    *(row(32, 32, DATA, 50.0, 61.0), row(32, 32, MODEL, 60.0, 60.0)),
]
COUNTS = [
    row(256, batch, family, 0.0, kind=COUNTED, sent=sent, counted=counted, counted_messages=4, planned=4)
    for batch, family, sent, counted in [
        *((16, DATA, 2e6, 2e6), (16, MODEL, 5e4, 5e4)),
        *((64, DATA, 2e6, 2e6), (64, MODEL, 3e6, 3.1e6)),
    ]
]


def test_the_best_is_a_plan_and_compared_with_data():
    best = plans_figures.best_of(frame(*MAPPED), "predicted_us").set_index(["hidden", "batch"])
    assert best.family[64, 16] == MODEL and best.gain[64, 16] == 2.5  # not the fork, which is no plan
    assert best.family[64, 32] == MIXED and best.gain[64, 32] == 1.25
    assert best.family[64, 64] == DATA and best.gain[64, 64] == 1
    alone = plans_figures.best_of(frame(row(8, 8, MODEL, 7.0)), "predicted_us")
    assert alone.gain.isna().all()  # there is no room for data


def test_borders_are_the_largest_batches_at_which_data_loses():
    text = plans_figures.borders(plans_figures.best_of(frame(*MAPPED), "predicted_us"))
    assert text == ("at no batch at H 32; up to batch 32 at H 64; up to the largest batch here, 64, at H 128")


def test_predictions_are_judged_by_what_was_fastest():
    cases = plans_figures.judged(frame(*RUN)).set_index(["hidden", "batch"])
    assert cases.more.to_dict() == pytest.approx({(64, 16): 0, (64, 64): 200 / 110 - 1, (32, 32): 1 / 60})
    assert cases.plan[64, 64] == "data" and cases.fastest[64, 64] == "model, 1 x 2"
    assert cases.fastest_gain[64, 16] == 2.5


def test_sorts_of_plans_are_compared_with_data_where_it_fits():
    rows = frame(*MAPPED, row(64, 128, MODEL, 7.0))
    found = plans_figures.relative(rows[rows.hidden == 64], MODEL, "predicted_us")
    assert found.to_dict() == pytest.approx({16: 0.4, 32: 0.9, 64: 1.1})  # 128: there is no room for data


@pytest.mark.parametrize(("timed", "hidden"), [([], 64), (RUN[4:], 32), ([row(9, 9, DATA, 1.0, 1.0)], 64)])
def test_the_crossover_is_of_a_width_whose_best_plan_changes_and_that_was_measured(timed, hidden):
    """Of 64 three sorts are best, of 128 two, of 32 one; 9 is not on the map."""
    best = plans_figures.best_of(frame(*MAPPED), "predicted_us")
    assert plans_figures._most_changing(best, frame(*timed)) == hidden


def test_the_section_says_what_the_rows_say(tmp_path):
    section = plans.section(frame(*MAPPED, *RUN, *COUNTS), setup(tmp_path, 2))
    text = "\n".join(section.findings)
    assert "2 x GPU (rates measured here): predicted best is data in 4, model in 3, mixed in 2 of 9" in text
    assert "by more than 10% over data in 4." in text
    assert (
        "most is gained at H 64, batch 16, by model, 1 x 2: 2.50 x as fast as data, 40 against 100 us" in text
    )
    assert "fork and join around every product would take 0.5 to 0.5 times" in text
    assert "the fastest in 1 of 3 cases, and within 10% of it in 2; predicted times are 0.50 to 1.00" in text
    assert "2.50 x at H 64, batch 16" in text
    assert "in 3 of 4 runs" in text
    assert "data sends 2.00 MB a step at any batch; the leanest model plan 0.050 MB at batch 16, 3.10" in text
    names = [figure.file for figure in section.figures]
    assert names == ["map_here.png", "crossover.png", "times.png", "bytes.png"]
    assert all((tmp_path / name).stat().st_size > 10_000 for name in names)
    assert "Framed cells were measured" in section.figures[0].caption
    (table,) = section.tables
    assert list(table.rows["predicted / measured"]) == ["0.82 to 1.00", "0.80 to 0.80", "0.50 to 1.00"]


def test_steps_measured_here_are_not_drawn_into_the_map_of_another_machine(tmp_path):
    mapped = frame(*MAPPED).assign(rates="h200")
    alone = plans.section(mapped, setup(tmp_path, 2)).figures
    drawn = [(tmp_path / figure.file).read_bytes() for figure in alone]
    both = plans.section(pd.concat([mapped, frame(*RUN)], ignore_index=True), setup(tmp_path, 2)).figures
    assert [figure.file for figure in both] == ["map_h200.png", "crossover.png", "times.png"]
    assert both[:2] == alone and drawn == [(tmp_path / figure.file).read_bytes() for figure in alone]


@pytest.mark.long
def test_any_kind_of_rows_may_be_missing(tmp_path):
    there = setup(tmp_path, 2)
    assert plans.section(frame(), there).findings == []
    failed = frame(*MAPPED, {"kind": MAP, "rates": HERE, FAILED: "no reason"})
    section = plans.section(failed[failed[FAILED].isna()], there)
    assert "H 64, batch 16" in section.findings[1]  # whole numbers, whatever the column holds elsewhere
    for rows in (MAPPED[:1], RUN[1:2], COUNTS[1:2]):
        assert plans.section(frame(*rows), there).figures


@pytest.mark.long
def test_a_map_has_what_the_search_finds(tmp_path, monkeypatch):
    monkeypatch.setitem(plans.GRIDS, "tiny", plans.Grid((256, 2048), (256,)))
    point = {"kind": MAP, "rates": "h200", "planned": 4, "grid": "tiny", "ranks": 1, "device": "cpu"}
    rows = frame(*({**point, **row} for row in plans.measure(point, join().alone(), tmp_path)))
    best = plans_figures.best_of(rows, "predicted_us").set_index(["hidden", "batch"])
    search = search_of(plans._case(2048, 256), 4, plans._rates_of("h200"))
    cost = search.cost(search.best())
    assert cost is not None and best.predicted_us[2048, 256] == cost.seconds * 1e6
    assert best.sent[2048, 256] == cost.sent and best.plan[256, 256] == "data"
    assert set(rows.family) == {*FAMILIES, FORK_AND_JOIN}


@pytest.mark.parallel([2])
def test_plans_are_run_and_their_bytes_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job: Job = join()
    folder = Path(job.comm.bcast(str(tmp_path)))
    monkeypatch.setattr(probe, "cache_folder", lambda name: folder / name)
    monkeypatch.setitem(EXTENTS, "cpu", QUICK)
    sizes = {"ranks": 2, "planned": 2, "device": "cpu", "hidden": 16, "batch": 20}
    timed = plans.measure({"kind": TIMED, "rates": HERE, **sizes}, job, folder)
    assert [row["family"] for row in timed][:2] == [DATA, MODEL]
    assert all(row["least_us"] <= row["measured_us"] <= row["most_us"] for row in timed)
    counted = plans.measure({"kind": COUNTED, **sizes}, job, folder)
    assert {row["family"] for row in counted} == set(FAMILIES)
    for row in counted:
        assert row["counted"] == row["sent"] > 0 and row["counted_messages"] == row["messages"] > 0
