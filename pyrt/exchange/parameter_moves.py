"""Moves one rank's parameters to and from shared ones: in kernels (kernels/comm/hogwild.cu), and in NumPy."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver, StreamHandle, sharing
from pyrt.kernels import REALS, KernelLibrary, blocks

VEC4 = 4
"""Numbers that a kernel's thread takes together: parameters are whole vec4s."""

MOST_STALE = 255
"""Pushes behind so many of others, and more, are counted together."""

SEEN, STALE, OWN_COUNTS = 1, 2, 3 + MOST_STALE
"""Places in `Places.own`, and their number."""

_THREADS = 256
_MOST_BLOCKS = 256

_CHUNK = 4096
"""Numbers that NumPy adds at once: the fewer they are, the shorter the moment in which another rank's get
lost, and the more calls there are."""


@dataclass(frozen=True)
class Places:
    """The arrays of one rank; all but the counts have as many numbers."""

    shared: DeviceArray
    words: DeviceArray
    """(`words_for`,) uint32, shared: each counts the pushes of all ranks, in the way in which numbers are
    added."""
    mine: DeviceArray
    before: DeviceArray
    """The shared numbers as this rank has last pulled them."""
    own: DeviceArray
    """(`OWN_COUNTS`,) uint32: the pushes of this rank; what the first of ``words`` was when it last pulled;
    from `STALE` on how many pushes came behind 0, 1, .. of others since the pull."""


def words_for(driver: Driver, numbers: int) -> int:
    """Return how many parts of so many numbers are counted: the blocks of the kernel, or NumPy's chunks."""
    return min(_MOST_BLOCKS, blocks(numbers, VEC4 * _THREADS)) if driver.has_kernels else _chunks(numbers)


def _chunks(numbers: int) -> int:
    return blocks(numbers, _CHUNK)


class Moves(Protocol):
    """Moves parameters, in the order of a stream."""

    def push(self, stream: StreamHandle) -> object:
        """Add mine - before to the shared numbers; what is there then becomes both.

        Where nobody has written since ``before``, ``mine`` is stored as it is, without rounding.
        """

    def pull(self, stream: StreamHandle) -> object:
        """Take the shared numbers."""

    def give(self, stream: StreamHandle) -> object:
        """Make this rank's numbers the shared ones."""


class DeviceMoves:
    """`Moves` in kernels; with ``atomic`` no push is lost."""

    def __init__(self, places: Places, atomic: bool) -> None:
        real, library = REALS[places.mine.dtype], KernelLibrary(places.mine.driver)
        push, copy = (
            library.kernel("comm/hogwild", name, REAL=real, ATOMIC=int(atomic))
            for name in ("push", "copy_to_both")
        )
        shape = (places.words.size,), (_THREADS,)
        vec4s, shared, mine, before = places.mine.size // VEC4, places.shared, places.mine, places.before
        self.push = push.bind(*shape, vec4s, shared, places.words, mine, before, places.own, MOST_STALE)
        self.pull = copy.bind(*shape, vec4s, shared, mine, before)
        self.give = copy.bind(*shape, vec4s, mine, shared, before)


class NodeLock:
    """A lock of the ranks of a node: of a file without a name. The system takes it from a rank that dies."""

    def __init__(self, descriptor: int) -> None:
        """Take the open file; `close` closes it."""
        self._descriptor = descriptor

    @classmethod
    def create(cls) -> tuple[NodeLock, bytes]:
        """Create one, and a handle for `opened` on other ranks."""
        file = sharing.create(0)
        return cls(file.descriptor), file.handle

    @classmethod
    def opened(cls, handle: bytes) -> NodeLock:
        """Open another rank's. Raises UserError where it cannot be reached."""
        return cls(sharing.open_shared(handle)[0])

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it for a moment."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close this rank's file. To be called once."""
        os.close(self._descriptor)


class HostMoves:
    """`Moves` in NumPy. Each chunk is added under the ``lock``, if there is one: NumPy has no atomic adds."""

    def __init__(self, places: Places, lock: NodeLock | None) -> None:
        self._shared, self._mine, self._before = (
            array.host_view() for array in (places.shared, places.mine, places.before)
        )
        self._words, self._own = places.words.host_view(), places.own.host_view()
        self._held = lock.held if lock is not None else nullcontext
        size, dtype = places.mine.size, places.mine.dtype
        starts = range(0, _chunks(size) * _CHUNK, _CHUNK)
        self._chunks = [slice(start, min(start + _CHUNK, size)) for start in starts]
        self._change, self._now = (np.empty(min(_CHUNK, size), dtype) for _ in range(2))
        self._is_other = np.empty(len(self._now), bool)

    def push(self, stream: StreamHandle) -> None:
        """See `Moves.push`."""
        for number, chunk in enumerate(self._chunks):
            word = self._words[number : number + 1]
            now = self._push(self._shared[chunk], self._mine[chunk], self._before[chunk], word)
            if number == 0:
                self._note(now)

    def _note(self, now: int) -> None:
        """Note a push, with which the first of the shared words has become ``now``."""
        own = self._own
        others = max(0, now - int(own[SEEN]) - 1)  # where counts were lost it may have fallen
        own[0] += 1
        own[SEEN] = now
        own[STALE + min(others, MOST_STALE)] += 1

    def _push(self, shared: np.ndarray, mine: np.ndarray, before: np.ndarray, word: np.ndarray) -> int:
        """Push a chunk, and add 1 to its count (1,): this is lost where numbers are. Return the count."""
        change, now, is_other = (array[: len(mine)] for array in (self._change, self._now, self._is_other))
        np.subtract(mine, before, out=change)
        changes = change.any()
        with self._held():
            count = word + 1
            np.copyto(now, shared)
            np.not_equal(now, before, out=is_other)
            np.add(now, change, out=now, where=is_other)
            np.copyto(now, mine, where=~is_other)
            if changes:  # else a store could undo what others have stored since
                np.copyto(shared, now)
            np.copyto(word, count)
        np.copyto(mine, now)
        np.copyto(before, now)
        return int(count[0])

    def pull(self, stream: StreamHandle) -> None:
        """See `Moves.pull`."""
        np.copyto(self._mine, self._shared)
        np.copyto(self._before, self._mine)

    def give(self, stream: StreamHandle) -> None:
        """See `Moves.give`."""
        np.copyto(self._shared, self._mine)
        np.copyto(self._before, self._mine)
