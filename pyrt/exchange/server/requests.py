"""Sends and receives between two ranks, the other of which may have died."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from pyrt.job import Job
from pyrt.job.ending import is_loss


class Requests:
    """Sends and receives. In a job that survives its ranks, a dead one sends nothing, and raises no error."""

    def __init__(self, job: Job, comm: MPI.Comm) -> None:
        self._survives, self._comm = job.survives, comm

    def send(self, message: np.ndarray, rank: int, tag: int) -> MPI.Request:
        """Begin to send the bytes of a contiguous array."""
        return self._begun(lambda: self._comm.Isend([message, message.nbytes, MPI.BYTE], rank, tag))

    def receive(self, message: np.ndarray, rank: int, tag: int) -> MPI.Request:
        """Begin to receive them."""
        return self._begun(lambda: self._comm.Irecv([message, message.nbytes, MPI.BYTE], rank, tag))

    def has_come(self, request: MPI.Request) -> bool:
        """Return whether a message has just come; once for each."""
        return request != MPI.REQUEST_NULL and self._has_ended(request, of_dead=False)

    def has_gone(self, request: MPI.Request) -> bool:
        """Return whether no message is on its way any more: nobody waits for one to a dead rank."""
        return self._has_ended(request, of_dead=True)

    def _has_ended(self, request: MPI.Request, of_dead: bool) -> bool:
        try:
            return request.Test()
        except MPI.Exception as error:
            self._require_loss(error)
            return of_dead

    def _begun(self, begin: Callable[[], MPI.Request]) -> MPI.Request:
        try:
            return begin()
        except MPI.Exception as error:
            self._require_loss(error)
            return MPI.REQUEST_NULL

    def _require_loss(self, error: MPI.Exception) -> None:
        """Raise the error again unless it says that a rank is dead, and the job survives that."""
        if not (self._survives and is_loss(error)):
            raise error
