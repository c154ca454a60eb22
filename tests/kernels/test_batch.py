"""batch.cu: the places of the next batch and of the next loss, step after step."""

import numpy as np
import pytest


@pytest.mark.sanitizer
def test_next_batch(kernels, device, rng, dtype):
    """Three epochs of 2 x 3 + 1 samples in the orders of two, and a ring of 4 losses."""
    losses = rng.normal(0, 1, 9).astype(dtype)
    loss, ring = device.poisoned(1, dtype), device.poisoned(4, dtype)
    state = device.array(np.zeros(2, np.int32))
    full, short = (kernels.next_batch(loss, ring, state, size, 14) for size in (3, 1))
    seen = []
    for step, value in enumerate(losses):
        loss.set(np.array([value]))
        device.run(short if step % 3 == 2 else full)
        seen.append(state.to_host().tolist())
    assert [place for place, _ in seen] == [3, 6, 7, 10, 13, 0, 3, 6, 7]
    assert [place for _, place in seen] == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert np.array_equal(ring.to_host(), losses[[8, 5, 6, 7]])


def test_a_loss_that_is_no_number_is_kept_as_it_is(kernels, device, dtype):
    ring, state = device.array(np.zeros(3, dtype)), device.array(np.zeros(2, np.int32))
    values = [np.nan, np.inf, -np.inf]
    for value in values:
        device.run(kernels.next_batch(device.array(np.array([value], dtype)), ring, state, 1, 1))
    assert np.array_equal(ring.to_host(), values, equal_nan=True)
