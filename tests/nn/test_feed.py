"""nn/feed.py: a batch's rows arrive in its slot, those of the batch before stay in the other."""

import numpy as np
import pytest

from nn.feed import Feed
from pyrt.driver.cpu import CpuDriver
from pyrt.phases import Phases
from pyrt.streams import Streams

IMAGES = np.arange(60, dtype=np.uint8).reshape(20, 3)
LABELS = np.arange(20, dtype=np.int32)[::-1].copy()


@pytest.fixture(params=["cpu", pytest.param("kernels", marks=pytest.mark.kernels)])
def feed(request):
    driver = CpuDriver() if request.param == "cpu" else request.getfixturevalue("driver")
    return Feed(driver, Streams(driver), Phases(0.0).phase("copying"), IMAGES, LABELS, rows=4)


def arrived(feed, batch, rows):
    feed.begin(batch)
    slot = feed.slot(batch)
    return slot.images.rows(0, rows).to_host().tolist(), slot.labels.rows(0, rows).to_host().tolist()


def expected(rows):
    return IMAGES[rows].tolist(), LABELS[rows].tolist()


def test_rows_arrive_while_the_batch_before_is_still_there(feed):
    rows = [np.array([3, 3, 19, 0]), np.array([7, 1]), np.array([5, 6, 2])]
    feed.stage(0, rows[0])
    for batch in range(3):
        assert arrived(feed, batch, len(rows[batch])) == expected(rows[batch])
        if batch < 2:
            feed.stage(batch + 1, rows[batch + 1])
            assert arrived(feed, batch, len(rows[batch])) == expected(rows[batch])
        feed.end(batch)


def test_a_rank_without_samples_stages_nothing(feed):
    feed.stage(0, np.array([4, 5]))
    feed.stage(1, np.array([], int))
    feed.begin(1)
    feed.end(1)
    assert arrived(feed, 0, 2) == expected([4, 5])
