"""nn/batch.cu and nn/update.cu: the places of the next batch and of the next loss, step after step."""

import numpy as np
import pytest

from nn.input.source import BatchCursor
from nn.launch.pixels import SkipBatch
from nn.launch.update import LossRing, Segment, Update, UpdateArrays
from nn.optimisers import Sgd
from tests.nn.ending import end_step


@pytest.mark.sanitizer
def test_losses_go_around_the_ring(kernels, device, rng, dtype):
    losses = rng.normal(0, 1, 9).astype(dtype)
    loss, ring = device.poisoned(1, dtype), device.poisoned(4, dtype)
    place = device.array(np.zeros(1, np.int32))
    keep, seen = end_step(LossRing(loss, ring, place)).on_device(kernels), []
    for value in losses:
        loss.set(np.array([value]))
        device.run(keep)
        seen += place.to_host().tolist()
    assert seen == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert np.array_equal(ring.to_host(), losses[[8, 5, 6, 7]])


@pytest.mark.sanitizer
def test_a_batch_is_skipped(kernels, device):
    """Three batches each in the orders of two epochs."""
    cursor = BatchCursor(device.array(np.zeros(2, np.int32)), 5, 30)
    skip, seen = SkipBatch(cursor).on_device(kernels), []
    for _ in range(9):
        device.run(skip)
        seen.append(cursor.state.to_host().tolist())
    assert seen == [[5, 0], [10, 0], [15, 0], [20, 0], [25, 0], [0, 0], [5, 0], [10, 0], [15, 0]]


def test_a_loss_that_is_no_number_is_kept_as_it_is(kernels, device, dtype):
    ring, place = device.array(np.zeros(3, dtype)), device.array(np.zeros(1, np.int32))
    values = [np.nan, np.inf, -np.inf]
    for value in values:
        loss = device.array(np.array([value], dtype))
        device.run(end_step(LossRing(loss, ring, place)).on_device(kernels))
    assert np.array_equal(ring.to_host(), values, equal_nan=True)


@pytest.mark.sanitizer
def test_the_update_keeps_the_loss_once(kernels, device, rng, dtype):
    """However many blocks and layers it has."""
    p = rng.normal(0, 1, 5000).astype(dtype)
    parameters, gradients = device.array(p), device.array(np.ones(5000, dtype))
    loss, ring = device.array(np.array([0.5], dtype)), device.array(np.zeros(4, dtype))
    place = device.array(np.array([2], np.int32))
    segments = [Segment(0, 4000, 4000), Segment(4001, 999, 0)]
    kept = LossRing(loss, ring, place)
    arrays = UpdateArrays(Sgd(0.5, 0.0, 0.0), parameters, gradients, {}, None)
    device.run(Update(arrays, segments, kept).on_device(kernels))
    assert (ring.to_host().tolist(), place.to_host().tolist()) == ([0, 0, 0.5, 0], [3])
    expected = p - dtype.type(0.5)
    expected[4000] = p[4000]
    assert np.array_equal(parameters.to_host(), expected)
