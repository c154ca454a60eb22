"""experiments/asynchronous.py: its runs, its formulas against simulated queues, findings from made-up rows of
a GPU, a short run."""

from __future__ import annotations

import heapq
import math
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pandas", reason="make test installs what the report needs")
pytest.importorskip("matplotlib")

import pandas as pd

from experiments import asynchronous
from experiments.asynchronous_model import mean_staleness, rate_limit, speed
from experiments.asynchronous_points import (
    ADAM,
    COMPARED,
    DENSE,
    FREE,
    HOGWILD,
    LENET,
    MOMENTUM,
    OPTIMISERS,
    PLAIN,
    PRICED,
    SCALED,
    SLOW,
    SYNCHRONOUS,
    WAYS,
    WORKERS,
    servers_of,
)
from experiments.asynchronous_runs import counts_of, goal_of, runs_of
from experiments.study import FULL, SMALL, Setup
from nn.problem.progress import Epoch
from nn.train.diverged import Diverged
from nn.train.workers import AsynchronousReport
from pyrt.job import join
from tests import few


def setup_of(size: str, gpus: int, folder: Path = Path(), cores: int = 16) -> Setup:
    return Setup(size, gpus, cores, True, folder)


def seen(points, name):
    return {point[name] for point in points}


@pytest.mark.parametrize(("gpus", "cores"), [(1, 16), (0, 16), (0, 2)])
def test_the_full_size_has_every_way_number_of_workers_and_slow_worker(gpus, cores):
    points = asynchronous.points(setup_of(FULL, gpus, cores=cores))
    numbers = set(WORKERS) if gpus or cores == 16 else {1, 2, 4}
    assert seen(points, "workers") == numbers
    assert seen(points, "way") == set(WAYS) and seen(points, "slow") == set(SLOW)
    assert seen(points, "net") == {DENSE, LENET} and seen(points, "optimiser") == set(OPTIMISERS)
    four = [point for point in points if point["workers"] == 4 and point["net"] == DENSE]
    for slow in SLOW:
        assert {point["way"] for point in four if point["slow"] == slow} == set(WAYS)
    jobs = [key for key, _ in groupby(points, key=lambda point: (point["ranks"], point["threads"]))]
    assert len(jobs) == len(set(jobs))  # each number of ranks starts once
    assert max(seen(points, "ranks")) == max(numbers) + max(1, max(numbers) // 4)
    assert len(points) < 150


def test_the_small_size_has_few_points():
    points = asynchronous.points(setup_of(SMALL, 0, cores=2))
    assert len(points) < 30 and seen(points, "device") == {"cpu"} and seen(points, "threads") == {1}
    assert seen(points, "kind") == {COMPARED, PRICED} and seen(points, "net") == {DENSE, LENET}


@pytest.mark.parametrize(("size", "gpus"), [(FULL, 1), (SMALL, 0)])
def test_points_are_runs_that_train_takes(size, gpus):
    points = asynchronous.points(setup_of(size, gpus))
    options = [asynchronous.options_of(point) for point in points]
    assert len({tuple(point.items()) for point in points}) == len(points)
    for point, one in zip(points, options, strict=True):
        workers = point["ranks"] - one.asynchrony.servers
        assert workers == point["workers"] and one.batch == 50 * workers
        assert one.slowed == ((point["ranks"] - 1, point["slow"]) if point["slow"] > 1 else None)
        assert one.optimiser == ("adam" if point["optimiser"] == ADAM else "sgd")
        assert one.lr == pytest.approx(point["lr"] * (workers if point["way"] == SCALED else 1))
        if point["optimiser"] in (PLAIN, MOMENTUM):
            assert one.momentum == (0.9 if point["optimiser"] == MOMENTUM else 0)
        if point["way"].startswith("server"):
            assert point["way"] == servers_of(one.staleness) and one.exchange == "server"
        else:
            exchange = "host" if workers > 1 else "local"
            assert one.exchange == (HOGWILD if point["way"] == HOGWILD else exchange)


@pytest.mark.parametrize(
    ("way", "workers", "updates"),
    [
        (SYNCHRONOUS, 4, 18),
        (servers_of("0"), 4, 18),
        (servers_of("1"), 4, 72),
        (HOGWILD, 8, 72),
        (FREE, 1, 72),
    ],
)
def test_an_epoch_has_an_update_for_each_worker_and_batch_or_one_a_batch(way, workers, updates):
    point = {"way": way, "workers": workers, "servers": int(way.startswith("server")), "samples": 3600}
    assert asynchronous.updates_an_epoch(point) == updates


def simulated(workers, slow, steps, bound, fast):
    """Play an epoch: when it ends, and how stale each update is. A server answers each push at once."""
    total, granted, version = workers * steps, workers, 0
    made, pulled, owed, stale = [0] * workers, [0] * workers, [], []
    lengths = [*fast[: workers - 1], slow]
    coming = [(length, worker) for worker, length in enumerate(lengths)]
    heapq.heapify(coming)
    now = 0.0
    while coming:
        now, worker = heapq.heappop(coming)
        stale.append(version - pulled[worker])
        version, made[worker] = version + 1, made[worker] + 1
        owed.append(worker)
        for one in list(owed):
            if granted < total and made[one] - min(made) <= bound:
                owed.remove(one)
                granted, pulled[one] = granted + 1, version
                heapq.heappush(coming, (now + lengths[one], one))
    assert len(stale) == total
    return now, stale


@pytest.mark.parametrize("workers", few([4], of=[2, 4, 8]))
@pytest.mark.parametrize("bound", few([1, 4, math.inf], of=[1, 2, 4, 8, 16, math.inf]))
def test_throughput_is_that_of_a_simulated_epoch_to_one_step(workers, bound):
    for slow in (1, 2, 3.5, 8):
        for steps in (5, 9, 18, 36):
            seconds, _ = simulated(workers, slow, steps, bound, [1.0] * workers)
            predicted = workers * steps / speed(servers_of(f"{bound:g}"), workers, slow, steps)
            assert abs(seconds - predicted) < 1.001


def test_ways_whose_workers_wait_go_at_the_pace_of_the_slowest():
    for way in (SYNCHRONOUS, SCALED, HOGWILD, servers_of("0")):
        assert speed(way, 4, 8, 18) == 0.5
    assert speed(FREE, 1, 8, 18) == 1 / 8
    assert speed(FREE, 4, 8, 18) == 3  # three steps of the slow one last 24, and 69 of the others 23


def test_the_mean_staleness_does_not_depend_on_how_fast_workers_are():
    rng = np.random.default_rng(0)
    for workers, slow, steps in ((2, 1.0, 9), (4, 8.1, 18), (8, 2.3, 7)):
        _, stale = simulated(workers, slow, steps, math.inf, rng.uniform(0.5, 2, workers))
        assert np.mean(stale) == pytest.approx(mean_staleness(workers, steps), rel=1e-12)


@pytest.mark.parametrize("staleness", [0, 1, 3, 7])
def test_descent_by_stale_gradients_is_stable_up_to_the_limit(staleness):
    def grows(rate: float) -> bool:
        x = [1.0] * (staleness + 1)
        for _ in range(20000):
            x.append(x[-1] - rate * x[-1 - staleness])
            if abs(x[-1]) > 1e6:
                return True
        return False

    limit = 2 * rate_limit(staleness)
    assert grows(1.02 * limit) and not grows(0.98 * limit)


def report_of(accuracies, told=None):
    epochs = [Epoch(n, 1 / n, accuracy, 0.5, 0.25) for n, accuracy in enumerate(accuracies, 1)]
    return SimpleNamespace(epochs=epochs, test=SimpleNamespace(precision=0.9), asynchronous=told)


def point_of(way, **others):
    points = asynchronous.points(setup_of(FULL, 1))
    wanted = {"way": way, "kind": COMPARED, "net": DENSE, "optimiser": PLAIN, "slow": 1, "run": 1, **others}
    return next(point for point in points if wanted.items() <= point.items())


def test_rows_count_seconds_and_updates_from_the_start():
    told = AsynchronousReport(4, 144, 0.0, 3600, 3600, 1, 3, [[90, 40, 14], [100, 44, 0]], 5)
    first, last = asynchronous.rows_of(point_of(FREE, workers=4), report_of((0.5, 0.91), told))
    assert first == {"epoch": 1, "updates": 72, "seconds": 0.25, "loss": 1.0, "accuracy": 0.5}
    assert (last["updates"], last["seconds"], last["test_accuracy"]) == (144, 0.5, 0.9)
    assert (last["staleness"], last["ahead"], last["lost"]) == ("190 84 14", 5, None)
    assert (last["least_seen"], last["most_seen"]) == (1, 3)
    told = AsynchronousReport(4, 144, 0.01, 3600, 3600, 2, 2, [[60, 84]])
    (row,) = asynchronous.rows_of(point_of(HOGWILD, workers=4), report_of((0.5,), told))
    assert (row["staleness"], row["ahead"], row["lost"]) == ("60 84", None, 0.01)
    assert set(row) <= set(asynchronous.COLUMNS)


def test_a_run_that_diverges_never_reaches_the_accuracy(monkeypatch):
    def train(options, job):
        raise Diverged("the loss is nan")

    monkeypatch.setattr("train.train", train)
    (row,) = asynchronous.measure(point_of(FREE, workers=4), None, Path())
    assert row["loss"] == math.inf and row["accuracy"] == 0


def test_histograms_are_read_from_words_numbers_and_nothing():
    assert counts_of("3 0 2").tolist() == [3, 0, 2] and counts_of(7.0).tolist() == [7]
    assert len(counts_of(math.nan)) == len(counts_of(None)) == 0


def accuracy_of(point, epoch):
    """Rises to 0.95; four times as slowly with one update of a batch, never with several and a high rate."""
    if point["kind"] == PRICED and point["workers"] * point["lr"] > 8:
        return 0.5
    waits = asynchronous.updates_an_epoch(point) < 72 and point["way"] != SCALED
    return round(min(0.95, 0.7 + 0.1 * epoch / (4 if waits else 1)), 6)


def rows_of_gpu(folder, size=FULL):
    """An epoch takes 0.1 s, or as much longer as the slow worker says where all wait for it."""
    rows = []
    for point in asynchronous.points(setup_of(size, 1, folder)):
        if point["net"] == LENET and point["samples"] < 3600:
            continue
        steps = math.ceil(3600 / (50 * point["workers"]))
        seconds = 0.1 / speed(point["way"], point["workers"], point["slow"], steps) * point["workers"]
        for epoch in range(1, point["epochs"] + 1):
            row = {**point, "epoch": epoch, "updates": epoch * asynchronous.updates_an_epoch(point)}
            row |= {"seconds": seconds * epoch, "loss": 1 / epoch, "accuracy": accuracy_of(point, epoch)}
            if epoch == point["epochs"] and point["servers"]:
                row |= {"staleness": "1 2 1", "ahead": 3, "least_seen": 2, "most_seen": 9}
            rows.append(row)
    return pd.DataFrame(rows, columns=asynchronous.COLUMNS)


def test_a_run_is_summarised_by_its_speed_and_its_arrival(tmp_path):
    rows = rows_of_gpu(tmp_path)
    runs = runs_of(rows, goal_of(rows)).set_index(
        ["kind", "net", "optimiser", "way", "workers", "slow", "run"]
    )
    one = runs.loc[COMPARED, DENSE, PLAIN, SYNCHRONOUS, 4, 8, 1]
    assert one.rate == pytest.approx(36000 / 8)
    assert (one.updates, one.seconds) == (8 * 18, pytest.approx(8 * 0.8))
    one = runs.loc[COMPARED, DENSE, PLAIN, FREE, 4, 8, 1]
    assert one.rate == pytest.approx(36000 * 3 / 4) and one.updates == 2 * 72 and one.stale == 1
    assert goal_of(rows.assign(accuracy=0.89)) == 0.85


def test_what_a_gpu_finds_is_said_with_its_figures(tmp_path, unsaved):
    section = asynchronous.section(rows_of_gpu(tmp_path), setup_of(FULL, 1, tmp_path))
    said = "\n".join(section.findings)
    assert {finding.figure for finding in section.findings} == {figure.name for figure in section.figures}
    assert len({figure.file for figure in section.figures}) == len(section.figures) == 11
    assert (
        "4 workers, none slow: synchronous training takes 36,000 samples a second; server, K = inf 1 times, "
        "hogwild 1 times as many."
    ) in section.findings
    assert "server, K = inf 0.75 (predicted 0.75), hogwild 0.125 (predicted 0.12)" in said
    assert (
        "One of 4 workers slow by 8, accuracy 0.9: synchronous after 6.4 s and 144 updates; synchronous, "
        "rate x workers after 1.6 s and 36 updates;"
    ) in said
    assert "With servers a sample was seen 2 to 9 times in 15 epochs." in said
    assert (
        "784-128-10, plain, accuracy 0.9: one worker needs 144 updates; hogwild with 2 workers 144 "
        "(1.00 times)"
    ) in said
    assert (
        "4 workers: the largest of 0.3 to 6 that reaches the accuracy is 1 (a parabola: 0.22 of the largest)"
        in said
    )
    assert "4 workers 1.00 (expected 1.50 to 2.92)" in said


def test_an_accuracy_that_no_run_reaches_is_said(tmp_path, unsaved):
    rows = rows_of_gpu(tmp_path, SMALL)
    section = asynchronous.section(rows.assign(accuracy=rows.accuracy - 0.08), setup_of(SMALL, 1, tmp_path))
    assert section.findings[0] == "No run reaches a validation accuracy of 0.9: 0.85 is waited for."


@pytest.mark.long
def test_few_rows_are_enough(tmp_path, unsaved):
    rows, setup = rows_of_gpu(tmp_path, SMALL), setup_of(SMALL, 1, tmp_path)
    none = asynchronous.section(rows[:0], setup)
    assert (none.findings, none.figures, none.tables) == ([], [], [])
    for some in (rows.way == HOGWILD, rows.kind == PRICED):
        assert asynchronous.section(rows[some], setup).tables
    assert "Workers share" not in "\n".join(asynchronous.section(rows, setup).findings)
    cpu = setup_of(SMALL, 0, tmp_path, cores=2)
    never = asynchronous.section(rows.assign(accuracy=0.1), cpu)
    assert any("Workers share 2 cores" in finding for finding in never.findings)
    assert any("never in 8 epochs (best 0.100)" in finding for finding in never.findings)


def test_what_shares_a_core_or_a_gpu_is_said():
    small = asynchronous.missing(setup_of(SMALL, 0, cores=2))
    assert any(line.startswith("8 workers: the CPU has 2 core(s)") for line in small)
    assert any("a core for each of 4 workers" in line for line in small)
    assert any("10 ranks" in line and "one GPU" in line for line in asynchronous.missing(setup_of(FULL, 1)))
    assert asynchronous.missing(setup_of(FULL, 0)) == []


@pytest.mark.long
@pytest.mark.parallel([3])
@pytest.mark.parametrize("way", [servers_of("1"), HOGWILD])
def test_a_short_run_has_its_rows(way: str, tmp_path: Path) -> None:
    job = join()
    servers = int(way != HOGWILD)
    what = {"kind": COMPARED, "net": DENSE, "optimiser": PLAIN, "lr": 0.3, "way": way, "slow": 2, "epochs": 2}
    point = {**what, "workers": 3 - servers, "servers": servers, "ranks": 3, "samples": 450, "device": "cpu"}
    first, last = asynchronous.measure(point, job, tmp_path)
    assert last["updates"] == 2 * first["updates"] == 2 * asynchronous.updates_an_epoch(point)
    assert last["seconds"] > first["seconds"] > 0 and 0 <= last["accuracy"] <= 1
    if servers:
        assert counts_of(last["staleness"]).sum() == last["updates"] and last["ahead"] <= 1
    else:
        assert 0 <= last["lost"] < 1 and last["most_seen"] == 2
