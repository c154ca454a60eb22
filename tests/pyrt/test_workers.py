"""pyrt/workers.py: work is done in order beside the caller; its errors come out where it is waited for."""

import gc
import threading
import time
import weakref
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from nn.input.prefetch import Orders
from pyrt.workers import Deferred, Early, Worker


@pytest.fixture(params=[Worker, Deferred])
def helper(request):
    helper = request.param()
    yield helper
    helper.close()


def test_work_is_done_when_it_has_been_waited_for(helper):
    done = []
    for number in range(5):
        helper.start(lambda number=number: done.append(number))
        helper.wait()
        assert done == list(range(number + 1))


def test_an_error_is_raised_where_its_work_is_waited_for(helper):
    for _ in range(2):
        helper.start(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            helper.wait()
    helper.start(lambda: None)
    helper.wait()


def test_a_worker_works_beside_its_caller_and_is_done_when_closed():
    worker, go, done = Worker(), threading.Event(), []
    worker.start(lambda: go.wait(60) and done.append(1))
    assert not done
    go.set()
    worker.close()
    assert done
    assert not worker._thread.is_alive()


def test_a_function_is_called_early():
    called, go = threading.Event(), threading.Event()
    early = Early(lambda: called.set() or (go.wait(60) and 7))
    assert called.wait(60)
    go.set()
    assert early.take() == 7
    with pytest.raises(ZeroDivisionError):
        Early(lambda: 1 // 0).take()


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_keeps_nothing_of_work_that_is_done(fails):
    """It may hold a whole checkpoint; nor does an error, whose traceback leads to it, once it is caught."""

    def reshape(array):
        array.reshape(2 if fails else 3)

    gc.disable()
    worker, array = Worker(), np.ones(3)
    worker.start(partial(reshape, array))
    held, array = weakref.ref(array), None
    try:
        with suppress(ValueError):
            worker.wait()
        # The thread lets go of an error only behind the one who was told of it.
        deadline = time.monotonic() + 5
        while held() is not None and time.monotonic() < deadline:
            time.sleep(1e-3)
        assert held() is None
    finally:
        gc.enable()
        worker.close()


@pytest.mark.parametrize("helpers", [1, 2, 3, 6])
def test_orders_come_one_after_the_other_and_each_is_drawn_once(helpers):
    drawn = []

    def draw(epoch):
        drawn.append(epoch)
        return np.arange(3) + epoch

    orders = Orders(draw, 4, [Worker() if helpers > 1 else Deferred() for _ in range(helpers)])
    orders.start(0)
    assert [orders.take().tolist() for _ in range(4)] == [[e, e + 1, e + 2] for e in range(4)]
    orders.close()
    assert sorted(drawn) == [0, 1, 2, 3]


@pytest.mark.parametrize("helpers", [1, 2, 3, 6])
@pytest.mark.parametrize("first", [1, 2, 3])
def test_orders_begin_with_any_epoch(helpers, first):
    drawn = []

    def draw(epoch):
        drawn.append(epoch)
        return np.array([epoch])

    orders = Orders(draw, 4, [Worker() if helpers > 1 else Deferred() for _ in range(helpers)])
    orders.start(first)
    assert [orders.take().tolist() for _ in range(first, 4)] == [[epoch] for epoch in range(first, 4)]
    orders.close()
    assert sorted(drawn) == list(range(first, 4))


def test_orders_are_drawn_while_those_before_are_used():
    drawn = {epoch: threading.Event() for epoch in range(4)}
    both = threading.Barrier(2)  # the first two at once

    def draw(epoch):
        if epoch < 2:
            both.wait(60)
        drawn[epoch].set()
        return np.empty(0, int)

    orders = Orders(draw, 4, [Worker(), Worker()])
    orders.start(0)
    assert drawn[0].wait(60) and drawn[1].wait(60)
    orders.take()
    assert drawn[2].wait(60) and not drawn[3].is_set()
    orders.close()
