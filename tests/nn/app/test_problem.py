"""nn/app/problem.py: network and batches follow from options and data; what is held out is in no batch."""

import numpy as np
import pytest

from nn.app.load import load, problem_of
from nn.app.options import Options
from nn.input import load as load_data
from nn.problem.problem import Problem
from pyrt.errors import UserError
from tests import few


def made(**options: object) -> Problem:
    return problem_of(Options(hidden=(9, 7), batch=50, epochs=2, **options), load_data("embedded"))


def test_the_network_is_between_pixels_and_classes():
    assert made(activation="tanh").network.sizes == (784, 9, 7, 10)
    network = made(activation="tanh").network
    assert [network.activation(number) for number in network.numbers] == ["tanh", "tanh", "identity"]


def test_what_is_held_out_is_in_no_batch():
    problem = made(val_fraction=0.25)
    images, labels = problem.dataset.images, problem.dataset.labels
    first = len(images) - len(images) // 4
    held_out, of_held_out = problem.validation
    np.testing.assert_array_equal(held_out, images[first:])
    np.testing.assert_array_equal(of_held_out, labels[first:])
    drawn = {row for step in range(problem.schedule.steps) for row in problem.schedule.rows(step).tolist()}
    assert drawn == set(range(first)) and problem.schedule.available == first


def test_nothing_may_be_held_out():
    problem = made(val_fraction=0.0)
    assert problem.validation is None and problem.schedule.samples == len(problem.dataset.images)


def test_a_data_set_may_have_no_test_set():
    problem = made()
    np.testing.assert_array_equal(problem.test[1], problem.dataset.test_labels)
    without = vars(problem.dataset) | {"test_images": None, "test_labels": None}
    assert problem_of(problem.settings, type(problem.dataset)(**without)).test is None


def test_samples_that_were_asked_for_are_drawn_again_where_there_are_fewer():
    problem = made(samples=10**4)
    assert problem.schedule.samples == 10**4 and problem.schedule.used == problem.schedule.available


def test_the_number_of_classes_is_the_width_of_the_last_layer():
    options = Options(hidden=(9,), classes=12)
    assert problem_of(options, load(options)[0]).network.sizes == (784, 9, 12)
    with pytest.raises(UserError, match=r"--classes 9: .*x_train|y_train has label 9: give 10 or more"):
        load(Options(classes=9))


@pytest.mark.parametrize("how", few(["stratified"], of=["random", "stratified"]))
def test_what_is_held_out_lies_behind_what_is_trained_on(how):
    """Another part of the same rows; stratified, of each class alike."""
    digits, options = load_data("embedded"), Options(val_split=how, val_fraction=0.25, seed=3)
    problem = problem_of(options, load(options)[0])
    held_out, labels = problem.validation
    assert len(labels) == 1000 and problem.schedule.available == 3000
    whole = np.column_stack([digits.labels, digits.images])
    found = np.column_stack([problem.dataset.labels, problem.dataset.images])
    assert (found != whole).any()
    assert (np.unique(found, axis=0) == np.unique(whole, axis=0)).all()
    each = np.bincount(labels)
    expected = np.bincount(digits.labels) / 4
    assert (abs(each - expected) < 1).all() == (how == "stratified")
    again = load(Options(val_split=how, val_fraction=0.25, seed=3, lr=0.5))[0]
    np.testing.assert_array_equal(again.images[3000:], held_out)
    np.testing.assert_array_equal(again.test_images, digits.test_images)


def test_what_is_suspicious_is_said_with_what_to_type(tmp_path):
    digits = load_data("embedded")
    assert load(Options())[1] == []
    order = np.argsort(digits.labels, kind="stable")
    images, tested = (array / 255 for array in (digits.images[order], digits.test_images))
    np.savez(
        tmp_path / "sorted.npz",
        x_train=images,
        y_train=digits.labels[order],
        x_test=np.where(tested == 1, 1e-60, tested),
        y_test=digits.test_labels,
    )
    source = str(tmp_path / "sorted.npz")
    said = [line.rpartition(": use ")[2] for line in load(Options(data=source))[1]]
    assert said == [
        "--dtype float64, or save them on a larger scale",
        "--pixel-scale 1",
        "--val-split stratified",
    ]
    good = {"dtype": "float64", "pixel_scale": 1.0, "val_split": "stratified"}
    assert load(Options(data=source, **good))[1] == []
    scored = Options(data=source, evaluate=True, init=tmp_path / "w.npz", dtype="float64")
    assert [line.rpartition(": use ")[2] for line in load(scored)[1]] == ["--pixel-scale 1"]
    np.testing.assert_array_equal(load(scored)[0].labels, digits.labels[order])
