"""Memory for what is timed, all of it given back."""

from __future__ import annotations

from pyrt.driver import Driver


class Lender:
    """A driver whose memory is zeros, and given back altogether."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._lent = driver, set[int]()
        self._stream = driver.create_stream()

    def __getattr__(self, name: str) -> object:
        return getattr(self._driver, name)

    def allocate(self, nbytes: int) -> int:
        pointer = self._driver.allocate(nbytes)
        self._driver.fill(pointer, 0, nbytes, self._stream)
        self._driver.synchronize_stream(self._stream)
        self._lent.add(pointer)
        return pointer

    def free(self, pointer: int) -> None:
        self._lent.remove(pointer)
        self._driver.free(pointer)

    def close(self) -> None:
        """Free all that is still lent."""
        self._driver.synchronize()
        for pointer in self._lent:
            self._driver.free(pointer)
        self._lent.clear()
