"""The end of a leg on the two servers of a shard: the tail waits until it has applied all that the head has.

The last push of a worker that has died has no answer, for which the head would have waited for the tail.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from pyrt.exchange.server.requests import Requests


class ChainEnd:
    """The message of a head to its tail that it has applied all pushes of a leg."""

    def __init__(self, requests: Requests, before: int | None, behind: int | None, tag: int) -> None:
        """``before`` is the rank of the head, on its tail; ``behind`` that of the tail, on its head."""
        self._requests, self._before, self._behind, self._tag = requests, before, behind, tag
        self._version = np.zeros(1, np.int64)
        self._request = MPI.REQUEST_NULL
        self._is_told = False

    def begin(self) -> None:
        """Begin a leg."""
        self._is_told = False
        if self._before is not None:
            self._request = self._requests.receive(self._version, self._before, self._tag)

    def is_over(self, version: int) -> bool:
        """Return whether a server whose shard has come to this ``version`` need not wait for the other one.

        To be called once all that came is applied: the head then tells its tail.
        """
        if self._before is not None:
            self._is_told = self._is_told or self._requests.has_come(self._request)
            return self._is_told and version >= self._version[0]
        if self._behind is not None and not self._is_told:
            self._is_told = True
            self._version[0] = version
            self._request = self._requests.send(self._version, self._behind, self._tag)
        return self._behind is None or self._requests.has_gone(self._request)

    def lose(self, rank: int) -> None:
        """Go on without a server that has died."""
        if rank in (self._before, self._behind):
            self._before = self._behind = None
            self._request = MPI.REQUEST_NULL
