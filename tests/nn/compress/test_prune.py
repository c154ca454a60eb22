"""nn/compress/prune.py: exactly so many weights go, and none that is larger than one that stays."""

import numpy as np
import pytest

from nn.compress.prune import prune_below_deviation, prune_share, share_after


@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (3, 5, 5, 2), (100, 300)])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.92, 0.999])
def test_the_least_go(shape, share):
    W = (np.random.default_rng(1).normal(0, 1, shape) * 1e20).astype(np.float32)
    pruned = prune_share(W, share)
    gone = pruned == 0
    assert gone.sum() == round(share * W.size) and pruned.dtype == W.dtype
    assert np.array_equal(pruned[~gone], W[~gone])
    if gone.any() and not gone.all():
        assert np.abs(W[gone]).max() <= np.abs(W[~gone]).min()


def test_shares_count_weights_that_are_0_already():
    W = np.array([[0, 3, -1, 0], [2, -4, 5, 6]], np.float32)
    assert np.array_equal(prune_share(W, 0.25), W)
    assert np.array_equal(prune_share(W, 0.5), [[0, 3, 0, 0], [0, -4, 5, 6]])


def test_of_equal_weights_the_first_go():
    assert np.array_equal(prune_share(np.array([1, -1, 1, -1], np.float32), 0.5), [0, 0, 1, -1])


def test_below_a_deviation_all_go():
    W = np.random.default_rng(2).normal(0.3, 2, (50, 60)).astype(np.float32)
    pruned = prune_below_deviation(W, 0.7)
    assert np.array_equal(pruned, np.where(np.abs(W) < 0.7 * W.astype(np.float64).std(), 0, W))
    again = prune_below_deviation(pruned, 0.7)
    left = pruned[pruned != 0].astype(np.float64)
    assert np.array_equal(again, np.where(np.abs(pruned) < 0.7 * left.std(), 0, pruned))
    assert np.count_nonzero(again) < np.count_nonzero(pruned)


def test_where_nothing_is_left_nothing_goes():
    zeros = np.zeros((3, 4), np.float32)
    assert np.array_equal(prune_below_deviation(zeros, 1), zeros)
    assert np.array_equal(prune_share(zeros, 0.9), zeros)


def test_each_round_leaves_the_same_part():
    kept = [1 - share_after(number, 4, 0.92) for number in range(5)]
    assert kept[0] == 1 and kept[-1] == pytest.approx(0.08)
    assert np.allclose(np.divide(kept[1:], kept[:-1]), 0.08**0.25)
