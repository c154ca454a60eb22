"""What a driver's memory is for: each allocation is charged to a row, as phases are charged time.

A driver keeps one, and charges what it allocates to the row that is named where it is called::

    with driver.ledger.of("activations", layer):
        array = DeviceArray.empty(driver, (rows, columns), dtype)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Row(NamedTuple):
    """What memory is for, and of which layer, where it is one layer's."""

    what: str
    layer: int | None = None


OTHER = Row("other")
"""Of what nobody names."""


class Ledger:
    """Bytes that a driver has allocated and not freed, as they were asked for, by rows."""

    def __init__(self) -> None:
        self.device: Counter[Row] = Counter()
        self.pinned: Counter[Row] = Counter()
        """Page-locked host memory, and such that kernels use too."""
        self._row = OTHER
        self._blocks: dict[int, tuple[Row, int]] = {}

    @contextmanager
    def of(self, what: str, layer: int | None = None) -> Iterator[None]:
        """Charge what is allocated in the block to this row; within, another block may name another one."""
        outer, self._row = self._row, Row(what, layer)
        try:
            yield
        finally:
            self._row = outer

    def allocated(self, pointer: int, nbytes: int) -> None:
        """Device memory."""
        self._blocks[pointer] = self._row, nbytes
        self.device[self._row] += nbytes

    def freed(self, pointer: int) -> None:
        """Note that what was ``allocated`` at this pointer is freed."""
        row, nbytes = self._blocks.pop(pointer)
        self.device[row] -= nbytes

    def allocated_pinned(self, nbytes: int) -> None:
        """Host memory; it is kept until the driver closes."""
        self.pinned[self._row] += nbytes
