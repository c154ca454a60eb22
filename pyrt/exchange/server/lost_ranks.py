"""The ranks that have died, and the servers that take their place; ends the job where none can."""

from __future__ import annotations

from mpi4py import MPI

from pyrt.exchange.server.roles import Roles
from pyrt.job import Job
from pyrt.job.survivors import FailureWatch


class LostRanks:
    """The ranks of an exchange that have died, as this rank knows it."""

    def __init__(self, job: Job, comm: MPI.Comm, roles: Roles, kept: int) -> None:
        """``comm`` carries all messages; each shard is on ``kept`` servers."""
        self._roles, self._kept = roles, kept
        self._watch = FailureWatch(comm) if job.survives else None

    def newly_lost(self) -> list[int]:
        """Return the ranks whose death this rank has learned of since the last call.

        Ends the job if it cannot go on without them.
        """
        found = self._watch.newly_lost() if self._watch is not None else []
        if found and self._watch is not None and (reason := self._why_it_ends()):
            self._watch.end(reason)
        return found

    def holders(self, shard: int) -> list[int]:
        """Return the living servers that hold a shard, the head first."""
        return [rank for rank in self._roles.chain(shard, self._kept) if rank not in self._lost]

    @property
    def _lost(self) -> set[int]:
        return self._watch.lost if self._watch is not None else set()

    def _why_it_ends(self) -> str:
        """Return why the job cannot go on; empty where it can."""
        if 0 in self._lost:
            return "rank 0, which has the files and grants the steps, has died"
        for shard in range(self._roles.servers):
            if not self.holders(shard):
                more = "" if self._kept > 1 else " (--shards-kept 2 keeps each on two)"
                return f"the servers with shard {shard} of the parameters have died{more}"
        if self._lost >= set(range(self._roles.servers, self._roles.ranks)):
            return "all workers have died"
        return ""
