"""The profile: which phases make which part of a step, counted once, and what is said of the rungs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

import pandas as pd

from experiments import jobs, profile, profile_figures
from experiments import profile_groups as groups
from experiments.study import FAILED, Point, Row, Setup
from nn.app.command_line import parse
from pyrt.cache import VARIABLE


def setup_of(folder: Path = Path(), size: str = "small", gpus: int = 0) -> Setup:
    return Setup(size, gpus, cores=4, emulates=True, folder=folder)


Phases = dict[str, tuple[float, float | None]]
"""Host and device microseconds a step."""


QUIET, NOISY = (1, 0.98, 1.02, 1, 1.01, 0.99), (1, 0.5, 3, 1, 1.4, 0.6)
"""Factors by which the times of epochs differ from their median."""


def report_of(
    phases: Phases,
    steps: int = 40,
    exchange: str = "blocking",
    wall: float = 100.0,
    scatter: Sequence[float] = QUIET,
) -> dict[str, Any]:
    """As train.py writes it, of so many steps in 8 epochs, of which the first two are slow."""
    rows = {"batch iteration": (0.0, None), **phases}
    seconds = [9.0, 7.0, *(wall * 1e-6 * steps / 8 * factor for factor in scatter)]
    return {
        "environment": {
            "exchange": exchange,
            "placement": "stream" if rows["batch iteration"][1] is None else "resident",
        },
        "epochs": [{"seconds": second} for second in seconds],
        "phases": [
            {
                "name": name,
                "calls": steps,
                "host": host * steps / 1e6,
                "device": device * steps / 1e6 if device is not None else None,
            }
            for name, (host, device) in rows.items()
        ],
    }


def frame_of(rungs: dict[str, list[Row]], part: str, ranks: int = 4) -> pd.DataFrame:
    rows = [
        {"part": part, "words": f"--gemm {rung} {groups.NETWORK}", "ranks": ranks, "rung": rung, **row}
        for rung, found in rungs.items()
        for row in found
    ]
    return pd.DataFrame(rows, columns=[*profile.COLUMNS, FAILED])


def frame_of_steps(**reports: dict[str, Any]) -> pd.DataFrame:
    return frame_of({rung: profile.step_rows(report) for rung, report in reports.items()}, groups.ITERATION)


def on_device(
    exchange: str, after: Phases, iteration: float, wall: float, speed: float = 1.0
) -> dict[str, Any]:
    """A step on a GPU: 300 us of kernels and 20 us between them, ``speed`` times as fast."""
    phases: Phases = {
        "copying images host -> device": (1.0, 1.0),
        "row order host -> device": (5.0, 50.0),
        "batch iteration": (10.0, iteration),
        "forward": (5.0, 210 / speed),
        "scale pixels": (9.0, 20 / speed),
        "forward GEMM 1": (9.0, 120 / speed),
        "forward GEMM 2 to bias gradient 1": (9.0, 60 / speed),
        "backward": (5.0, 110 / speed),
        "backward GEMM 3": (9.0, 100 / speed),
    }
    return report_of({**phases, **after}, exchange=exchange, wall=wall)


@pytest.mark.parametrize("size", ["small", "full"])
@pytest.mark.parametrize("gpus, rungs", [(0, 3), (1, 4), (2, 6), (4, 6)])
def test_points_are_runs_that_train_takes(size: str, gpus: int, rungs: int) -> None:
    points = profile.points(setup_of(size=size, gpus=gpus))
    assert [point["part"] for point in points] == [groups.ITERATION] * rungs + [groups.START] * 2
    assert len({(point["part"], point["rung"]) for point in points}) == len(points)
    for point in points:
        options = parse(point["words"].split())
        assert (options.hidden, options.batch, options.val_fraction) == ((512,), 3000, 0)
        assert options.device == ("cuda" if gpus else "cpu")
        assert (options.exchange == "auto") == (point["ranks"] == 1)
        assert point["part"] == groups.START or options.epochs > 2  # these are left out


def test_the_ladder_on_several_gpus_changes_one_thing_at_a_time() -> None:
    points = profile.points(setup_of(gpus=3))[:6]
    options = [parse(point["words"].split()) for point in points]
    assert {point["ranks"] for point in points} == {3}
    assert [(one.gemm, one.graph, one.exchange) for one in options] == [
        ("naive", False, "blocking"),
        ("tiled", False, "blocking"),
        ("tiled", False, "host"),
        ("auto", False, "host"),
        ("auto", True, "host"),
        ("auto", True, "peer"),
    ]


def test_one_gpu_has_the_rungs_without_an_exchange() -> None:
    names = [rung.name for rung in profile.ladder(setup_of(gpus=1))]
    assert names == ["naive products", "tiled products", "fused on tensor cores", "graphs"]


def test_what_is_missing_is_named() -> None:
    (no_gpu,) = profile.missing(setup_of())
    assert "no GPU" in no_gpu and all(rung.name in no_gpu for rung in profile.LADDER)
    (one_gpu,) = profile.missing(setup_of(gpus=1))
    assert "sums that overlap, peer exchange:" in one_gpu and "naive" not in one_gpu
    assert profile.missing(setup_of(gpus=2)) == []


def test_every_phase_of_a_run_is_of_a_step_or_of_a_start_or_of_the_end(tmp_path: Path) -> None:
    words = "--device cpu --hidden 8 --batch 60 --samples 120 --epochs 4 --val-fraction 0"
    report = jobs.train(1, words.split(), setup_of(tmp_path))
    names = {phase["name"] for phase in report["phases"]}
    end = {"evaluation", "evaluation images host -> device", "close device"}
    starts = {row["phase"] for row in profile.start_rows(report)}
    steps = {row["phase"] for row in profile.step_rows(report)} - {groups.WALL}
    assert starts | steps == names - end and not starts & steps
    assert "copying images host -> device" in steps
    run = frame_of({"run": profile.step_rows(report)}, groups.ITERATION)
    parts = profile_figures.parts(run)
    assert parts[groups.FORWARD] > 0 and parts[groups.BACKWARD] > 0 and parts[groups.UPDATE] > 0


@pytest.mark.parametrize(
    "phase, group",
    [
        ("forward GEMM 2 to bias gradient 1", groups.MERGED),
        ("scale pixels to backward GEMM 3", groups.MERGED),
        ("forward GEMM 12", groups.FORWARD),
        ("backward GEMM 3", groups.BACKWARD),
        ("bias gradient 1", groups.OTHER),
        ("sums of the blocks", groups.OTHER),
        ("gradients host -> device", groups.COPIES),
        ("MPI_Iallreduce", groups.SUMS),
        ("sum of gradients", groups.SUMS),
        ("sum of losses", groups.OTHER),
        ("step", groups.UPDATE),
        ("backward", groups.REST),
        ("evaluation images host -> device", None),
        ("train setup", None),
    ],
)
def test_group_of_a_phase(phase: str, group: str | None) -> None:
    assert profile.group_of(phase) == group


def test_wall_time_of_a_step_is_the_median_epochs_without_the_first_two() -> None:
    wall = profile.step_rows(report_of({}, steps=40, wall=250.0, scatter=NOISY))[-1]
    assert wall["phase"] == groups.WALL
    assert wall["host_us"] == pytest.approx(250)
    # In order the factors are 0.5, 0.6, 1, 1, 1.4 and 3; their deciles lie at places 0.5 and 4.5.
    assert (wall["low_us"], wall["high_us"]) == pytest.approx((0.55 * 250, 2.2 * 250))


def test_parts_of_a_step_on_the_cpu_are_host_times_and_add_up_to_its_wall_time() -> None:
    report = report_of(
        {
            "copying images host -> device": (7, None),
            "forward": (1, None),
            "forward GEMM 1": (30, None),
            "forward GEMM 2": (3, None),
            "bias and activation 1": (5, None),
            "backward": (2, None),
            "backward GEMM 1": (4, None),
            "gradients device -> host": (6, None),
            "gradients host -> device": (2, None),
            "MPI_Allreduce": (11, None),
            "step": (9, None),
            "evaluation": (1000, None),
        },
        wall=100,
    )
    parts = profile_figures.parts(frame_of_steps(run=report))
    assert parts == pytest.approx(
        {
            groups.ROWS: 7,
            groups.FORWARD: 33,
            groups.OTHER: 5,
            groups.BACKWARD: 4,
            groups.COPIES: 8,
            groups.SUMS: 11,
            groups.UPDATE: 9,
            groups.REST: 100 - 77,
        }
    )


def test_images_that_are_copied_once_are_of_the_start() -> None:
    report = on_device("peer", {"sum, update and spread": (0, 30)}, iteration=310, wall=300)
    assert groups.IMAGES not in {row["phase"] for row in profile.step_rows(report)}
    assert groups.IMAGES in {row["phase"] for row in profile.start_rows(report)}


KERNELS = {groups.FORWARD: 120, groups.MERGED: 60, groups.OTHER: 20, groups.BACKWARD: 100}


def test_parts_on_a_device_with_blocking_sums() -> None:
    after: Phases = {
        "gradients device -> host": (300, 40),
        "MPI_Allreduce": (500, None),
        "gradients host -> device": (60, 50),
        "step": (9, 10),
    }
    parts = profile_figures.parts(frame_of_steps(run=on_device("blocking", after, iteration=930, wall=950)))
    rest = 20 + 20  # between the kernels; outside of the iteration
    expected = {**KERNELS, groups.COPIES: 90, groups.UPDATE: 10, groups.SUMS: 510, groups.REST: rest}
    assert parts == pytest.approx(expected)
    assert sum(parts.values()) == pytest.approx(950)


def test_parts_on_a_device_with_sums_that_overlap_have_what_it_waits_for_alone() -> None:
    """The host waits for the backward pass under the name of MPI, and copies pass beside it."""
    after: Phases = {
        "gradients device -> host": (9, 40),
        "MPI_Iallreduce": (700, None),
        "gradients host -> device": (9, 50),
        "step": (9, 10),
    }
    parts = profile_figures.parts(frame_of_steps(run=on_device("host", after, iteration=800, wall=800)))
    expected = {**KERNELS, groups.UPDATE: 10, groups.SUMS: 800 - 320 - 10, groups.REST: 20}
    assert parts == pytest.approx(expected)


def test_parts_of_peers_may_be_more_than_the_wall_time() -> None:
    after: Phases = {"graph replay": (2, None), "sum, update and spread": (0, 30)}
    parts = profile_figures.parts(frame_of_steps(run=on_device("peer", after, iteration=310, wall=300)))
    assert parts == pytest.approx({**KERNELS, groups.SUMS: 30, groups.REST: 20})


def test_parts_of_one_rank_on_a_device_have_no_sums() -> None:
    run = frame_of_steps(run=on_device("local", {"step": (9, 10)}, iteration=335, wall=340))
    assert profile_figures.parts(run) == pytest.approx(
        {**KERNELS, groups.UPDATE: 10, groups.SUMS: 0, groups.REST: 20 + 10}
    )


def starts_of(**compiling: float) -> pd.DataFrame:
    rungs = {}
    for name, seconds in compiling.items():
        report = report_of({"other": (1e4, None), "evaluation": (1e9, None)}, steps=1)
        report["phases"] += [
            {"name": "import packages", "calls": 1, "host": 0.5, "device": None},
            {"name": "compile kernels", "calls": 1, "host": seconds, "device": None},
        ]
        rungs[name] = profile.start_rows(report)
    return frame_of(rungs, groups.START)


def gpu_rows() -> pd.DataFrame:
    down_and_up: Phases = {"gradients device -> host": (9, 40), "gradients host -> device": (9, 50)}
    step: Phases = {"step": (9, 10)}
    steps = frame_of_steps(
        **{
            "tiled products": on_device(
                "blocking", {**down_and_up, "MPI_Allreduce": (500, None), **step}, 930, 950, 1.0
            ),
            "sums that overlap": on_device("host", {**down_and_up, **step}, 800, 930, 1.0),
            "graphs": on_device("host", {**down_and_up, **step}, 630, 640, 4.0),
            "peer exchange": on_device("peer", {"sum, update and spread": (0, 15)}, 95, 80, 4.0),
        }
    )
    return pd.concat([steps, starts_of(**{groups.EMPTY: 6.5, groups.CACHED: 0.125})])


def drawn(folder: Path, file: str) -> bool:
    return (folder / file).stat().st_size > 10_000


def test_section_says_what_each_rung_bought(tmp_path: Path) -> None:
    section = profile.section(gpu_rows(), setup_of(tmp_path, "full", 4))
    alike, graphs, peer, together, left, first, later, compiled = section.findings
    assert alike == "Sums that overlap: a step takes 930 us, about as long as with tiled products."
    assert graphs.startswith("Graphs: a step takes 640 us, 1.5 times as fast as with sums that overlap;")
    assert peer.startswith("Peer exchange: a step takes 80 us, 8.0 times as fast as with graphs;")
    assert peer.endswith("most is gained in sums over ranks and their copies (540 us before, 15 us now).")
    assert "from 950 us with tiled products to 80 us with peer exchange, 11.9 times as fast" in together
    assert left == (
        "What is left, with peer exchange, is mostly: 32% forward products, 26% backward products, "
        "16% output layer in one kernel."
    )
    assert "an empty kernel cache takes 7.01 s" in first and "kernels 6.50 s, imports 0.50 s" in first
    assert "takes 0.64 s" in later
    assert compiled == "The first start compiles the kernels, 6.5 s; later ones find them in 0.12 s."
    assert all(drawn(tmp_path, figure.file) for figure in section.figures) and len(section.figures) == 2
    table = section.tables[0].rows
    assert list(table["step, us"]) == pytest.approx([950, 930, 640, 80])
    assert list(table["as the first"]) == pytest.approx([1, 950 / 930, 950 / 640, 950 / 80])


def test_a_slower_rung_is_called_so(tmp_path: Path) -> None:
    rows = frame_of_steps(
        one=report_of({"forward GEMM 1": (80, None)}, wall=100),
        two=report_of({"forward GEMM 1": (90, None), "MPI_Iallreduce": (100, None)}, wall=200),
    )
    section = profile.section(rows, setup_of(tmp_path))
    assert section.findings[0] == (
        "Two: a step takes 200 us, 2.0 times as slow as with one; most is lost in sums over ranks "
        "and their copies (0 us before, 100 us now)."
    )


def test_a_machine_too_noisy_for_a_claim_is_called_so(tmp_path: Path) -> None:
    phases: Phases = {"forward GEMM 1": (80, None)}
    rows = frame_of_steps(
        one=report_of(phases, wall=100, scatter=NOISY), two=report_of(phases, wall=200, scatter=NOISY)
    )
    bought, *_, noise = profile.section(rows, setup_of(tmp_path)).findings
    assert "2.0 times as slow as with one; epochs of both scatter so much that this may be chance" in bought
    assert noise.startswith("This machine was noisy")


def test_the_same_products_in_another_time_are_told(tmp_path: Path) -> None:
    """They are of the same kernels in rungs that differ in their exchange alone."""
    rows = frame_of_steps(
        one=report_of({"forward GEMM 1": (60, None)}, wall=100),
        two=report_of({"forward GEMM 1": (90, None)}, wall=130),
    )
    rows["words"] = [
        "--device cpu" if rung == "one" else "--device cpu --exchange host" for rung in rows.rung
    ]
    told = profile.section(rows, setup_of(tmp_path)).findings[-1]
    assert told.startswith("This machine was not steady: products, the same in both, take 1.50 times as long")
    rows.loc[rows.rung == "two", "words"] += " --gemm tiled"
    assert "not steady" not in " ".join(profile.section(rows, setup_of(tmp_path)).findings)


@pytest.mark.parametrize("keep", [[], ["peer exchange"], [groups.CACHED], ["graphs", groups.EMPTY]])
def test_section_of_few_rows(tmp_path: Path, keep: list[str]) -> None:
    rows = gpu_rows()
    section = profile.section(rows[rows.rung.isin(keep)], setup_of(tmp_path, "full", 4))
    assert len(section.figures) == len(keep)
    assert all(drawn(tmp_path, figure.file) for figure in section.figures)


def test_a_start_with_an_empty_cache_has_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    caches = {}

    def train(
        ranks: int, words: Sequence[str], setup: Setup, variables: dict[str, str] | None = None
    ) -> dict[str, Any]:
        cache = (variables or {}).get(VARIABLE)
        caches[len(caches)] = cache
        assert cache is None or not os.listdir(cache)
        return {FAILED: "no"}

    monkeypatch.setattr(jobs, "train", train)
    points: list[Point] = profile.points(setup_of(gpus=2))
    taken = list(profile.take(points, setup_of(tmp_path, gpus=2)))
    assert [point for point, _ in taken] == points
    assert all(rows == [{FAILED: "no"}] for _, rows in taken)
    own = [number for number, cache in caches.items() if cache is not None]
    assert [points[number]["rung"] for number in own] == [groups.EMPTY]
    assert not Path(caches[own[0]]).exists()


def test_variables_reach_train(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("w") as log:
        words = ["-c", f"import os; print(os.environ[{VARIABLE!r}])"]
        with jobs._started(1, words, {VARIABLE: "there"}, log) as job:
            said, _ = job.communicate(timeout=60)
    assert said.strip() == "there"
