"""The three streams of a rank: copies up, kernels, and copies down run beside each other."""

from __future__ import annotations

from pyrt.driver import Driver


class Streams:
    """``upload``, ``compute`` and ``download`` of one device.

    What one stream needs of another is said with an event: ``record`` on the one, ``wait`` on the other.
    """

    def __init__(self, driver: Driver) -> None:
        self.upload = driver.create_stream()
        self.compute = driver.create_stream()
        self.download = driver.create_stream()
