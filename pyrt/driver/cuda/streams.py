"""The streams, events and graphs of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pycuda.driver as cuda
from cuda.bindings import driver as bindings

from pyrt.driver.cuda.calls import call


class Event:
    """An event of CUDA's. pycuda's own do not say their handle, which recording in a graph needs."""

    __slots__ = ("_driver", "handle")

    def __init__(self, driver: CudaStreams, flags: int) -> None:
        self._driver = driver
        self.handle = call(bindings.cuEventCreate, flags)

    def __del__(self) -> None:
        if self._driver.is_open and hasattr(self, "handle"):  # else it is gone, or never was
            bindings.cuEventDestroy(self.handle)


class CudaStreams:
    """The calls of the driver for streams, events and graphs, in this context, which is the current one."""

    is_open: bool
    """Whether the context is still there."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._graphs: list[Any] = []

    def _destroy_graphs(self) -> None:
        for graph in self._graphs:
            bindings.cuGraphExecDestroy(graph)

    def create_stream(self) -> cuda.Stream:
        return cuda.Stream(int(bindings.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def synchronize_stream(self, stream: cuda.Stream) -> None:
        stream.synchronize()

    def synchronize(self) -> None:
        self._context.synchronize()

    def create_event(self, timing: bool) -> Event:
        flags = bindings.CUevent_flags
        return Event(self, int(flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING))

    def record(self, event: Event, stream: cuda.Stream) -> None:
        call(bindings.cuEventRecord, event.handle, stream.handle)

    def wait(self, stream: cuda.Stream, event: Event) -> None:
        call(bindings.cuStreamWaitEvent, stream.handle, event.handle, 0)

    def is_done(self, event: Event) -> bool:
        (status,) = bindings.cuEventQuery(event.handle)
        if status not in (bindings.CUresult.CUDA_SUCCESS, bindings.CUresult.CUDA_ERROR_NOT_READY):
            raise RuntimeError(f"cuEventQuery: {status.name}")
        return status == bindings.CUresult.CUDA_SUCCESS

    def synchronize_event(self, event: Event) -> None:
        call(bindings.cuEventSynchronize, event.handle)

    def elapsed(self, start: Event, stop: Event) -> float:
        return call(bindings.cuEventElapsedTime, start.handle, stop.handle) * 1e-3

    def begin_capture(self, stream: cuda.Stream) -> None:
        # Of this thread: what others do meanwhile (an MPI's, a tool's) does not break the capture.
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(bindings.cuStreamBeginCapture, stream.handle, mode)

    def end_capture(self, stream: cuda.Stream) -> Callable[[cuda.Stream], None]:
        description = call(bindings.cuStreamEndCapture, stream.handle)
        try:
            graph = call(bindings.cuGraphInstantiate, description, 0)
        finally:
            call(bindings.cuGraphDestroy, description)
        self._graphs.append(graph)

        def launch(stream: cuda.Stream) -> None:
            call(bindings.cuGraphLaunch, graph, stream.handle)

        return launch

    def record_in_graph(self, event: Event, stream: cuda.Stream) -> None:
        flag = int(bindings.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL)
        call(bindings.cuEventRecordWithFlags, event.handle, stream.handle, flag)
