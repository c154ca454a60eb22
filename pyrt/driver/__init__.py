"""The driver protocol: everything pyrt asks of a device, in some 30 calls.

Nothing above this package can tell one device from another. Pointers are integers, streams and events
are opaque handles. Work given a stream is asynchronous; the caller keeps host buffers unchanged until
the stream has passed them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pyrt.ledger import Ledger

if TYPE_CHECKING:  # NumPy loads once MPI has started (see pyrt/job/__init__.py); phases are there before
    import numpy as np

StreamHandle = Any
EventHandle = Any
ModuleHandle = Any
FunctionHandle = Any
Shape3 = tuple[int, int, int]

TENSOR_MAP_BYTES = 128
"""Bytes of what `Driver.tensor_map` gives; a kernel takes a pointer to it, ``const TensorMap *``."""


class Driver(Protocol):
    """One rank's device."""

    name: str
    """``cuda``, ``emulated`` or ``cpu``."""
    device_name: str
    """The device in words, for people."""
    device_id: str
    """Names the device: the same for two ranks of a node that share it."""
    architecture: str
    """What kernels are compiled for (``sm_80``, ``sm_90a``, ``emulated``); empty without kernels."""
    has_kernels: bool
    """Whether modules can be loaded; where not, host views of the memory serve NumPy instead."""
    multiprocessors: int
    """How many blocks run side by side, one on each; 0 where there are no kernels."""
    shared_memory: int
    """The most bytes of dynamic shared memory that a block may ask for; 0 where there are no kernels."""
    dlpack_device: tuple[int, int] | None
    """DLPack's name of where its memory is: (1, 0) for the host's, (2, n) for CUDA's GPU n; None: nowhere."""
    ledger: Ledger
    """What the memory that it gives is for."""

    def close(self) -> None:
        """Free all that is left and let the device go. Safe to call twice."""

    # memory
    def allocate(self, nbytes: int) -> int:
        """Device memory, aligned to 256 bytes or more, contents unspecified.

        Raises UserError, or MemoryError, where there is not so much; so do the other calls that allocate.
        """

    def free(self, pointer: int) -> None:
        """Free what ``allocate`` gave; the caller has synchronised with its users."""

    def free_memory(self) -> int:
        """Bytes that are free, for all that use the device."""

    def allocate_pinned(self, nbytes: int, write_only: bool = False) -> np.ndarray:
        """Page-locked host memory as uint8 (nbytes,), kept until ``close``.

        What the host writes to ``write_only`` memory passes its caches by, where a device has such.
        """

    def pin(self, block: np.ndarray, is_own: bool) -> None:
        """Page-lock host memory, uint8 (nbytes,), that the caller has mapped, until ``close``.

        What ``is_own`` counts as memory of this process; else another one has made and counted it.
        """

    def allocate_mapped(self, nbytes: int) -> tuple[np.ndarray, int]:
        """Memory of zeros that the host and kernels use at the same time, as uint8 (nbytes,), and the pointer
        for kernels; kept until ``close``."""

    def host_view(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Device memory as a NumPy array without a copy; only where ``has_kernels`` is false."""

    # memory of other processes on this machine
    def allocate_exportable(self, nbytes: int) -> int:
        """Device memory as ``allocate`` gives it, which `export_memory` takes; ``free`` frees it."""

    def export_memory(self, pointer: int) -> bytes:
        """Export this memory, the whole of an allocation, so that another process can import it.

        A GPU and the emulated device take any, the cpu device what ``allocate_exportable`` gave. It stays
        there until the others have released it. Raises ValueError for other pointers.
        """

    def import_memory(self, handle: bytes) -> int:
        """Return a pointer, in this process, to memory that another one has exported; once for each handle.

        Raises UserError where this device cannot reach it.
        """

    def release_memory(self, pointer: int) -> None:
        """Let go of what ``import_memory`` gave; the caller has synchronised with its users."""

    # copies
    def copy_to_device(self, pointer: int, host: np.ndarray, stream: StreamHandle) -> None:
        """Queue a copy of a contiguous host array to device memory."""

    def copy_to_host(self, host: np.ndarray, pointer: int, stream: StreamHandle) -> None:
        """Queue a copy from device memory into a contiguous host array."""

    def fill(self, pointer: int, byte: int, nbytes: int, stream: StreamHandle) -> None:
        """Queue setting ``nbytes`` bytes to ``byte``."""

    # streams and events
    def create_stream(self) -> StreamHandle:
        """Create a stream that does not wait for the default stream."""

    def synchronize_stream(self, stream: StreamHandle) -> None:
        """Wait until the stream has done all that was queued."""

    def synchronize(self) -> None:
        """Wait for the whole device."""

    def create_event(self, timing: bool) -> EventHandle:
        """Create an event; ``timing`` says whether ``elapsed`` will be asked of it."""

    def record(self, event: EventHandle, stream: StreamHandle) -> None:
        """Mark this place in the stream."""

    def wait(self, stream: StreamHandle, event: EventHandle) -> None:
        """Let the stream wait for the event's latest record (the host does not wait)."""

    def is_done(self, event: EventHandle) -> bool:
        """Return whether the stream has passed the event's latest record."""

    def synchronize_event(self, event: EventHandle) -> None:
        """Let the host wait for the event's latest record."""

    def elapsed(self, start: EventHandle, stop: EventHandle) -> float:
        """Seconds between two recorded timing events that are done."""

    # graphs
    def begin_capture(self, stream: StreamHandle) -> None:
        """Begin a graph: from now on, work queued on the stream is noted for the graph instead of done.

        A stream that is made to wait for an event recorded in the capture belongs to it from then on. The
        host arrays of copies are pinned ones. Until the capture ends, the same thread must not allocate,
        free or load, wait for such a stream or for the whole device, or launch a graph.
        """

    def end_capture(self, stream: StreamHandle) -> Callable[[StreamHandle], None]:
        """Return the graph, kept until ``close``: a callable that queues all of it on the stream it is given.

        A replay begins once its stream is there and the graph's last replay is over; the stream goes on when
        all of it is done. Raises RuntimeError after work that a capture forbids, or where the stream has not
        waited for all that joined; then, too, all of them can be used again.
        """

    def record_in_graph(self, event: EventHandle, stream: StreamHandle) -> None:
        """During a capture, mark this place in every replay, for ``elapsed`` once the replay is done.

        An event that ``record`` was given during a capture orders streams within the graph and no more.
        """

    # kernels
    def tensor_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        box: tuple[int, int, int, int],
    ) -> bytes:
        """Describe boxes of a four-dimensional bf16 array to kernels: 128 bytes, for kernels/gemm/tma.cuh.

        ``sizes`` and ``box`` are in elements, the contiguous dimension first. ``strides``, of the other
        three, are in bytes; they and the pointer are multiples of 16. In shared memory a box has rows of 128
        bytes, or of 64, their 16-byte chunks permuted. On a GPU from sm_90 on.
        """

    def window_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        corners: tuple[tuple[int, int], tuple[int, int]],
        box: tuple[int, int],
        step: int,
    ) -> bytes:
        """Describe windows on bf16 images (channels, x, y, n) to kernels: 128 bytes, for gemm/tma.cuh.

        ``sizes`` are in elements, the contiguous channels first; ``strides``, of the others, in bytes; they
        and the pointer are multiples of 16. Windows begin at every ``step``-th (at most 8) pixel, x first,
        from the first of ``corners`` (x, y) to that many pixels behind the last pixel: from -128 to 127. A
        copy takes ``box`` channels and pixels: 64 channels, a row of 128 bytes, permuted as `tensor_map` has
        it. On a GPU from sm_90 on.
        """

    def is_compiled(self, source: str, cache_dir: str) -> bool:
        """Return whether the cache has the compiled source, whole; thread-safe."""

    def compile(self, source: str, cache_dir: str) -> None:
        """Put the compiled source into the cache, whole or not at all; thread-safe."""

    def load_module(self, source: str, cache_dir: str) -> ModuleHandle:
        """Load compiled source, from the cache where it is there."""

    def function(self, module: ModuleHandle, name: str) -> FunctionHandle:
        """Return a kernel of a loaded module."""

    def launcher(
        self,
        function: FunctionHandle,
        grid: Shape3,
        block: Shape3,
        arguments: bytes,
        shared: int,
        overlaps: bool,
    ) -> Callable[[StreamHandle], None]:
        """Return a callable that launches the kernel with these packed arguments on the stream it is given.

        A kernel that ``overlaps`` waits by itself for the kernel before it in the stream, so that its blocks
        may be started before that one ends.
        """
