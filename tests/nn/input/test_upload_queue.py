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


def make_queue(driver, rows, helpers=()):
    return UploadQueue(driver, Streams(driver), Phases(0.0).phase("copying"), (IMAGES, LABELS), rows, helpers)


@pytest.fixture(params=["cpu", pytest.param("kernels", marks=pytest.mark.kernels)])
def queue(request):
    return make_queue(CpuDriver() if request.param == "cpu" else request.getfixturevalue("driver"), rows=4)


def stage(queue, chunk, rows):
    queue.gather(chunk, np.array(rows))
    queue.send(chunk)


def arrived(queue, chunk, rows):
    queue.begin(chunk)
    slot = queue.slot(chunk)
    return slot.images.rows(0, rows).to_host().tolist(), slot.labels.rows(0, rows).to_host().tolist()


def expected(rows):
    return IMAGES[rows].tolist(), LABELS[rows].tolist()


def test_rows_arrive_while_the_chunk_before_is_still_there(queue):
    rows = [[3, 3, 19, 0], [7, 1], [5, 6, 2]]
    stage(queue, 0, rows[0])
    for chunk in range(3):
        assert arrived(queue, chunk, len(rows[chunk])) == expected(rows[chunk])
        if chunk < 2:
            stage(queue, chunk + 1, rows[chunk + 1])
            assert arrived(queue, chunk, len(rows[chunk])) == expected(rows[chunk])
        queue.end(chunk)


def test_slots_lie_behind_each_other(queue):
    for chunk in range(3):
        stage(queue, chunk, range(4 * chunk, 4 * chunk + 4))
        queue.begin(chunk)
        queue.end(chunk)
    assert queue.images.to_host().tolist() == IMAGES[[8, 9, 10, 11, 4, 5, 6, 7]].tolist()
    assert queue.labels.to_host().tolist() == LABELS[[8, 9, 10, 11, 4, 5, 6, 7]].tolist()


@pytest.mark.parametrize("helpers", [1, 2, 5])
def test_helpers_take_turns(helpers):
    queue = make_queue(CpuDriver(), 6, [Worker() for _ in range(helpers)])
    chunks = [[3, 9, 0, 19, 7, 3], [4], [2, 2], [8, 1, 2, 5], [0], [6, 4, 4, 1, 10, 11], [12]]
    for chunk in range(helpers - 1):
        queue.gather(chunk, np.array(chunks[chunk]))
    for chunk, rows in enumerate(chunks):
        if chunk + helpers - 1 < len(chunks):
            queue.gather(chunk + helpers - 1, np.array(chunks[chunk + helpers - 1]))
        queue.send(chunk)
        assert arrived(queue, chunk, len(rows)) == expected(rows)
        queue.end(chunk)
    queue.close()


def test_an_error_of_a_helper_is_raised_where_its_chunk_is_sent():
    """And once: the queue can be closed after it, which ends all threads."""
    threads = threading.active_count()
    queue = make_queue(CpuDriver(), 4, [Worker() for _ in range(2)])
    queue.gather(0, np.array([1]))
    queue.gather(1, np.array(["no", "rows"]))
    queue.send(0)
    with pytest.raises(TypeError):
        queue.send(1)
    queue.close()
    assert threading.active_count() == threads
