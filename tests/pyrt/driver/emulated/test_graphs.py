"""Graphs of the emulated device: what CUDA refuses is refused, and replays are checked and shuffled too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from pyrt.arrays import DeviceArray, pinned
from pyrt.driver.emulated import DeviceError, EmulatedDriver
from pyrt.driver.emulated.handles import Event
from pyrt.graphs import capture
from pyrt.kernels import Launch
from tests.pyrt.driver.emulated.conftest import Bench

KERNELS = """
extern "C" __global__ void scale(float a, float b, float *x)
{
    x[blockIdx.x * blockDim.x + threadIdx.x] *= a;
    x[blockIdx.x * blockDim.x + threadIdx.x] += b;
}

extern "C" __global__ void late(int nanoseconds, float *x)
{
    for (const long long start = clock64(); clock64() - start < nanoseconds;)
        ;
    x[0] += 1;
}

// Two of these, with 0 and 1, go on only side by side.
extern "C" __global__ void in_turn(int first, int *turn)
{
    for (int mine = first; mine < 6; mine += 2) {
        while (atomicAdd(turn, 0) != mine)
            ;
        atomicAdd(turn, 1);
    }
}
"""


def bind(bench: Bench, name: str, grid: int, block: int, *arguments: Any) -> Launch:
    return bench.named(name, KERNELS, "mine").bind((grid,), (block,), *arguments)


def array(bench: Bench, *shape: int) -> DeviceArray:
    return DeviceArray.from_host(bench.driver, np.ones(shape, "f4"))


def recorded_inside(bench: Bench) -> Event:
    event = bench.driver.create_event(timing=True)
    bench.driver.record(event, bench.stream)
    return event


def replay(bench: Bench) -> None:
    other = bench.driver.create_stream()
    with capture(bench.driver, other) as graph:
        pass
    graph(bench.stream)


def join_another_capture(bench: Bench) -> None:
    other = bench.driver.create_stream()
    with capture(bench.driver, other):
        bench.driver.wait(other, recorded_inside(bench))


MISUSES: dict[str, Callable[[Bench], object]] = {
    "synchronize during": lambda bench: bench.driver.synchronize(),
    "synchronize_stream during": lambda bench: bench.driver.synchronize_stream(bench.stream),
    "the host asks for an event": lambda bench: bench.driver.synchronize_event(recorded_inside(bench)),
    "the host asks for an event that": lambda bench: bench.driver.is_done(recorded_inside(bench)),
    "the host asks for an event that was": lambda bench: bench.driver.elapsed(*[recorded_inside(bench)] * 2),
    "allocate during": lambda bench: bench.driver.allocate(4),
    "free during": lambda bench: bench.driver.free(0),
    "allocate_pinned during": lambda bench: bench.driver.allocate_pinned(4),
    "load_module during": lambda bench: bench.driver.load_module("", ""),
    "begin_capture during": lambda bench: bench.driver.begin_capture(bench.stream),
    "the launch of a graph during": replay,
    "recorded before it during": lambda bench: bench.driver.wait(
        bench.stream, bench.driver.create_event(timing=False)
    ),
    "a wait for an event of another capture": join_another_capture,
}


@pytest.mark.parametrize("what", MISUSES)
def test_what_breaks_a_capture(plain: Bench, what: str) -> None:
    """It raises, and so does all that follows, up to the end: also where somebody catches the first error."""
    x = array(plain, 4)
    launch = bind(plain, "scale", 1, 4, 2.0, 0.0, x)
    with (
        pytest.raises(DeviceError, match="the capture is over: broken by"),
        capture(plain.driver, plain.stream),
    ):
        with pytest.raises(DeviceError, match=f"{what}.* a capture$"):
            MISUSES[what](plain)
        with pytest.raises(DeviceError, match="the capture is over: broken by"):
            launch(plain.stream)
    launch(plain.stream)
    assert np.all(x.to_host() == 2)


def test_calls_that_need_a_capture(plain: Bench) -> None:
    driver, other = plain.driver, plain.driver.create_stream()
    with pytest.raises(DeviceError, match="no capture began"):
        driver.end_capture(plain.stream)
    with pytest.raises(DeviceError, match="record_in_graph on a stream that is not being captured"):
        driver.record_in_graph(driver.create_event(timing=True), plain.stream)
    with capture(driver, plain.stream):
        event = recorded_inside(plain)
        driver.wait(other, event)
        with pytest.raises(DeviceError, match="no capture began"):
            driver.end_capture(other)
    with pytest.raises(DeviceError, match="the capture is over: it has ended"):
        driver.wait(other, event)
    driver.record(event, other)
    driver.synchronize_event(event)


def test_a_join_may_go_through_another_stream(plain: Bench) -> None:
    """The first stream waits for the second, which has waited for the third."""
    driver, streams = plain.driver, [plain.driver.create_stream() for _ in range(3)]
    x = array(plain, 4)
    launch = bind(plain, "scale", 1, 4, 2.0, 1.0, x)
    events = [driver.create_event(timing=False) for _ in range(4)]
    with capture(driver, streams[0]) as graph:
        for event, (before, after) in zip(events, ((0, 1), (1, 2), (2, 1), (1, 0)), strict=True):
            launch(streams[before])
            driver.record(event, streams[before])
            driver.wait(streams[after], event)
    graph(streams[1])
    assert np.all(x.to_host() == 31)


def test_an_event_may_be_waited_for_after_a_later_one(plain: Bench) -> None:
    driver, first, second = plain.driver, plain.stream, plain.driver.create_stream()
    x = array(plain, 4)
    launch = bind(plain, "scale", 1, 4, 2.0, 1.0, x)
    fork, early, late = (driver.create_event(timing=False) for _ in range(3))
    with capture(driver, first) as graph:
        driver.record(fork, first)
        driver.wait(second, fork)
        for event in (early, late):
            launch(second)
            driver.record(event, second)
        driver.wait(first, late)
        driver.wait(first, early)
        launch(first)
    graph(first)
    assert np.all(x.to_host() == 15)


def test_kernels_of_a_graph_that_wait_for_each_other(plain: Bench) -> None:
    driver, stream, other = plain.driver, plain.stream, plain.driver.create_stream()
    turn = DeviceArray.from_host(driver, np.zeros(1, "i4"))
    fork, join = (driver.create_event(timing=False) for _ in range(2))
    launches = [bind(plain, "in_turn", 1, 1, first, turn) for first in (1, 0)]
    with capture(driver, stream) as graph:
        driver.fill(turn.pointer, 0, 4, stream)
        driver.record(fork, stream)
        driver.wait(other, fork)
        launches[0](stream)
        launches[1](other)
        driver.record(join, other)
        driver.wait(stream, join)
    for _ in range(2):
        graph(stream)
        assert turn.to_host() == 6


def test_their_streams_end_with_them() -> None:
    driver = EmulatedDriver()
    stream, other = driver.create_stream(), driver.create_stream()
    fork, join = (driver.create_event(timing=False) for _ in range(2))
    host, x = np.ones(4, "f4"), DeviceArray.from_host(driver, np.zeros(4, "f4"))
    before = threading.active_count()
    for _ in range(30):
        with capture(driver, stream) as graph:
            driver.record(fork, stream)
            driver.wait(other, fork)
            x.queue_upload(host, other)
            driver.record(join, other)
            driver.wait(stream, join)
        graph(stream)
    assert np.all(x.to_host() == 1)
    del graph
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
    driver.close()


class TestChecks:
    """The promises about memory hold from the launch of a graph on."""

    @pytest.mark.parametrize("bug", [True, False])
    def test_a_host_array_that_changes_before_it_is_copied(self, checking: Bench, bug: bool) -> None:
        driver, stream = checking.driver, checking.stream
        host, x, y = pinned(driver, (8,), "f4"), array(checking, 8), array(checking, 8)
        host[:] = 1
        with capture(driver, stream) as graph:
            x.queue_upload(host, stream)
        host[:] = 2  # nothing was promised yet
        for _ in range(2):
            bind(checking, "late", 1, 1, 20_000_000, y)(stream)
            graph(stream)
            driver.synchronize_stream(stream)
            host[:] += 1
        assert np.all(x.to_host() == 3)
        bind(checking, "late", 1, 1, 20_000_000, y)(stream)
        graph(stream)
        with expected(bug, r"host array of shape \(8,\) changed after .* or the launch of its graph"):
            if not bug:
                driver.synchronize_stream(stream)
            host[3] = 7
            driver.synchronize_stream(stream)

    @pytest.mark.parametrize("bug", [True, False])
    @pytest.mark.parametrize("use", ["the kernel scale", "a fill", "a copy to the host"])
    def test_memory_freed_while_a_replay_uses_it(self, checking: Bench, use: str, bug: bool) -> None:
        driver, stream = checking.driver, checking.stream
        x, y, seen = array(checking, 8), array(checking, 8), pinned(driver, (8,), "f4")
        scale = bind(checking, "scale", 1, 8, 2.0, 0.0, x)
        with capture(driver, stream) as graph:
            if use == "a fill":
                driver.fill(x.pointer, 0, 32, stream)
            elif use == "a copy to the host":
                x.queue_download(seen, stream)
            else:
                scale(stream)
        bind(checking, "late", 1, 1, 20_000_000, y)(stream)
        graph(stream)
        with expected(bug, f"32 bytes of memory were freed while {use} still uses them"):
            if not bug:
                driver.synchronize_stream(stream)
            driver.free(x.pointer)
            driver.synchronize_stream(stream)

    def test_memory_freed_before_a_replay(self, checking: Bench) -> None:
        driver, stream = checking.driver, checking.stream
        x = array(checking, 8)
        scale = bind(checking, "scale", 1, 8, 2.0, 0.0, x)
        with capture(driver, stream) as graph:
            scale(stream)
        graph(stream)
        driver.synchronize()
        driver.free(x.pointer)
        graph(stream)
        with pytest.raises(DeviceError, match=r"^scale: .*mine\.cu:4: .* of memory that has been freed"):
            driver.synchronize()


def expected(bug: bool, words: str) -> AbstractContextManager[Any]:
    return pytest.raises(DeviceError, match=words) if bug else nullcontext()


ARRIVALS = """
// Which blocks come first, second, ...
extern "C" __global__ void arrivals(int *count, int *blocks) { blocks[atomicAdd(count, 1)] = blockIdx.x; }
"""


def test_an_order_seed_shuffles_every_replay() -> None:
    driver = EmulatedDriver(order_seed=0)
    bench = Bench(driver)
    count, blocks = (DeviceArray.from_host(driver, np.zeros(60, "i4")) for _ in range(2))
    launch = bench.named("arrivals", ARRIVALS).bind((60,), (1,), count, blocks)
    with capture(driver, bench.stream) as graph:
        driver.fill(count.pointer, 0, 4, bench.stream)
        launch(bench.stream)
    orders = []
    for _ in range(2):
        graph(bench.stream)
        orders.append(blocks.to_host())
        assert sorted(orders[-1]) == list(range(60))
        assert np.abs(orders[-1] - np.arange(60)).mean() > 5
    driver.close()
    assert np.abs(orders[0] - orders[1]).mean() > 5
