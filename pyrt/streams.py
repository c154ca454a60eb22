"""The streams of a rank: copies up, kernels, some of these beside the others, and copies down."""

from __future__ import annotations

from pyrt.driver import Driver, StreamHandle


class Streams:
    """``upload``, ``compute``, ``beside`` and ``download`` of one device.

    What one stream needs of another is said with an event: ``record`` on the one, ``wait`` on the other.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.upload = driver.create_stream()
        self.compute = driver.create_stream()
        self.beside = driver.create_stream()
        self.download = driver.create_stream()

    @property
    def by_name(self) -> dict[str, StreamHandle]:
        """The streams by their names here."""
        return {name: stream for name, stream in vars(self).items() if name != "driver"}
