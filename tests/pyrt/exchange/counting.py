"""A communicator that notes what goes through it."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI


class CountingComm:
    """MPI's communicator, and notes of the gradients and parameters that go through it."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.notes: list[tuple[str, int, int]] = []
        """Calls, with the bytes that this rank gives the others and those that it takes from them; a sum of n
        numbers counts n each."""

    def Gather(self, mine: np.ndarray, gathered: np.ndarray | None, root: int) -> None:
        self.notes.append(
            ("Gather", mine.nbytes, 0) if gathered is None else ("Gather", 0, gathered[1:].nbytes)
        )
        self._comm.Gather(mine, gathered, root)

    def Bcast(self, array: np.ndarray, root: int) -> None:
        given = array.nbytes if self.rank == root else 0
        self.notes.append(("Bcast", given, array.nbytes - given))
        self._comm.Bcast(array, root)

    def Allreduce(self, mine: object, summed: np.ndarray) -> None:
        self.notes.append(("Allreduce", summed.nbytes, summed.nbytes))
        self._comm.Allreduce(mine, summed)

    def Iallreduce(self, mine: np.ndarray, summed: np.ndarray) -> Any:
        self.notes.append(("Iallreduce", mine.nbytes, summed.nbytes))
        return self._comm.Iallreduce(mine, summed)

    def Dup(self) -> CountingComm:
        """A communicator whose calls are noted here, too."""
        copy = CountingComm(self._comm.Dup())
        copy.notes = self.notes
        return copy

    def Free(self) -> None:
        self._comm.Free()

    def Ialltoallv(self, given: list[Any], taken: list[Any]) -> Any:
        self.notes.append(("Ialltoallv", self._to_others(given), self._to_others(taken)))
        return self._comm.Ialltoallv(given, taken)

    def Iallgatherv(self, given: object, taken: list[Any]) -> Any:
        """In place: what this rank gives is its part of what it takes, and goes to each of the others."""
        assert given is MPI.IN_PLACE
        _, counts, _, kind = taken
        mine = counts[self.rank] * kind.Get_size() * (self.size - 1)
        self.notes.append(("Iallgatherv", mine, self._to_others(taken)))
        return self._comm.Iallgatherv(given, taken)

    def _to_others(self, message: list[Any]) -> int:
        """Bytes of a message of a part for each rank, but for this one's own."""
        _, counts, _, kind = message
        return (sum(counts) - counts[self.rank]) * kind.Get_size()
