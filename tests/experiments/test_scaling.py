"""experiments/scaling.py: which ranks do what, how an epoch is timed, and what is made of the times."""

from __future__ import annotations

import math
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.step import WARM_UP
from experiments import scaling
from experiments.scaling import ALONE, STRONG, WEAK, WINDOWS
from experiments.study import Point, Row, Setup
from nn.app.options import Options
from pyrt.job import join

pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def setup(folder: Path = Path(), size: str = "small", gpus: int = 0, cores: int = 2) -> Setup:
    return Setup(size, gpus, cores, True, folder)


def what(point: Point) -> tuple[str, str, int]:
    return point["kind"], point["exchange"], point["ranks"]


def test_the_small_size_takes_as_many_ranks_as_there_are_cores():
    small = scaling.points(setup())
    assert [what(point) for point in small] == [
        (STRONG, ALONE, 1),  # once: it is the same whatever the others' exchange
        (WEAK, ALONE, 1),
        (STRONG, "root", 2),
        (STRONG, "host", 2),
        (WEAK, "root", 2),
    ]
    assert all((point["device"], point["head"], point["threads"]) == ("cpu", "sigmoid", 1) for point in small)
    assert [point["ranks"] for point in scaling.points(setup(cores=1))] == [1, 1]


def test_the_full_size_takes_cores_and_gpus():
    full = scaling.points(setup(size="full", gpus=3, cores=16))
    cpu = [point for point in full if point["device"] == "cpu"]
    gpus = [point for point in full if point["device"] == "cuda"]
    assert {point["ranks"] for point in cpu} == {1, 2, 4, 8}
    assert {point["ranks"] for point in gpus} == {1, 2, 3}
    assert all(point["exchange"] == ("auto" if point["ranks"] > 1 else ALONE) for point in gpus)
    assert {point["samples"] for point in full if point["kind"] == STRONG} == {60000}
    assert all(point["samples"] % point["batch"] == 0 for point in full)
    jobs = [key for key, _ in groupby(full, key=lambda point: (point["ranks"], point["threads"]))]
    assert len(jobs) == 4 + 3  # each number of ranks starts once
    assert {point["device"] for point in scaling.points(setup(size="full", gpus=1))} == {"cpu"}


def test_the_work_stays_or_grows_with_the_ranks():
    full = scaling.points(setup(size="full", gpus=4, cores=8))
    for device in ("cpu", "cuda"):
        for kind, times in ((STRONG, 1), (WEAK, 4)):
            mine = [point for point in full if (point["device"], point["kind"]) == (device, kind)]
            one, four = (next(point for point in mine if point["ranks"] == ranks) for ranks in (1, 4))
            assert four["samples"] == times * one["samples"] and four["batch"] == times * one["batch"]


def report(seconds: list[float]) -> SimpleNamespace:
    return SimpleNamespace(
        epochs=[SimpleNamespace(seconds=one) for one in seconds],
        environment={"devices": ["a card"], "exchange": "peer"},
        phases=[],
    )


def test_an_epoch_is_timed_over_windows_after_a_warm_up(monkeypatch: pytest.MonkeyPatch):
    asked: list[Options] = []

    def run(options: Options, job: object) -> SimpleNamespace:
        asked.append(options)
        return report([9.0] * WARM_UP + [0.2, 0.4, 0.3, 0.3])

    monkeypatch.setattr("train.train", run)
    point = scaling.Work(STRONG, "cpu", 7, "root", 600, 100).on(2)
    (row,) = scaling.measure(point, join(), Path())
    assert (row["taken"], row["epoch_seconds"]) == ("peer", pytest.approx(0.3))
    assert (row["least_seconds"], row["most_seconds"]) == (pytest.approx(0.2), pytest.approx(0.4))
    assert row["step_us"] == pytest.approx(1e6 * 0.3 / 6)
    assert list(map(float, row["window_seconds"].split())) == pytest.approx([0.2, 0.4, 0.3, 0.3])
    (options,) = asked
    assert (options.hidden, options.head, options.exchange) == ((7,), "sigmoid", "root")
    assert (options.device, options.samples, options.batch) == ("cpu", 600, 100)
    assert (options.val_fraction, options.epochs) == (0.0, WARM_UP + WINDOWS)


def test_short_epochs_are_timed_together(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    def run(options: Options, job: object) -> SimpleNamespace:
        asked.append(options.epochs)
        return report([9.0] * WARM_UP + [0.004] * (options.epochs - WARM_UP))

    monkeypatch.setattr("train.train", run)
    (row,) = scaling.measure(scaling.Work(WEAK, "cuda", 7, "auto", 60, 30).on(1), join(), Path())
    assert asked == [WARM_UP + WINDOWS, WARM_UP + 25 * WINDOWS]
    assert row["epoch_seconds"] == pytest.approx(0.004) and row["step_us"] == pytest.approx(2000)


def test_a_point_is_measured():
    (row,) = scaling.measure(scaling.Work(STRONG, "cpu", 3, "root", 60, 30).on(1), join(), Path())
    assert set(row) == set(scaling.COLUMNS[-6:]) and row["taken"] == ALONE
    assert 0 < row["least_seconds"] <= row["epoch_seconds"] <= row["most_seconds"]
    assert row["epoch_seconds"] == pytest.approx(2e-6 * row["step_us"])


def test_the_serial_share_of_one_number_of_ranks():
    assert scaling.serial_share(2, 1.6) == pytest.approx(0.25)
    assert scaling.serial_share(4, 4) == 0
    assert scaling.serial_share(2, 2.5) == pytest.approx(-0.2)  # faster than ideal


def frame(points: list[Point], seconds: dict[tuple[str, str, str, int, int], float]) -> pd.DataFrame:
    """Rows of these points, by kind, device, exchange, hidden size and ranks."""
    rows: list[Row] = []
    for point in points:
        key = tuple(point[name] for name in ("kind", "device", "exchange", "hidden", "ranks"))
        if key in seconds:
            time = seconds[key]
            steps = point["samples"] // point["batch"]
            times = {"epoch_seconds": time, "least_seconds": 0.99 * time, "most_seconds": 1.01 * time}
            times["window_seconds"] = " ".join(str(part * time) for part in (0.99, 1, 1, 1.01))
            taken = "peer" if point["exchange"] == "auto" else point["exchange"]
            rows.append({**point, **times, "step_us": 1e6 * time / steps, "taken": taken})
    return pd.DataFrame(rows, columns=[*scaling.COLUMNS])


CPU = {
    (STRONG, "cpu", ALONE, 512, 1): 1.0,
    (STRONG, "cpu", "root", 512, 2): 0.6,  # 0.2 + 0.8 / 2
    (STRONG, "cpu", "root", 512, 4): 0.4,  # 0.2 + 0.8 / 4
    (STRONG, "cpu", "host", 512, 2): 0.5,
    (WEAK, "cpu", ALONE, 512, 1): 0.15,
    (WEAK, "cpu", "root", 512, 2): 0.2,
    (WEAK, "cpu", "root", 512, 4): 0.25,
}
GPUS = {
    (STRONG, "cuda", ALONE, 512, 1): 1.2e-3,
    (STRONG, "cuda", "auto", 512, 2): 0.8e-3,
    (STRONG, "cuda", ALONE, 2048, 1): 4e-3,
    (STRONG, "cuda", "auto", 2048, 2): 2e-3,
    (WEAK, "cuda", ALONE, 512, 1): 1.2e-3,
    (WEAK, "cuda", "auto", 512, 2): 1.5e-3,
}


def test_gains_are_in_samples_a_second():
    everything = setup(size="full", gpus=2, cores=4)
    rows = scaling.compared(frame(scaling.points(everything), {**CPU, **GPUS}))
    by = rows.set_index(["kind", "device", "exchange", "hidden", "ranks"])
    strong, weak = by.loc[(STRONG, "cpu", "root", 512, 4)], by.loc[(WEAK, "cpu", "root", 512, 4)]
    assert (strong.gain, strong.efficiency) == (pytest.approx(2.5), pytest.approx(0.625))
    assert (weak.gain, weak.efficiency) == (pytest.approx(2.4), pytest.approx(0.6))
    wide = by.loc[(STRONG, "cuda", "auto", 2048, 2)]
    assert (wide.gain, wide.efficiency) == (pytest.approx(2), pytest.approx(1))


def test_the_section_says_and_draws_what_was_measured(tmp_path: Path):
    everything = setup(tmp_path, size="full", gpus=2, cores=4)
    section = scaling.section(frame(scaling.points(everything), {**CPU, **GPUS}), everything)
    root, host, published, weak, narrow, wide, weak_gpus = section.findings
    assert "CPU, strong scaling, 784-512-10, batch 3000, 60,000 samples an epoch, exchange root" in root
    assert "1.67 and 2.50 times as fast on 2 and 4 ranks" in root and "efficiency 0.83 and 0.62" in root
    assert "serial share of 20.0 % ± 1.2 (95 %), with which" in root and "more than 5 times" in root
    assert root.figure == "speed-up-cpu"
    assert "exchange host: 2.00 times" in host
    assert "a serial share of 0.0 % ± 1.8 (95 %), which may be none" in host
    assert "1.84, 2.95 and 3.97 on 2, 4 and 8 processes: a serial share of 8.7, 11.9 and 14.5 %" in published
    assert "50,000 us on one rank and 83,333 us on 4" in weak
    assert "0.75 and 0.60 on 2 and 4" in weak and "speed-up 1.50 and 2.40" in weak
    assert "a serial share of 53.0 % ± 1.5 (95 %)." in weak
    assert "GPUs, strong scaling, 784-512-10" in narrow and "exchange peer: 1.50 times" in narrow
    assert "784-2048-10, batch 12000" in wide and "2.00 times" in wide
    assert "60 us on one rank and 75 us on 2" in weak_gpus and "speed-up 1.60" in weak_gpus
    names = ["speed-up-cpu.png", "efficiency-cpu.png", "speed-up-cuda.png", "efficiency-cuda.png"]
    assert [figure.file for figure in section.figures] == names
    assert all((tmp_path / name).stat().st_size > 20_000 for name in names)
    captions = [figure.caption for figure in section.figures]
    assert all("60,000 samples an epoch" in caption for caption in captions)
    assert "one BLAS thread a rank" in captions[0] and "mpi4py report" in captions[0]
    assert "9,000 samples an epoch a rank" in captions[1] and "a GPU a rank, exchange peer" in captions[2]
    cpu, gpus = (table.rows for table in section.tables)
    assert len(cpu) == len(CPU) and len(gpus) == len(GPUS)
    line = cpu[(cpu.exchange == "root") & (cpu.ranks == 4) & (cpu.scaling == STRONG)].iloc[0]
    assert (line["ms an epoch"], line["min to max"]) == (pytest.approx(400), "396 to 404")
    assert cpu["min to max"].iloc[0] == "990 to 1,010"
    assert line.serial == pytest.approx(0.2)
    assert cpu[cpu.scaling == WEAK].serial.isna().all()


def test_more_ranks_may_take_longer(tmp_path: Path):
    slower = {**CPU, (STRONG, "cpu", "host", 512, 2): 1.5}
    section = scaling.section(frame(scaling.points(setup()), slower), setup(tmp_path))
    assert "0.67 times as fast" in section.findings[1]
    assert "no serial share: more ranks took longer than one" in section.findings[1]


def test_what_one_rank_has_no_time_for_is_in_the_table_alone(tmp_path: Path):
    few = {key: time for key, time in CPU.items() if key[0] == WEAK or key[2] != ALONE}
    section = scaling.section(frame(scaling.points(setup(cores=4)), few), setup(tmp_path, cores=4))
    assert len(section.findings) == 1 and "weak scaling" in section.findings[0]
    assert [figure.file for figure in section.figures] == ["efficiency-cpu.png"]
    (table,) = section.tables
    assert len(table.rows) == len(few)
    assert math.isnan(table.rows[table.rows.scaling == STRONG]["speed-up"].iloc[0])


def test_one_core_or_nothing_draws_nothing(tmp_path: Path):
    alone = {key: time for key, time in CPU.items() if key[2] == ALONE}
    section = scaling.section(frame(scaling.points(setup(cores=1)), alone), setup(tmp_path, cores=1))
    assert not section.findings and not section.figures and len(section.tables[0].rows) == 2
    nothing = scaling.section(frame([], {}), setup(tmp_path))
    assert not nothing.findings and not nothing.figures and not nothing.tables


def test_what_is_missing_is_named():
    assert scaling.missing(setup()) == [
        "60,000 samples an epoch on the CPU: the small size takes 12,000",
        "4 and 8 ranks on the CPU: it has 2 core(s), and each rank takes one",
        "scaling over GPUs: there is none to use",
    ]
    assert scaling.missing(setup(size="full", gpus=1, cores=6)) == [
        "8 ranks on the CPU: it has 6 core(s), and each rank takes one",
        "scaling over GPUs: there is one to use",
    ]
    assert not scaling.missing(setup(size="full", gpus=2, cores=8))
