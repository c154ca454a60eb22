"""batch.cu: the places of the next batch and of the next loss, step after step, and in other kernels too."""

import numpy as np
import pytest

from nn.launches import Descent, LossRing, Place, Stretch


@pytest.mark.sanitizer
def test_losses_go_around_the_ring(kernels, device, rng, dtype):
    losses = rng.normal(0, 1, 9).astype(dtype)
    loss, ring = device.poisoned(1, dtype), device.poisoned(4, dtype)
    place = device.array(np.zeros(1, np.int32))
    keep, seen = kernels.keep_loss(LossRing(loss, ring, place)), []
    for value in losses:
        loss.set(np.array([value]))
        device.run(keep)
        seen += place.to_host().tolist()
    assert seen == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert np.array_equal(ring.to_host(), losses[[8, 5, 6, 7]])


@pytest.mark.sanitizer
def test_a_batch_is_skipped(kernels, device):
    """Three batches each in the orders of two epochs."""
    place = Place(device.array(np.zeros(2, np.int32)), 5, 30)
    skip, seen = kernels.skip_batch(place), []
    for _ in range(9):
        device.run(skip)
        seen.append(place.state.to_host().tolist())
    assert seen == [[5, 0], [10, 0], [15, 0], [20, 0], [25, 0], [0, 0], [5, 0], [10, 0], [15, 0]]


def test_a_loss_that_is_no_number_is_kept_as_it_is(kernels, device, dtype):
    ring, place = device.array(np.zeros(3, dtype)), device.array(np.zeros(1, np.int32))
    values = [np.nan, np.inf, -np.inf]
    for value in values:
        loss = device.array(np.array([value], dtype))
        device.run(kernels.keep_loss(LossRing(loss, ring, place)))
    assert np.array_equal(ring.to_host(), values, equal_nan=True)


@pytest.mark.sanitizer
def test_the_update_keeps_the_loss_once(kernels, device, rng, dtype):
    """However many blocks and layers it has."""
    p = rng.normal(0, 1, 5000).astype(dtype)
    parameters, gradients = device.array(p), device.array(np.ones(5000, dtype))
    loss, ring = device.array(np.array([0.5], dtype)), device.array(np.zeros(4, dtype))
    place = device.array(np.array([2], np.int32))
    stretches = [Stretch(0, 4000, 4000), Stretch(4001, 999, 0)]
    kept = LossRing(loss, ring, place)
    device.run(kernels.sgd(Descent(parameters, gradients, None, stretches, 0.5, 0.0, 0.0, kept)))
    assert (ring.to_host().tolist(), place.to_host().tolist()) == ([0, 0, 0.5, 0], [3])
    expected = p - dtype.type(0.5)
    expected[4000] = p[4000]
    assert np.array_equal(parameters.to_host(), expected)
