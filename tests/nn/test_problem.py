"""nn/problem.py: network and batches follow from options and data; what is held out is in no batch."""

import numpy as np

from nn import data
from nn.options import Options
from nn.problem import Problem


def made(**options: object) -> Problem:
    return Problem.of(Options(hidden=(9, 7), batch=50, epochs=2, **options), data.load("embedded"))


def test_the_network_is_between_pixels_and_classes():
    assert made(activation="tanh").network.sizes == (784, 9, 7, 10)
    assert made(activation="tanh").network.activation == "tanh"


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
    assert Problem.of(problem.options, type(problem.dataset)(**without)).test is None


def test_samples_that_were_asked_for_are_drawn_again_where_there_are_fewer():
    problem = made(samples=10**4)
    assert problem.schedule.samples == 10**4 and problem.schedule.used == problem.schedule.available
