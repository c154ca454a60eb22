"""``--check-each``: each operation of the first steps also runs in NumPy, on the same inputs, on any device.

The memory of an operation is copied to the host, then the operation runs on both. The first one whose results
differ by more than its tolerance ends the run with its name. Times mean nothing in such a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nn.launch.arrays_of import arrays_of, with_arrays
from nn.launch.gemm.components import Components
from nn.launch.work import Work
from nn.program.operations import Operation
from pyrt.arrays import DeviceArray
from pyrt.driver import StreamHandle
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.exchange import QueueWork

TOLERANCES = {"float32": 1e-4, "float64": 1e-12, "tf32": 2e-2, "bf16": 1e-1}
"""Largest difference allowed, relative to the operation's largest change; float32 by ``--math``."""

_ROUNDINGS = 4


class OperationIsOff(UserError):
    """An operation gives other numbers than NumPy does, on this rank."""

    code = 1


class _Mirror(CpuDriver):
    """Host memory in the place of a device's: what lay at a pointer there is found at it here."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, np.ndarray] = {}
        """By pointer, uint8 (n,); no two overlap."""

    def host_view(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        for start, block in self.blocks.items():
            if start <= pointer < start + max(1, len(block)):
                nbytes = int(np.prod(shape)) * dtype.itemsize
                return block[pointer - start :][:nbytes].view(dtype).reshape(shape)
        return super().host_view(pointer, shape, dtype)


class CheckedOperation:
    """An operation, and the same in NumPy on copies of its arrays."""

    def __init__(self, operation: Operation, run: QueueWork, steps: int, tolerance: float) -> None:
        """``run`` queues the operation on a stream, or computes it; it is checked so many times."""
        self._operation, self._run, self._left, self._tolerance = operation, run, steps, tolerance
        self._driver = operation.writes[0].driver
        self._mirror = _Mirror()
        self._work: Work = with_arrays(operation.work, lambda array: replace(array, driver=self._mirror))
        self._spans = _merged_spans(arrays_of(operation.work))

    def __call__(self, stream: StreamHandle) -> None:
        """Run both; raise OperationIsOff where they differ."""
        if not self._left:
            self._run(stream)
            return
        self._left -= 1
        self._driver.synchronize()
        before = {start: self._download(start, stop) for start, stop in self._spans}
        self._run(stream)
        self._driver.synchronize()
        self._mirror.blocks = before
        old = self._copies()
        with np.errstate(all="ignore"):
            self._work.in_numpy()()
        expected = self._copies()
        self._mirror.blocks = {start: self._download(start, stop) for start, stop in self._spans}
        in_place = {array.pointer for array in self._work.reads}
        off = [
            _difference(found, truth, before if _pointer(result) in in_place else np.zeros_like(before))
            for result, found, truth, before in zip(
                self._work.results, self._copies(), expected, old, strict=True
            )
        ]
        if not all(difference <= self._tolerance for difference in off):
            arrays = ", ".join(
                f"{array.shape} {array.dtype}: {difference:.1e}"
                for array, difference in zip(expected, off, strict=True)
            )
            raise OperationIsOff(
                f"--check-each: {self._operation.name} differs from NumPy by more than "
                f"{self._tolerance:g} of the largest change: {arrays}"
            )

    def _copies(self) -> list[np.ndarray]:
        """Copies of the results as they are in the mirror."""
        return [
            result.to_float32().copy() if isinstance(result, Components) else result.host_view().copy()
            for result in self._work.results
        ]

    def _download(self, start: int, stop: int) -> np.ndarray:
        host = np.empty(stop - start, np.uint8)
        stream = self._driver.create_stream()
        self._driver.copy_to_host(host, start, stream)
        self._driver.synchronize_stream(stream)
        return host


def _difference(found: np.ndarray, expected: np.ndarray, before: np.ndarray) -> float:
    """Return the largest difference relative to the largest change from ``before``.

    A few roundings of a number do not count: a small change of a large number has no more digits.
    """
    eps = np.finfo(found.dtype).eps if found.dtype.kind == "f" else 0.0
    found, expected, before = (array.astype(np.float64) for array in (found, expected, before))
    if not expected.size:
        return 0.0
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        delta = np.abs(found - expected) - _ROUNDINGS * eps * np.abs(expected)
        change = np.abs(expected - before)
    delta = np.where(same, 0.0, np.where(np.isnan(delta), np.inf, delta))  # NaN where one alone is
    largest = change[np.isfinite(change)].max(initial=0.0)
    return max(0.0, float(delta.max()) / (largest or 1.0))


def _pointer(result: DeviceArray | Components) -> int:
    return result.array.pointer if isinstance(result, Components) else result.pointer


def _merged_spans(arrays: Iterator[DeviceArray]) -> list[tuple[int, int]]:
    """List the bytes that the arrays lie in, from a pointer to behind the last; merge those that overlap.

    Spans that only touch stay apart: they may be two allocations, and CUDA copies from one at a time.
    """
    spans = sorted({(array.pointer, array.end) for array in arrays if array.size})
    merged: list[tuple[int, int]] = []
    for start, stop in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged
