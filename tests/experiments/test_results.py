"""experiments/results.py: rows on disk, points found again, results of another machine or code gone."""

import math

import pytest

pytest.importorskip("pandas")

from experiments.results import Results
from experiments.study import FAILED

COLUMNS = ("lr", "hidden", "ranks", "loss")
HERE = {"machine": {"CPU": "one"}, "setup": {"size": "small"}}


@pytest.fixture
def results(tmp_path):
    found = Results(tmp_path / "study", COLUMNS)
    found.begin(HERE)
    return found


def again(tmp_path):
    return Results(tmp_path / "study", COLUMNS)


def test_a_point_is_there_once_its_rows_are_and_for_the_next_run_too(results, tmp_path):
    point = {"lr": 1e-3, "hidden": "512,256", "ranks": 2}
    assert not results.has(point)
    results.add(point, [{"loss": 0.5}, {"loss": 0.25}])
    for each in (results, again(tmp_path)):
        assert each.has(point)
        assert not each.has({**point, "ranks": 1})
        assert list(each.frame().loss) == [0.5, 0.25]
        assert list(each.frame().hidden) == ["512,256"] * 2


def test_a_point_that_failed_is_taken_again_and_its_rows_are_replaced(results):
    point = {"lr": 1.0, "hidden": 1, "ranks": 1}
    results.add(point, [{FAILED: "no room"}])
    assert not results.has(point)
    assert list(results.frame()[FAILED]) == ["no room"]
    results.add(point, [{"loss": 2.0}])
    assert results.has(point)
    assert list(results.frame().loss) == [2.0]


def test_results_of_another_machine_go_and_those_of_this_one_stay(results, tmp_path):
    results.add({"lr": 1.0, "hidden": 1, "ranks": 1}, [{"loss": 2.0}])
    same, other = again(tmp_path), again(tmp_path)
    same.begin(HERE)
    assert len(same.frame()) == 1
    other.begin({**HERE, "machine": {"CPU": "two"}})
    assert len(other.frame()) == 0
    assert len(again(tmp_path).frame()) == 0
    assert again(tmp_path).about["machine"] == {"CPU": "two"}


def test_a_column_that_the_study_has_not_is_a_bug(results):
    with pytest.raises(KeyError, match="speed"):
        results.add({"lr": 1.0}, [{"speed": 1}])


def test_numbers_come_back_as_numbers(results):
    results.add({"lr": 1.0, "hidden": "none", "ranks": 1}, [{"loss": math.inf}, {"loss": None}])
    frame = results.frame()
    assert frame.loss[0] == math.inf and math.isnan(frame.loss[1])
    assert frame.hidden[0] == "none"
    assert list(frame.columns) == [*COLUMNS, FAILED]
