"""python3 -m experiments: which studies run, going on after a stop, the page of what is there."""

import json
import re

import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from experiments import STUDIES, __main__, progress
from experiments.__main__ import main
from experiments.study import FAILED, Finding, Section
from pyrt.errors import UserError


class Counting:
    """A study that notes which points it was asked for, and stops at one if told so."""

    TITLE, QUESTION, COLUMNS = "Counting", "How many?", ("n", "square")

    def __init__(self):
        self.asked, self.stop_at = [], None

    def points(self, setup):
        return [{"n": n} for n in range(3)]

    def take(self, points, setup):
        for point in points:
            if point["n"] == self.stop_at:
                raise KeyboardInterrupt
            self.asked.append(point["n"])
            yield point, [{FAILED: "odd"} if point["n"] == 1 else {"square": point["n"] ** 2}]

    def missing(self, setup):
        return [f"no GPU, size {setup.size}"]

    def section(self, rows, setup):
        return Section([Finding(f"{len(rows)} rows, {rows.square.sum():.0f} in all.")])


@pytest.fixture
def study(monkeypatch):
    study = Counting()
    monkeypatch.setattr(__main__, "study_of", lambda name: study)
    monkeypatch.setattr(__main__, "STUDIES", ("one", "two"))
    return study


def test_a_study_goes_on_where_it_was_stopped(study, tmp_path, capsys):
    study.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        main(["--out", str(tmp_path), "--size", "small", "one"])
    assert "goes on from here" in capsys.readouterr().err
    study.stop_at = None
    assert main(["--out", str(tmp_path), "--size", "small", "one"]) == 0
    assert study.asked == [0, 1, 1, 2]  # what failed again, too
    text = (tmp_path / "index.html").read_text()
    assert "2 rows, 4 in all (table)." in text
    assert "Missing: 1 of its points: odd" in text
    assert "Missing: no GPU, size small" in text
    assert text.count("it was not run") == 1  # the other one


@pytest.mark.parametrize(("period", "told"), [(0, ["1 of 2", "2 of 2"]), (3600, [])])
def test_lines_say_how_far_a_study_is_where_there_is_no_terminal(
    study, tmp_path, capsys, monkeypatch, period, told
):
    """As they go: before the first point, then at most one a period."""
    monkeypatch.setattr(progress, "PERIOD", period)
    study.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        main(["--out", str(tmp_path), "--size", "small", "one"])
    assert capsys.readouterr().out.startswith("one          3 points to measure\n")
    study.stop_at = None
    main(["--out", str(tmp_path), "--size", "small", "one"])
    start, *lines, end, one, two, page = capsys.readouterr().out.splitlines()
    assert start == "one          2 points to measure"
    assert [line.split(" points after ")[0].removeprefix("one").strip() for line in lines] == told
    assert re.fullmatch(r"one          2 points in \d+ s, 1 were there", end)
    assert [one, two, page.split(" is ")[0]] == ["drawing      one", "drawing      two", "the page"]


def test_a_point_that_takes_long_is_told_while_it_is_measured(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    told = []
    with progress.Progress("slow", [{"ranks": 2, "threads": None, "kind": "weak"}], 0):
        while not any("now" in line for line in told):
            told += capsys.readouterr().out.splitlines()
    assert told[0] == "slow         1 point to measure"
    assert re.fullmatch(r"slow         0 of 1 points after \d+ s; now ranks 2, kind weak", told[1])


def test_the_page_can_be_drawn_anew_from_what_was_measured(study, tmp_path):
    main(["--out", str(tmp_path), "--size", "small", "one"])
    (tmp_path / "index.html").unlink()
    study.asked.clear()
    main(["--out", str(tmp_path), "--draw"])
    assert study.asked == []
    assert "2 rows, 4 in all (table)." in (tmp_path / "index.html").read_text()
    about = json.loads((tmp_path / "one" / "machine.json").read_text())
    assert {"CPU", "MPI", "Python", "numpy"} <= about["machine"].keys()


def test_a_study_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(UserError, match=f"no study is called speed: there are {STUDIES[0]}"):
        main(["--out", str(tmp_path), "speed"])


def test_a_folder_that_cannot_be_made_is_refused(study, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--out .*: Not a directory: name another place"):
        main(["--out", str(tmp_path / "file" / "report")])


def test_a_reader_that_leaves_says_nothing_of_the_folder(tmp_path, monkeypatch):
    def leave(*_):
        raise BrokenPipeError

    monkeypatch.setattr(__main__, "run", leave)
    with pytest.raises(BrokenPipeError):
        main(["--out", str(tmp_path)])


def test_every_study_has_what_a_study_needs():
    for name in STUDIES:
        study = __main__.study_of(name)
        for attribute in ("TITLE", "QUESTION", "COLUMNS", "points", "take", "missing", "section"):
            assert hasattr(study, attribute), f"{name} has no {attribute}"
