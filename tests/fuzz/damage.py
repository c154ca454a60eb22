"""Changes that any file can suffer: bytes cut, changed, added; and what is no file of any format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

Case = tuple[str, bytes]

Making = tuple[str, Callable[[], bytes]]
"""A case that takes long to make, for those who take few of many."""


SIZES = (0, 1, 2, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
"""Of a dimension in 32 bits."""


EDGE = 130
"""Bytes at the ends of a file all of which are changed: records and headers."""


JUNK = {
    "empty": b"",
    "zero bytes": bytes(100),
    "all ones": b"\xff" * 100,
    "a web page": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "a line": b"\n",
    "the start of gzip": b"\x1f\x8b",
    "the start of a zip": b"PK\x03\x04",
    "an empty zip": b"PK\x05\x06" + bytes(18),
}


NAMES = (
    *(
        "../{}",
        "/etc/{}",
        "a/b/{}",
        "./{}",
        "C:\\{}",
        "..\\{}",
        "{}\0",
        "{}\0.npy",
        "\0{}",
        "{}/",
        "",
        "/",
        ".npy",
    ),
    *("{}.npy", "{}\n", "\x1b[31m{}", "é{}", "日本{}", "x" * 60_000, "W", "b", "W0", "W9", "W²", "b٣"),
    *("x_train", "x_train.npy.npy", "y_test.npy/"),
)
"""Odd names of an array; {} is the right one."""


def damaged(data: bytes) -> Iterator[Case]:
    """Cut, with each byte changed in one way, and longer; of a long middle a few places."""
    for place in range(len(data)):
        if EDGE <= place < len(data) - EDGE and place % 13:
            continue
        yield f"cut to {place}", data[:place]
        for value in (data[place] ^ 0xFF, data[place] ^ (1 << place % 8)):
            yield f"byte {place} set to {value}", patched(data, place, bytes([value]))
    for tail in (b"\0", b"\xff" * 64, data):
        yield f"with {len(tail)} bytes behind", data + tail
        yield f"with {len(tail)} bytes before", tail + data


def every_byte(data: bytes) -> Iterator[Case]:
    """Each left out, twice, with each bit turned, smallest and largest."""
    for place, byte in enumerate(data):
        yield f"without byte {place}", data[:place] + data[place + 1 :]
        yield f"twice byte {place}", data[: place + 1] + data[place:]
        for value in (0x00, 0xFF, *(byte ^ (1 << bit) for bit in range(8))):
            yield f"byte {place} set to {value}", patched(data, place, bytes([value]))


def patched(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self._path, "w")
