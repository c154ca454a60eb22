"""A job that goes on without ranks that have died, where MPI has user-level failure mitigation (ULFM).

Bland et al., Post-failure recovery of MPI communication capability, 2013: a call between two ranks fails only
if one of them is dead, and each rank can ask which are. MPI's collective calls may fail on some ranks and end
on others, or never. So here ranks gather and spread by messages with rank 0, which drops those that have
died: no such call fails. The job cannot go on without rank 0.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from pyrt.errors import UserError
from pyrt.job.ending import end_from_thread, is_loss, print_error, program_name

if TYPE_CHECKING:
    from mpi4py import MPI

LOOK = 0.1
"""Seconds between two looks at who is dead."""

_ENABLED = "OMPI_MCA_mpi_ft_enable"
"""The environment variable that mpirun --with-ft ulfm sets."""

_TAG = 1

_LAST_WORDS = 5.0
"""Seconds in which the first of the ranks that are left says why the job ends, and ends it."""


_LAST_LOOK = 0.2
"""Seconds in which the others receive rank 0's last message."""


class RankLost(Exception):
    """The one rank that a call needs has died. All ranks that are left raise it."""


def require_mitigation(option: str) -> None:
    """Raise UserError, which names the option, unless this MPI lets the others live when a rank dies."""
    from mpi4py import MPI

    is_open_mpi = MPI.get_vendor()[0] == "Open MPI"
    if not (is_open_mpi and os.environ.get(_ENABLED, "").lower() in ("1", "true", "yes")):
        raise UserError(
            f"{option}: needs an MPI with user-level failure mitigation, as Open MPI 5 started by mpirun "
            "--with-ft ulfm; with others use --checkpoint, and --resume when a rank has died"
        )


class FailureWatch:
    """Tells which ranks of a communicator have died."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._next = 0.0
        self.lost: set[int] = set()

    def newly_lost(self) -> list[int]:
        """Return the ranks that have died since the last call, if it is time for a look."""
        now = time.monotonic()
        if now < self._next:
            return []
        self._next = now + LOOK
        failed = self._comm.Get_failed()
        if failed.size == len(self.lost):
            return []
        found = set(failed.Translate_ranks(None, self._comm.group)) - self.lost
        self.lost |= found
        return sorted(found)

    def end(self, reason: str) -> NoReturn:
        """End the job: the first rank that lives says why."""
        living = (rank for rank in range(self._comm.size) if rank not in self.lost)
        if self._comm.rank == next(living):
            print_error(program_name(), f"{reason}; --resume goes on from the last checkpoint")
        else:
            time.sleep(_LAST_WORDS)
        end_from_thread(1)


class Survivors:
    """The collective calls of a communicator, among those of its ranks that live.

    Ranks keep their order, and get new numbers when some are dropped; `members` has their original ones.
    Other attributes are those of the whole communicator.
    """

    def __init__(self, comm: MPI.Comm, pause: Callable[[], None]) -> None:
        """Collective. ``pause`` waits a little."""
        self._whole, self._comm, self._pause = comm, comm.Dup(), pause
        self._watch = FailureWatch(self._comm)
        self._me = comm.rank
        self.members = list(range(comm.size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    @property
    def rank(self) -> int:
        return self.members.index(self._me)

    @property
    def size(self) -> int:
        return len(self.members)

    def allgather(self, mine: Any) -> list[Any]:
        """Return what all give, in their order."""
        return self._spread(self._gathered(mine), lambda found: found)

    def gather(self, mine: Any, root: int = 0) -> list[Any] | None:
        """Return the same on rank 0, None on others."""
        found = self._gathered(mine)
        self._spread(None, lambda _: None)
        return found

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        """Return what rank 0 gives."""
        self._gathered(None)
        return self._spread(value, lambda found: found)

    def scatter(self, values: Sequence[Any] | None, root: int = 0) -> Any:
        """Return the one of rank 0's values that is for this rank."""
        whole = dict(zip(self.members, values, strict=True)) if values is not None else None
        self._gathered(None)
        return self._spread(whole, lambda found: found[self._me])

    def allreduce(self, mine: Any, op: MPI.Op | None = None) -> Any:
        """Return the sum of what all give, or what another operation makes of it, in their order."""
        first, *others = self.allgather(mine)
        for other in others:
            first = op(first, other) if op is not None else first + other
        return first

    def barrier(self) -> None:
        """Wait for all."""
        self.allgather(None)

    def Ibarrier(self) -> MPI.Request:
        """Wait for all ranks; return a request that is complete."""
        from mpi4py import MPI

        self.barrier()
        return MPI.REQUEST_NULL

    def Bcast(self, message: Any, root: int = 0) -> None:
        """Give the bytes of one rank's contiguous array, which may come with its type, to all.

        Raises RankLost, on all, if it has died.
        """
        array = message[0] if isinstance(message, (list, tuple)) else message
        content, giver = memoryview(array).cast("B"), self.members[root]
        found = self._gathered(bytes(content) if self._me == giver else None)
        value = next((one for one in found if one is not None), None) if found is not None else None
        value = self._spread(value, lambda found: found)
        if value is None:
            raise RankLost
        if self._me != giver:
            content[:] = value

    def leave(self, code: int) -> NoReturn:
        """End this process, once all that are left have come here.

        Without MPI_Finalize: Open MPI 5.0.11's may wait for a rank that has died meanwhile, for ever.
        """
        self.barrier()
        with suppress(OSError):  # nobody need listen
            sys.stdout.flush()
            sys.stderr.flush()
        if self._me == 0:  # the others still read what it has sent
            time.sleep(_LAST_LOOK)
        os._exit(code)

    def _gathered(self, mine: Any) -> list[Any] | None:
        """Gather on rank 0, which drops ranks that have died; None on others."""
        if self._me > 0:
            self._send(0, mine)
            return None
        found = {0: mine}
        for rank in self.members[1:]:
            found.update(self._receive(rank))
        self.members = list(found)
        return list(found.values())

    def _spread(self, value: Any, mine: Callable[[Any], Any]) -> Any:
        """Give rank 0's value to all, with who is left; return this rank's part of it."""
        if self._me == 0:
            for rank in self.members[1:]:
                self._send(rank, (self.members, value))
            return mine(value)
        self.members, found = self._receive(0)[0]
        return mine(found)

    def _send(self, rank: int, value: Any) -> None:
        """Send an object; to a dead rank, nothing."""
        from mpi4py import MPI

        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        try:
            request = self._comm.Isend([content, MPI.BYTE], rank, _TAG)
            while not request.Test():
                if self._is_lost(rank):
                    return
                self._pause()
        except MPI.Exception as error:
            if not is_loss(error):
                raise

    def _receive(self, rank: int) -> dict[int, Any]:
        """Receive an object, as {rank: object}; from a dead rank, nothing."""
        from mpi4py import MPI

        try:
            while (message := self._comm.Improbe(rank, _TAG, status := MPI.Status())) is None:
                if self._is_lost(rank):
                    return {}
                self._pause()
            content = bytearray(status.Get_count(MPI.BYTE))
            request = message.Irecv([content, MPI.BYTE])
            while not request.Test():
                self._pause()
        except MPI.Exception as error:
            if not is_loss(error):
                raise
            self._is_lost(rank)
            return {}
        return {rank: pickle.loads(content)}

    def _is_lost(self, rank: int) -> bool:
        self._watch.newly_lost()
        if 0 in self._watch.lost:
            self._watch.end("rank 0, which has the files, has died")
        return rank in self._watch.lost
