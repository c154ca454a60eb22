"""batch.cu: the places of the next batch and of the next loss, step after step."""

import numpy as np
import pytest

from nn.launches import NextBatch, Stretch


@pytest.mark.sanitizer
def test_next_batch(kernels, device, rng, dtype):
    """Three epochs of 3 batches in the orders of two, and a ring of 4 losses."""
    losses = rng.normal(0, 1, 9).astype(dtype)
    loss, ring = device.poisoned(1, dtype), device.poisoned(4, dtype)
    state = device.array(np.zeros(2, np.int32))
    move_on = kernels.next_batch(NextBatch(loss, ring, state, 5, 30))
    seen = []
    for value in losses:
        loss.set(np.array([value]))
        device.run(move_on)
        seen.append(state.to_host().tolist())
    assert [place for place, _ in seen] == [5, 10, 15, 20, 25, 0, 5, 10, 15]
    assert [place for _, place in seen] == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert np.array_equal(ring.to_host(), losses[[8, 5, 6, 7]])


def test_a_loss_that_is_no_number_is_kept_as_it_is(kernels, device, dtype):
    ring, state = device.array(np.zeros(3, dtype)), device.array(np.zeros(2, np.int32))
    values = [np.nan, np.inf, -np.inf]
    for value in values:
        loss = device.array(np.array([value], dtype))
        device.run(kernels.next_batch(NextBatch(loss, ring, state, 1, 1)))
    assert np.array_equal(ring.to_host(), values, equal_nan=True)


@pytest.mark.sanitizer
def test_the_update_ends_the_step_once(kernels, device, rng, dtype):
    """However many blocks and layers it has."""
    p = rng.normal(0, 1, 5000).astype(dtype)
    parameters, gradients = device.array(p), device.array(np.ones(5000, dtype))
    loss, ring = device.array(np.array([0.5], dtype)), device.array(np.zeros(4, dtype))
    state = device.array(np.array([4, 2], np.int32))
    stretches = [Stretch(0, 4000, 4000), Stretch(4001, 999, 0)]
    end = NextBatch(loss, ring, state, 3, 6)
    device.run(kernels.sgd(parameters, gradients, None, stretches, 0.5, 0.0, 0.0, end))
    assert (ring.to_host().tolist(), state.to_host().tolist()) == ([0, 0, 0.5, 0], [1, 3])
    expected = p - dtype.type(0.5)
    expected[4000] = p[4000]
    assert np.array_equal(parameters.to_host(), expected)
