"""The network of a cluster: a switch in user space, and links to each node with a rate, a delay and a loss.

    node 0 --- TAP device | link | switch | link | TAP device --- node 1

A TAP device is a network card whose frames a process reads and writes. So every kernel that has them can do
this; `tc netem`, which can delay and lose packets too, is not in every kernel.

A frame leaves a node as fast as that node's link sends it, waits until the receiver's link is free, and is
there a delay later: a frame that the switch knows to be on its way already passes through without a second
transmission. A node may have no more than `AHEAD` seconds of frames on its link: then its kernel keeps the
next ones, and slows down its sockets, as before any network card.

It takes some 15 us of a core for a frame, whatever its length. So frames are long (`MTU`).
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

MTU = 61440
"""Bytes of a packet. At 1 Gbit/s the link sends one in 0.5 ms."""

AHEAD = 1e-3
"""Seconds of frames that a node may have handed to its link."""

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_ADDRESS_BYTES = 6
_FRAME_BYTES = MTU + 14


class Link(NamedTuple):
    """The link that joins a node to the switch."""

    gbit: float = 100.0
    """10^9 bit/s, in each direction."""
    delay: float = 0.0
    """Seconds from a node to another one."""
    loss: float = 0.0
    """The share of frames that do not arrive, drawn at random."""


def hardware_address(node: int) -> str:
    """Return the Ethernet address of a node, which says its number."""
    return f"02:00:00:00:00:{node:02x}"


def open_tap(name: str) -> int:
    """Make a TAP device in this network namespace; return its file descriptor, with which it goes."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


@dataclass
class _Port:
    """A node's end of its link."""

    tap: int
    is_cut: bool = False
    sent: float = 0.0
    """The time at which the last frame of the node has left it."""
    received: float = 0.0
    """The time at which the last frame for the node has passed its link, without the delay."""


class Switch:
    """Forwards frames between TAP devices; node n has the address `hardware_address(n)`."""

    def __init__(self, taps: list[int], link: Link) -> None:
        self.link = link
        self._ports = [_Port(tap) for tap in taps]
        self._random = random.Random(0)
        self._under_way: list[tuple[float, int, _Port, bytes]] = []
        self._count = 0

    def cut(self, node: int) -> None:
        """Cut the node's link: what is on its way is lost too. The node itself is not told."""
        self._ports[node].is_cut = True

    def join(self, node: int) -> None:
        """Mend the node's link."""
        self._ports[node].is_cut = False

    def run(self, control: int) -> None:
        """Forward frames until there is something to read from the file ``control``."""
        while control not in self._wait(control):
            self._deliver()
        self._deliver()

    def _wait(self, control: int) -> list[int]:
        """Wait until a frame is due, or a node whose link is free has one; take the latter."""
        soon = time.monotonic() + AHEAD
        readable = {port.tap: port for port in self._ports if port.sent < soon}
        events = [port.sent - AHEAD for port in self._ports if port.sent >= soon]
        events += [due for due, *_ in self._under_way[:1]]
        timeout = max(0.0, min(events) - time.monotonic()) if events else None
        ready, _, _ = select.select([control, *readable], [], [], timeout)
        for tap in ready:
            if tap in readable:
                self._take(readable[tap])
        return ready

    def _take(self, port: _Port) -> None:
        """Put a frame of this node on its link."""
        frame = os.read(port.tap, _FRAME_BYTES)
        seconds = len(frame) * 8e-9 / self.link.gbit
        port.sent = max(port.sent, time.monotonic()) + seconds
        for receiver in self._receivers(port, frame):
            if port.is_cut or self._random.random() < self.link.loss:
                continue
            receiver.received = max(port.sent, receiver.received + seconds)
            self._count += 1
            due = receiver.received + self.link.delay
            heapq.heappush(self._under_way, (due, self._count, receiver, frame))

    def _receivers(self, sender: _Port, frame: bytes) -> list[_Port]:
        """Return the port that the frame is for; all others if it is for all."""
        first, node = frame[0], frame[_ADDRESS_BYTES - 1]
        if first & 1:
            return [port for port in self._ports if port is not sender]
        return self._ports[node : node + 1]

    def _deliver(self) -> None:
        """Hand over the frames that are due."""
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            _, _, port, frame = heapq.heappop(self._under_way)
            if not port.is_cut:
                with suppress(OSError):  # the device is down, or its queue is full
                    os.write(port.tap, frame)
