"""Devices for tests: one late on purpose, one that takes notes, one on a clock; and what makes a driver."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver


def missing_from_protocol(driver: object) -> list[str]:
    """Names that the protocol has and this driver has not, or takes other arguments for."""
    wanted = {name for name in (*vars(Driver), *Driver.__annotations__) if not name.startswith("_")}
    return [
        name
        for name in sorted(wanted)
        if not hasattr(driver, name)
        or (
            callable(getattr(Driver, name, None))
            and list(inspect.signature(getattr(Driver, name)).parameters)
            != list(inspect.signature(getattr(type(driver), name)).parameters)
        )
    ]


class LateStream:
    """Work that was queued and not yet done."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def step(self) -> None:
        self.work.pop(0)()

    def finish(self) -> None:
        while self.work:
            self.step()


class LateEvent:
    """The latest place that was marked, and the stream that must pass it."""

    def __init__(self) -> None:
        self.passed = True
        self.stream = LateStream()


class LateDriver(CpuDriver):
    """Host memory whose streams do nothing before they are made to.

    ``is_done`` moves its stream on by one piece of work; synchronising moves on what it must, and a stream
    that waits for an event moves that event's stream on. So work whose order nobody has asked for is done in
    the wrong order, as it may be on a GPU, but always the same one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[LateStream] = []

    def create_stream(self) -> Any:
        self.streams.append(LateStream())
        return self.streams[-1]

    def queue(self, stream: LateStream, work: Callable[[], None]) -> None:
        """What stands for a kernel."""
        stream.work.append(work)

    def copy_to_device(self, pointer: int, host: np.ndarray, stream: Any) -> None:
        self.queue(stream, lambda: CpuDriver.copy_to_device(self, pointer, host, None))

    def copy_to_host(self, host: np.ndarray, pointer: int, stream: Any) -> None:
        self.queue(stream, lambda: CpuDriver.copy_to_host(self, host, pointer, None))

    def fill(self, pointer: int, byte: int, nbytes: int, stream: Any) -> None:
        self.queue(stream, lambda: CpuDriver.fill(self, pointer, byte, nbytes, None))

    def synchronize_stream(self, stream: Any) -> None:
        stream.finish()

    def synchronize(self) -> None:
        for stream in self.streams:
            stream.finish()

    def create_event(self, timing: bool) -> Any:
        return LateEvent()

    def record(self, event: Any, stream: Any) -> None:
        event.passed = False
        event.stream = stream

        def passed() -> None:
            event.passed = True

        self.queue(stream, passed)

    def wait(self, stream: Any, event: Any) -> None:
        def wait() -> None:
            while not event.passed:
                event.stream.step()

        self.queue(stream, wait)

    def is_done(self, event: Any) -> bool:
        if not event.passed:
            event.stream.step()
        return event.passed

    def synchronize_event(self, event: Any) -> None:
        while not event.passed:
            event.stream.step()


@dataclass
class Noted:
    """A launch that a NotingDriver was asked for."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: bytes
    shared: int


@dataclass
class NotingDriver:
    """The part of a driver that kernels need; it compiles and launches nothing and remembers everything."""

    compiled: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    launches: list[tuple[Noted, Any]] = field(default_factory=list)
    fails_with: Exception | None = None
    architecture = "sm_90a"

    def is_compiled(self, source: str, cache_dir: str) -> bool:
        return source in self.compiled

    def compile(self, source: str, cache_dir: str) -> None:
        if self.fails_with is not None:
            raise self.fails_with
        self.compiled.append(source)

    def load_module(self, source: str, cache_dir: str) -> str:
        self.loaded.append(source)
        return source

    def function(self, module: str, name: str) -> str:
        return name

    def launcher(
        self,
        function: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: bytes,
        shared: int,
        overlaps: bool,
    ) -> Callable[[Any], None]:
        noted = Noted(function, grid, block, arguments, shared)
        return lambda stream: self.launches.append((noted, stream))


class ClockedDriver(CpuDriver):
    """A device with kernels: events get the time that the test has set, and are done unless it is stuck."""

    has_kernels = True

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.stuck = False
        self.fails = False
        self.synchronized = 0
        """How often the host waited for the whole device,"""
        self.waits = 0
        """and how often for one event."""

    def create_stream(self) -> Any:
        return "a stream"

    def record(self, event: Any, stream: Any) -> None:
        self._check()
        event.time = self.now

    def is_done(self, event: Any) -> bool:
        return not self.stuck

    def synchronize_event(self, event: Any) -> None:
        self.waits += 1

    def synchronize(self) -> None:
        self._check()
        self.synchronized += 1

    def _check(self) -> None:
        if self.fails:
            raise RuntimeError("an illegal memory access, long ago")
