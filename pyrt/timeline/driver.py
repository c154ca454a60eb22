"""A driver that tells a timeline of the kernels, copies and fills that are queued while it records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrt.driver import Driver, FunctionHandle, ModuleHandle, Shape3, StreamHandle
from pyrt.kernels import file_of
from pyrt.timeline import COPY, EXCHANGE, FILL, KERNEL, Timeline

if TYPE_CHECKING:
    import numpy as np

_EXCHANGES = "comm"
"""The folder of kernels that work for an exchange."""


class _Module(NamedTuple):
    handle: ModuleHandle
    kind: str
    """The kind of span that its kernels are."""


class _Function(NamedTuple):
    handle: FunctionHandle
    name: str
    kind: str


class TracedDriver:
    """A `Driver` that records kernels, copies and fills; all other calls are the wrapped driver's."""

    def __init__(self, driver: Driver, timeline: Timeline) -> None:
        self._driver, self._timeline = driver, timeline

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        if callable(found):
            setattr(self, name, found)  # a call of the driver: next time it is found at once
        return found

    def load_module(self, source: str, cache_dir: str) -> _Module:
        folder = PurePath(file_of(source)).parent.name
        kind = EXCHANGE if folder == _EXCHANGES else KERNEL
        return _Module(self._driver.load_module(source, cache_dir), kind)

    def function(self, module: _Module, name: str) -> _Function:
        return _Function(self._driver.function(module.handle, name), name, module.kind)

    def launcher(
        self, function: _Function, grid: Shape3, block: Shape3, arguments: bytes, shared: int, overlaps: bool
    ) -> Callable[[StreamHandle], None]:
        launch = self._driver.launcher(function.handle, grid, block, arguments, shared, overlaps)
        timeline = self._timeline

        def traced(stream: StreamHandle) -> None:
            if not timeline.is_on:
                launch(stream)
                return
            with timeline.queued(stream, function.kind, function.name):
                launch(stream)

        return traced

    def copy_to_device(self, pointer: int, host: np.ndarray, stream: StreamHandle) -> None:
        if not self._timeline.is_on:
            self._driver.copy_to_device(pointer, host, stream)
            return
        with self._timeline.queued(stream, COPY, "copy host -> device", host.nbytes):
            self._driver.copy_to_device(pointer, host, stream)

    def copy_to_host(self, host: np.ndarray, pointer: int, stream: StreamHandle) -> None:
        if not self._timeline.is_on:
            self._driver.copy_to_host(host, pointer, stream)
            return
        with self._timeline.queued(stream, COPY, "copy device -> host", host.nbytes):
            self._driver.copy_to_host(host, pointer, stream)

    def fill(self, pointer: int, byte: int, nbytes: int, stream: StreamHandle) -> None:
        if not self._timeline.is_on:
            self._driver.fill(pointer, byte, nbytes, stream)
            return
        with self._timeline.queued(stream, FILL, "fill", nbytes):
            self._driver.fill(pointer, byte, nbytes, stream)
