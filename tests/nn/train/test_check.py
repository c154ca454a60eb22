"""nn/train/check.py: how far parameters are from the reference, and the verdict."""

import math

import numpy as np
import pytest

from nn.app.load import problem_of
from nn.app.options import Options
from nn.input import load as load_data
from nn.model.network import Network
from nn.train.check import Check, Difference, batches, difference, precision_on


def test_differences_are_relative_to_the_reference_in_both_norms():
    found = difference("W1", np.array([[3.0, 4.5]]), np.array([[3.0, 4.0]]))
    assert (found.name, found.max_norm, found.l2) == ("W1", 0.5 / 4, 0.5 / 5)


def test_differences_from_zero_are_absolute():
    found = difference("b1", np.array([0.0, 0.5]), np.zeros(2))
    assert (found.max_norm, found.l2) == (0.5, 0.5)


def verdict(*max_norms, tolerance=1e-4):
    return Check([Difference(f"W{i}", norm, 0.0) for i, norm in enumerate(max_norms)], tolerance, None, None)


@pytest.mark.parametrize(
    ("norms", "passed"),
    [([0.0, 1e-4], True), ([0.0, 1.1e-4], False), ([1.1e-4, 0.0], False), ([0.0, math.nan], False)],
)
def test_every_parameter_must_be_within_the_tolerance(norms, passed):
    assert verdict(*norms).passed == passed
    assert ("check passed" if passed else "check FAILED") in str(verdict(*norms))
    assert ("--check-each" in str(verdict(*norms))) == (not passed)


def test_the_text_names_parameters_both_differences_and_both_precisions():
    text = str(Check([Difference("W1", 1e-6, 2e-7)], 1e-4, 0.891, 0.8905))
    assert "W1" in text and "1.00e-06" in text and "2.00e-07" in text
    assert "precision 0.8910, of the reference 0.8905" in text
    assert "tolerance 0.0001" in text


def test_without_a_held_out_set_no_precision_is_named():
    assert "precision" not in str(verdict(0.0))


def test_batches_are_the_schedules_rows_in_float64_with_scaled_pixels():
    digits = load_data("embedded")
    problem = problem_of(Options(samples=70, batch=30, epochs=2, seed=5, pixel_scale=51.0), digits)
    found = list(batches(problem))
    assert [len(labels) for _, labels in found] == [30, 30, 10] * 2
    for step, (images, labels) in enumerate(found):
        rows = problem.schedule.rows(step)
        assert images.dtype == np.float64
        np.testing.assert_array_equal(images, digits.images[rows] / 51.0)
        np.testing.assert_array_equal(labels, digits.labels[rows])


def test_precision_of_the_reference_counts_what_its_largest_logit_gets_right():
    """Two pixels and no hidden saturation: the brighter one, of scaled pixels, is the class."""
    weights = {"W1": np.eye(2), "b1": np.zeros(2), "W2": np.eye(2), "b2": np.array([0.0, 0.1])}
    images = np.array([[9, 0], [0, 9], [9, 0], [1, 0]], np.uint8)
    samples, network = (images, np.array([0, 1, 1, 0])), Network.dense((2, 2, 2), "sigmoid", "softmax")
    assert precision_on(samples, weights, network, pixel_scale=9.0) == 0.5
    assert precision_on(samples, weights, network, pixel_scale=1.0) == 0.75
