"""Graphs of the driver protocol: capture and replay, streams that join, copies, times, captures that fail.

On a GPU where there is one, else on the emulated device.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from pyrt.arrays import DeviceArray, pinned
from pyrt.driver import Driver
from pyrt.graphs import capture
from pyrt.kernels import KernelLibrary, Launch
from tests.pyrt.sources import LONG

N = 1000
"""Elements of the arrays in graphs."""


class TestGraphs:
    @pytest.fixture
    def x(self, driver: Driver) -> DeviceArray:
        return DeviceArray.from_host(driver, np.random.default_rng(0).random(N, "f4"))

    @pytest.fixture
    def launches(self, mine: KernelLibrary, x: DeviceArray) -> list[Launch]:
        """Five that give other bits in another order."""
        scale = mine.kernel("mine", "scale")
        return [scale.bind((8,), (128,), N, 0.5 + i / 3, 0.1 * i, x) for i in range(5)]

    def test_replays_give_the_bits_of_plain_launches(
        self, driver: Driver, x: DeviceArray, launches: list[Launch]
    ) -> None:
        stream, start = driver.create_stream(), x.to_host()
        for _ in range(20):
            for launch in launches:
                launch(stream)
        expected = x.to_host()
        x.set(start)
        with capture(driver, stream) as graph:
            for launch in launches:
                launch(stream)
        np.testing.assert_array_equal(x.to_host(), start, "nothing runs during a capture")
        for _ in range(20):
            graph(stream)
        assert x.to_host().tobytes() == expected.tobytes()

    def test_a_replay_is_queued_behind_what_its_stream_has_to_do(
        self, driver: Driver, mine: KernelLibrary, x: DeviceArray
    ) -> None:
        """The host goes on at once; what is queued after the replay sees its results."""
        stream, other = driver.create_stream(), driver.create_stream()
        late = mine.kernel("mine", "late").bind((1,), (32,), LONG, x)
        seen = pinned(driver, (N,), "f4")
        with capture(driver, other) as graph:  # on another stream than it is launched on
            late(other)
        start = x.to_host()
        event = driver.create_event(timing=False)
        late(stream)
        graph(stream)
        late(stream)
        x.queue_download(seen, stream)
        driver.record(event, stream)
        assert not driver.is_done(event)
        driver.synchronize_stream(stream)
        np.testing.assert_array_equal(seen[:32], start[:32] + 1 + 1 + 1)
        np.testing.assert_array_equal(seen[32:], start[32:])

    def test_events_order_streams_that_join(
        self, driver: Driver, mine: KernelLibrary, x: DeviceArray
    ) -> None:
        """x += 1 on one; y += x + 1 on the second beside z = x + 1 on the third; x += y + z on the first."""
        y = DeviceArray.from_host(driver, np.ones(N, "f4"))
        z = DeviceArray.from_host(driver, np.ones(N, "f4"))
        late, late_y, late_z = (
            mine.kernel("mine", "late").bind((8,), (125,), LONG // 4, array) for array in (x, y, z)
        )
        add_x_to_y, add_x_to_z, add_y_to_x, add_z_to_x = (
            mine.kernel("mine", "add").bind((8,), (128,), N, source, target)
            for source, target in ((x, y), (x, z), (y, x), (z, x))
        )
        first, second, third = (driver.create_stream() for _ in range(3))
        forked, joined, ended = (driver.create_event(timing=False) for _ in range(3))
        with capture(driver, first) as graph:
            late(first)
            driver.record(forked, first)
            for stream in (second, third):
                driver.wait(stream, forked)
            driver.fill(z.pointer, 0, z.nbytes, third)
            for stream, launches, event in (
                (second, (add_x_to_y, late_y), joined),
                (third, (add_x_to_z, late_z), ended),
            ):
                for launch in launches:
                    launch(stream)
                driver.record(event, stream)
                driver.wait(first, event)
            add_y_to_x(first)
            add_z_to_x(first)
        expected, total = x.to_host(), np.ones(N, "f4")
        for _ in range(3):
            expected = expected + np.float32(1)
            total = total + expected + np.float32(1)
            expected = expected + total + (expected + np.float32(1))
            graph(first)
        np.testing.assert_array_equal(x.to_host(), expected)
        for stream, out in ((second, y), (third, z)):  # they can be used again
            driver.fill(out.pointer, 0, out.nbytes, stream)
        assert not np.any(y.to_host() + z.to_host())

    def test_copies_move_what_is_there_at_each_replay(
        self, driver: Driver, mine: KernelLibrary, x: DeviceArray
    ) -> None:
        stream = driver.create_stream()
        up, down = pinned(driver, (N,), "f4"), pinned(driver, (N,), "f4")
        scale = mine.kernel("mine", "scale").bind((8,), (128,), N, 2.0, 1.0, x)
        with capture(driver, stream) as graph:
            x.queue_upload(up, stream)
            scale(stream)
            x.queue_download(down, stream)
        for start in (1, 10, 100):
            up[...] = start + np.arange(N)
            graph(stream)
            driver.synchronize_stream(stream)
            np.testing.assert_array_equal(down, 2 * up + 1)

    def test_events_in_a_graph_tell_its_times(
        self, driver: Driver, mine: KernelLibrary, x: DeviceArray
    ) -> None:
        stream = driver.create_stream()
        cycles = (LONG, LONG // 10)
        launches = [mine.kernel("mine", "late").bind((1,), (32,), count, x) for count in cycles]
        events = [driver.create_event(timing=True) for _ in range(3)]
        with capture(driver, stream) as graph:
            driver.record_in_graph(events[0], stream)
            for launch, event in zip(launches, events[1:], strict=True):
                launch(stream)
                driver.record_in_graph(event, stream)
        for _ in range(2):
            before = time.perf_counter()
            graph(stream)
            driver.synchronize_stream(stream)
            outside = time.perf_counter() - before
            times = [driver.elapsed(*events[i : i + 2]) for i in range(2)]
            assert all(driver.is_done(event) for event in events)
            assert sum(times) < outside + 1e-3
            assert all(seconds > count / 10e9 for seconds, count in zip(times, cycles, strict=True))

    def test_two_graphs_of_one_capture_each(
        self, driver: Driver, x: DeviceArray, launches: list[Launch]
    ) -> None:
        """They take turns, on two streams."""
        streams = [driver.create_stream() for _ in range(2)]
        event = driver.create_event(timing=False)
        graphs = []
        for stream in streams:
            with capture(driver, stream) as graph:
                launches[1 + len(graphs)](stream)
            graphs.append(graph)
        expected = x.to_host()
        for _ in range(10):
            for i, (graph, stream) in enumerate(zip(graphs, streams, strict=True), 1):
                driver.wait(stream, event)
                graph(stream)
                driver.record(event, stream)
                expected = np.float32(0.5 + i / 3) * expected.astype("f8") + np.float32(0.1 * i)
        np.testing.assert_allclose(x.to_host(), expected, rtol=1e-5)

    def test_a_replay_waits_for_the_one_before_it(
        self, driver: Driver, mine: KernelLibrary, x: DeviceArray
    ) -> None:
        """On another stream too."""
        streams = [driver.create_stream() for _ in range(3)]
        late = mine.kernel("mine", "late").bind((8,), (125,), LONG // 10, x)
        with capture(driver, streams[0]) as graph:
            late(streams[0])
        start = x.to_host()
        for stream in streams * 2:
            graph(stream)
        expected = start
        for _ in range(6):
            expected = expected + np.float32(1)
        np.testing.assert_array_equal(x.to_host(), expected)

    def test_a_capture_that_raises_leaves_the_streams_usable(
        self, driver: Driver, x: DeviceArray, launches: list[Launch]
    ) -> None:
        stream, other = driver.create_stream(), driver.create_stream()
        event = driver.create_event(timing=False)
        start = x.to_host()
        with pytest.raises(ValueError, match="mine"), capture(driver, stream) as graph:
            launches[0](stream)
            driver.record(event, stream)
            driver.wait(other, event)
            launches[0](other)  # nobody waits for it
            raise ValueError("mine")
        with pytest.raises(RuntimeError, match="nothing to replay"):
            graph(stream)
        np.testing.assert_array_equal(x.to_host(), start)
        for i, again in enumerate((stream, other), 1):
            with capture(driver, again) as graph:
                launches[0](again)
            launches[0](again)
            graph(again)
            np.testing.assert_array_equal(x.to_host(), start * np.float32(0.25**i))

    def test_a_capture_that_leaves_a_stream_behind_gives_no_graph(
        self, driver: Driver, x: DeviceArray, launches: list[Launch]
    ) -> None:
        stream, other = driver.create_stream(), driver.create_stream()
        event = driver.create_event(timing=False)
        with pytest.raises(RuntimeError), capture(driver, stream):
            driver.record(event, stream)
            driver.wait(other, event)
            launches[0](other)
        start = x.to_host()
        launches[0](other)
        np.testing.assert_array_equal(x.to_host(), start / 2)
