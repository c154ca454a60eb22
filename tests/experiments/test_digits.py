"""experiments/digits.py: a single neuron, a linear classifier and hidden units, and their figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import digits
from experiments.digits import HIDDEN, LINEAR, NEURON
from experiments.study import Setup
from pyrt.job import join

pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setattr(digits, "EPOCHS", 3)
    return Setup("small", 0, 2, True, tmp_path)


@pytest.mark.long
def test_networks_train_and_their_weights_are_drawn(setup: Setup):
    points = digits.points(setup)
    rows = [{**point, **row} for point in points for row in digits.measure(point, join(), setup.folder)]
    assert [row["network"] for row in rows] == [NEURON, LINEAR, HIDDEN]
    assert [row["parameters"] for row in rows] == [2 * 785, 10 * 785, 32 * 785 + 330]
    assert rows[0]["test_precision"] > 0.9 and rows[1]["test_precision"] > 0.7
    section = digits.section(pd.DataFrame(rows, columns=[*digits.COLUMNS]), setup)
    assert [figure.name for figure in section.figures] == [
        *("digits", "neuron", "templates", "hidden", "activations")
    ]
    assert all((setup.folder / figure.file).stat().st_size > 5_000 for figure in section.figures)
    assert [finding.figure for finding in section.findings] == ["neuron", "templates", "activations"]
    assert f"{rows[0]['test_precision']:.1%} of the test images" in section.findings[0]


def test_the_two_digits_alone_are_in_the_pair(tmp_path: Path):
    with np.load(digits._pair_of_digits(tmp_path)) as file:
        assert set(file["y_train"]) == set(file["y_test"]) == {0, 1}
        assert file["x_train"].shape[1:] == (28, 28) and len(file["x_train"]) == len(file["y_train"])
        assert 700 < len(file["y_train"]) < 900  # two of ten classes of 4,000


def test_nothing_measured_draws_nothing(setup: Setup):
    assert not digits.section(pd.DataFrame(columns=[*digits.COLUMNS]), setup).figures
