"""experiments/correctness.py and correctness_figures.py: its points, what is compared and with what, and what
the section says."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments import correctness
from experiments.correctness_figures import growth
from experiments.study import Section, Setup
from nn.app.options import Options
from nn.input import load as load_data
from nn.input.schedule import Schedule
from nn.input.validation_split import split
from nn.model import reference
from nn.model.initial import initial_values
from nn.model.network import Network
from pyrt.job import join
from tests import few
from train import train

pytest.importorskip("matplotlib")
pd = pytest.importorskip("pandas")


def setup(size="small", gpus=0, emulates=True, folder=Path("nowhere"), cores=2):
    return Setup(size, gpus, cores, emulates, folder)


# points


def test_points_have_columns_and_those_of_one_rank_come_first():
    for there_is in (setup(), setup("full", gpus=4), setup("full", gpus=1)):
        points = correctness.points(there_is)
        assert {name for point in points for name in point} <= set(correctness.COLUMNS)
        ranks = [point["ranks"] for point in points]
        assert ranks == sorted(ranks) and set(ranks) == set(there_is.ranks)
        assert len({json.dumps(point) for point in points}) == len(points)


def test_every_point_is_there_in_both_dtypes():
    points = correctness.points(setup("full", gpus=2))
    single, double = (
        [{**point, "dtype": ""} for point in points if point["dtype"] == dtype]
        for dtype in correctness.DTYPES
    )
    assert single == double and len(single) + len(double) == len(points)


def test_only_for_want_of_a_gpu_kernels_are_emulated_on_a_tiny_network():
    emulated = [point for point in correctness.points(setup()) if point["device"] == "emulated"]
    assert [point["ranks"] for point in emulated] == [1, 1, 2, 2]
    assert all(point["hidden"] <= 16 and point["samples"] <= 64 for point in emulated)
    for there_is in (setup(emulates=False), setup(gpus=1), setup("full", gpus=2)):
        assert not [point for point in correctness.points(there_is) if point["device"] == "emulated"]


@pytest.mark.parametrize(("size", "samples"), [("small", 3600), ("full", 54000)])
def test_the_graded_runs_are_the_courses(size, samples):
    graded = [point for point in correctness.points(setup(size, gpus=1)) if point["varied"] == "graded"]
    runs = [(point["lr"], point["epochs"]) for point in graded if point["dtype"] == "float32"]
    assert runs == [(5e-4, 40), (1e-3, 10), (2e-3, 1)]
    for point in graded:
        assert (point["hidden"], point["batch"], point["pixel_scale"]) == (100, 800, 1)
        assert (point["samples"], point["start"]) == (samples, "small")
    assert Options().reg == 1e-4


def test_an_epoch_is_all_embedded_digits_that_are_not_held_out():
    rows = split(len(load_data("embedded").images), Options().val_fraction)
    assert rows == correctness.EMBEDDED


def test_a_run_is_the_beginning_of_a_longer_one():
    """Lets the study take a long training, seen after some epochs, for runs of several lengths."""
    short, long = (Schedule(50, 120, 30, epochs, shuffle=True, seed=3) for epochs in (2, 5))
    for step in range(short.steps):
        assert short.rows(step).tolist() == long.rows(step).tolist()


# what is measured


POINT = {**correctness.TINY, "varied": "rate", "device": "cpu", "ranks": 1, "epochs": 4}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / correctness.WEIGHTS).mkdir()
    return tmp_path


@pytest.mark.parametrize("dtype", few(correctness.DTYPES[:1], of=correctness.DTYPES))
def test_what_is_measured_is_what_check_finds(folder, dtype):
    point = {**POINT, "dtype": dtype}
    rows = correctness.measure(point, join(), folder)
    assert [(row["epoch"], row["steps"]) for row in rows] == [(1, 2), (2, 4), (4, 8)]
    options = correctness._options(point, folder / correctness.WEIGHTS)
    for row in rows:
        report = train(dataclasses.replace(options, epochs=row["epoch"], check=True))
        assert row["max_norm"] == max(difference.max_norm for difference in report.check.differences)
        assert row["tolerance"] == report.check.tolerance
        assert row["precision"] == report.test.precision
        assert row["reference_precision"] == report.check.reference_precision
        assert 0 <= row["l2"] < row["tolerance"]


def test_dtypes_begin_with_the_same_numbers(folder):
    """Else float64 would be as far from the reference as a start rounded to float32."""
    rows = [correctness.measure({**POINT, "dtype": dtype}, join(), folder)[0] for dtype in correctness.DTYPES]
    assert rows[0]["max_norm"] > 1e-8 and rows[1]["max_norm"] < 1e-13


def test_a_reference_is_trained_once(folder, monkeypatch):
    correctness.measure({**POINT, "dtype": "float32"}, join(), folder)
    monkeypatch.setattr(reference, "train", None)
    correctness.measure({**POINT, "dtype": "float64"}, join(), folder)
    correctness.measure({**POINT, "dtype": "float64", "varied": "ranks"}, join(), folder)
    for other in ({"lr": 0.5}, {"batch": 16}, {"pixel_scale": 1.0}, {"start": "small"}, {"samples": 32}):
        with pytest.raises(TypeError):
            correctness.measure({**POINT, "dtype": "float64", **other}, join(), folder)


def test_a_small_start_is_that_of_the_course():
    network = Network.dense((784, 100, 10), "sigmoid", "softmax")
    start = correctness._start(network, "small", 0)
    assert start.keys() == network.shapes.keys()
    assert {array.dtype for array in start.values()} == {np.dtype(np.float32)}
    assert start["W1"].std() == pytest.approx(0.01, rel=0.02) and abs(start["W1"].mean()) < 1e-4
    assert not start["b1"].any() and not start["b2"].any()
    usual = correctness._start(network, "usual", 0)
    for name, array in initial_values(network, "float32", 0).items():
        assert usual[name].tobytes() == array.tobytes()


def test_differences_are_of_the_worst_parameter_and_of_all_together():
    truth = {"W1": np.array([[3.0, 4.0]]), "b1": np.array([0.0, 2.0])}
    weights = {"W1": np.array([[3.0, 4.5]]), "b1": np.array([0.0, 1.5])}
    found = correctness.differences(weights, truth)
    assert found["max_norm"] == 0.5 / 2
    assert found["l2"] == pytest.approx(math.sqrt(0.5 / 29))


def test_weights_of_a_study_before_are_not_taken_and_none_are_left(tmp_path, monkeypatch):
    weights = tmp_path / correctness.WEIGHTS
    weights.mkdir()
    (weights / "old.npz").touch()

    def measured(study, points, there_is):
        assert study == "experiments.correctness" and list(weights.iterdir()) == []
        (weights / "new.npz").touch()
        yield from [({}, []), ({}, [])]

    monkeypatch.setattr(correctness.jobs, "measured", measured)
    assert list(correctness.take([{}, {}], setup(folder=tmp_path))) == [({}, []), ({}, [])]
    assert not weights.exists()
    stopped = correctness.take([{}, {}], setup(folder=tmp_path))
    next(stopped)
    stopped.close()
    assert not weights.exists()


# growth


def test_growth_is_between_the_first_and_the_last_difference():
    assert growth([9, 18, 90], [1e-12, 5e-8, 4e-9]) == (9, 90, pytest.approx(4000))
    assert growth([9, 18], [2e-9, 1e-9]) == (9, 18, pytest.approx(0.5))


def test_growth_ends_where_weights_have_nothing_in_common_and_begins_where_they_differ():
    found = growth([0, 50, 100, 1000, 2000], [0.0, 1e-5, 1e-4, 0.5, 0.6])
    assert found == (50, 100, pytest.approx(10))


def test_one_difference_does_not_grow():
    assert growth([0, 100, 200], [0.0, 1e-5, 0.3]) is None
    assert growth([], []) is None


# the section


def rows_of(there_is):
    """Rows as of GPUs: differences start at 1e-7 and 1e-15, and at rate 8 grow tenfold in 28 steps up to 0.5;
    precision differs where weights do, by 0.004 at an end and by 0.02 before."""
    rows = []
    for point in correctness.points(there_is):
        first, tolerance = {"float32": (1e-7, 1e-4), "float64": (1e-15, 1e-11)}[point["dtype"]]
        batches = -(-point["samples"] // point["batch"])
        for epoch in correctness._compared(point):
            steps = epoch * batches
            grown = 10 ** (steps / 28) if point["lr"] == 8 else 1 + steps / 1000
            norm = min(0.5, first * grown * point["ranks"])
            far = 0.0 if norm < 0.1 else 0.004 if epoch == point["epochs"] else 0.02
            measured = {"epoch": epoch, "steps": steps, "max_norm": norm, "l2": norm / 3}
            scores = {"precision": 0.9 - far, "reference_precision": 0.9, "tolerance": tolerance}
            rows.append({**point, **measured, **scores})
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    there_is = setup("full", gpus=3, folder=tmp_path_factory.mktemp("study"))
    return correctness.section(rows_of(there_is), there_is), there_is.folder


def finding(section: Section, words: str) -> str:
    found = [text for text in section.findings if words in text]
    assert len(found) == 1, section.findings
    return found[0]


def test_the_section_says_how_far_weights_are(drawn):
    section, _ = drawn
    text = finding(section, "At learning rate 1, after 360 steps, the GPU's float32 weights")
    assert "by 1.4e-07" in text and "by 1.4e-15, 1e+08 times less" in text
    text = finding(section, "The difference in float64 grows")
    assert "1.3 times from step 9 to 360 at learning rate 1" in text  # 1.36 / 1.009
    assert "3.4e+12 times from step 9 to 360 at learning rate 8" in text  # 10^(351/28)
    text = finding(section, "At learning rate 8 float32 weights differ by 0.1 or more")
    assert "after 180 steps, by 0.5 at most" in text
    assert "16 to 512 hidden units the difference is 1.4e-07 to 1.4e-07" in finding(section, "hidden units")
    assert "On 1 to 3 ranks" in finding(section, "another order")
    assert "1.4e-07 to 4.1e-07 in float32, 1.4e-15 to 4.1e-15 in float64" in finding(section, "another order")


def test_the_section_says_which_runs_check_would_pass(drawn):
    """Count 8 rates, 3 sizes, 3 graded runs, 2 rates on 2 and on 3 ranks for each dtype; none of rate 8."""
    text = finding(drawn[0], "Within the tolerance")
    assert "15 of 18 in float32 (0.0001) and 15 of 18 in float64 (1e-11)" in text
    assert text.endswith("; the others have learning rate 8.")


def test_the_section_says_whether_precision_agrees_where_weights_do_not(drawn):
    section, _ = drawn
    assert "by 0.000 at most" in finding(section, "within the tolerance test precision differs")
    text = finding(section, "0.1 or more it differs by")
    assert "by 0.020 at most (0.004 where training ended), in 4 comparisons" in text


def test_the_section_has_precision_over_the_learning_rate(drawn):
    """Compare both; at the end of training float32 weights of the largest rate cost 0.004."""
    text = finding(drawn[0], "Over 8 learning rates from 0.001 to 8 the GPU's test precision differs")
    assert "by 0.004 at most, at 8; the reference is best at" in text and "with 0.900 after 40 epochs" in text


def test_the_section_has_the_graded_runs_in_a_table(drawn):
    section, _ = drawn
    (table,) = section.tables
    assert table.rows["steps"].tolist() == [2720, 2720, 680, 680, 68, 68]
    assert "up to 3.7e-07 in float32 and 3.7e-15 in float64" in finding(section, "graded runs end with")


def test_all_figures_are_drawn(drawn):
    section, folder = drawn
    assert [figure.file for figure in section.figures] == [
        f"{name}.png" for name in ("growth", "precision-over-rates", "precision", "ends", "graded")
    ]
    assert all((folder / figure.file).stat().st_size > 20_000 for figure in section.figures)


def test_a_section_of_some_rows_alone_can_be_drawn(tmp_path, unsaved):
    there_is = setup(folder=tmp_path)
    rows = rows_of(there_is)
    assert correctness.section(pd.DataFrame(columns=correctness.COLUMNS), there_is) == Section()
    assert correctness.section(rows[rows.varied == "ranks"].iloc[:1], there_is).findings
    section = correctness.section(rows[rows.varied == "emulated"], there_is)
    text = finding(section, "emulated")
    assert "784-16-10, on up to 2 ranks, the difference after 6 steps" in text
    assert "is 2.0e-07 in float32 and 2.0e-15 in float64" in text


# what is missing


def test_what_is_missing_is_said():
    assert [reason.split(":")[0] for reason in correctness.missing(setup(emulates=False))] == [
        "weights trained on a GPU",
        "emulated kernels",
        "the course's graded runs with 54,000 samples an epoch",
    ]
    assert not [reason for reason in correctness.missing(setup()) if "compiler" in reason]
    assert correctness.missing(setup("full", gpus=1)) == ["sums over several GPUs: there is one"]
    assert correctness.missing(setup("full", gpus=2)) == []


def test_a_wide_figure_is_wide_on_the_page(drawn):
    pytest.importorskip("jinja2")
    from experiments import page

    section, folder = drawn
    part = page.Part("correctness", correctness.TITLE, correctness.QUESTION, section, [], {}, folder)
    page.write(folder / "index.html", [part])
    text = (folder / "index.html").read_text()
    assert text.count(' class="wide">') == sum(figure.wide for figure in section.figures) == 1
