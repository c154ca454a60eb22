"""nn/input/upload_queue.py: rows arrive where they are looked for, and not before."""

import threading

import numpy as np
import pytest

from nn.input.upload_queue import UploadQueue
from pyrt.driver.cpu import CpuDriver
from pyrt.phases import Phases
from pyrt.streams import Streams
from pyrt.workers import Worker

IMAGES = np.arange(60, dtype=np.uint8).reshape(20, 3)
LABELS = np.arange(20, dtype=np.int32)[::-1].copy()


def make_feed(driver, rows, helpers=()):
    return UploadQueue(driver, Streams(driver), Phases(0.0).phase("copying"), IMAGES, LABELS, rows, helpers)


@pytest.fixture(params=["cpu", pytest.param("kernels", marks=pytest.mark.kernels)])
def feed(request):
    return make_feed(CpuDriver() if request.param == "cpu" else request.getfixturevalue("driver"), rows=4)


def stage(feed, chunk, rows):
    feed.gather(chunk, np.array(rows))
    feed.send(chunk)


def arrived(feed, chunk, rows):
    feed.begin(chunk)
    slot = feed.slot(chunk)
    return slot.images.rows(0, rows).to_host().tolist(), slot.labels.rows(0, rows).to_host().tolist()


def expected(rows):
    return IMAGES[rows].tolist(), LABELS[rows].tolist()


def test_rows_arrive_while_the_chunk_before_is_still_there(feed):
    rows = [[3, 3, 19, 0], [7, 1], [5, 6, 2]]
    stage(feed, 0, rows[0])
    for chunk in range(3):
        assert arrived(feed, chunk, len(rows[chunk])) == expected(rows[chunk])
        if chunk < 2:
            stage(feed, chunk + 1, rows[chunk + 1])
            assert arrived(feed, chunk, len(rows[chunk])) == expected(rows[chunk])
        feed.end(chunk)


def test_slots_lie_behind_each_other(feed):
    for chunk in range(3):
        stage(feed, chunk, range(4 * chunk, 4 * chunk + 4))
        feed.begin(chunk)
        feed.end(chunk)
    assert feed.images.to_host().tolist() == IMAGES[[8, 9, 10, 11, 4, 5, 6, 7]].tolist()
    assert feed.labels.to_host().tolist() == LABELS[[8, 9, 10, 11, 4, 5, 6, 7]].tolist()


@pytest.mark.parametrize("helpers", [1, 2, 5])
def test_helpers_take_turns(helpers):
    feed = make_feed(CpuDriver(), 6, [Worker() for _ in range(helpers)])
    chunks = [[3, 9, 0, 19, 7, 3], [4], [2, 2], [8, 1, 2, 5], [0], [6, 4, 4, 1, 10, 11], [12]]
    for chunk in range(helpers - 1):
        feed.gather(chunk, np.array(chunks[chunk]))
    for chunk, rows in enumerate(chunks):
        if chunk + helpers - 1 < len(chunks):
            feed.gather(chunk + helpers - 1, np.array(chunks[chunk + helpers - 1]))
        feed.send(chunk)
        assert arrived(feed, chunk, len(rows)) == expected(rows)
        feed.end(chunk)
    feed.close()


def test_an_error_of_a_helper_is_raised_where_its_chunk_is_sent():
    """And once: the feed can be closed after it, which ends all threads."""
    threads = threading.active_count()
    feed = make_feed(CpuDriver(), 4, [Worker() for _ in range(2)])
    feed.gather(0, np.array([1]))
    feed.gather(1, np.array(["no", "rows"]))
    feed.send(0)
    with pytest.raises(TypeError):
        feed.send(1)
    feed.close()
    assert threading.active_count() == threads
