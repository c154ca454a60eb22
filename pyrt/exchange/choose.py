"""Which exchange a job takes where the user names none: by what is there, tried, and agreed by all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from mpi4py import MPI

from pyrt import redistribute
from pyrt.arrays import DeviceArray
from pyrt.devices import sharing
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange import device
from pyrt.exchange.peer import MOST_RANKS
from pyrt.job import Job


@dataclass(frozen=True)
class ExchangeChoice:
    """The exchange of a job."""

    name: str
    why: str
    """Empty where the user named it."""
    job: Job
    """The ranks that exchange."""
    node: MPI.Comm
    """Those of them that count as those of this rank's node."""
    made: tuple[MPI.Comm, ...] = field(default=(), compare=False)
    """Communicators that were made for this choice."""

    @property
    def redistribution(self) -> str:
        """How matrices move among these ranks: one of `pyrt.redistribute`."""
        if self.job.size == 1:
            return "local"
        return self.name if self.name in redistribute.CHOICES else "host"

    def close(self) -> None:
        """Free what was made for this choice, which nobody uses any more. Collective."""
        for comm in self.made:
            comm.Free()

    def among(self, color: int) -> ExchangeChoice:
        """Make the same choice among the ranks that give the same ``color``. Collective.

        If these are on one node, they need not leave it.
        """
        comm = self.job.comm.Split(color, self.job.rank)
        node, machine = (comm.Split(one.bcast(self.job.rank)) for one in (self.node, self.job.node))
        job = replace(self.job, comm=comm, node=machine)
        name = "local" if comm.size == 1 else self.name
        if name in ("peer", "hierarchical"):
            smallest = min(comm.allgather(node.size))
            name = "peer" if smallest == comm.size else "hierarchical" if smallest > 1 else "host"
        return ExchangeChoice(name, self.why, job, node, (comm, node, machine))


def choose(asked: str, driver: Driver, job: Job, ranks_per_node: int | None = None) -> ExchangeChoice:
    """Choose what was asked for or, for ``auto``, the fastest that works here. Collective, same everywhere.

    So many consecutive ranks count as a node, if they are on one. Raises UserError, on all ranks, where they
    are not.
    """
    node = job.node if ranks_per_node is None else _nodes_of(job, ranks_per_node)
    made = () if ranks_per_node is None else (node,)
    if job.size == 1:
        return ExchangeChoice("local", "", job, node, made)
    name, why = (asked, "") if asked != "auto" else _fastest(driver, job, node)
    return ExchangeChoice(name, why, job, node, made)


def _fastest(driver: Driver, job: Job, node: MPI.Comm) -> tuple[str, str]:
    """Return the fastest exchange that works here, and the reason for it. Collective."""
    if not driver.has_kernels:
        return "host", "the CPU has no memory of its own"
    sizes = job.comm.allgather(node.size)
    smallest, largest = min(sizes), max(sizes)
    obstacle = _no_peers(driver, job, node, largest)
    if not obstacle and largest == job.size:
        return "peer", "all GPUs reach each other's memory"
    if not obstacle and smallest > 1:
        return "hierarchical", "the GPUs of a node reach each other's memory"
    obstacle = obstacle or ("nodes have one rank each" if largest == 1 else "a node has one rank")
    if device.verdict(job, driver).is_proven:
        return "device", f"{obstacle}; MPI takes device buffers here"
    return "host", f"{obstacle}; no probe has found that MPI takes device buffers"


def _nodes_of(job: Job, ranks: int) -> MPI.Comm:
    node = job.comm.Split(job.rank // ranks, job.rank)
    real = node.allgather(job.node.bcast(job.rank))
    with job.agree():
        if len(set(real)) > 1:
            raise UserError(f"--ranks-per-node {ranks}: rank {job.rank} is on another node than its fellows")
    return node


def _no_peers(driver: Driver, job: Job, node: MPI.Comm, largest: int) -> str:
    """Why some ranks of a node cannot use each other's memory, or should not; empty where all can."""
    reason = ""
    if largest > MOST_RANKS[-1]:
        reason = f"more than {MOST_RANKS[-1]} ranks on a node"
    elif sharing(driver, job):  # a kernel that waits for another one keeps it from the GPU meanwhile
        reason = "ranks share a GPU"
    else:
        reason = _try_peers(driver, node)
    return next((text for text in job.comm.allgather(reason) if text), "")


def _try_peers(driver: Driver, node: MPI.Comm) -> str:
    """Read a number of each other rank's memory; why that fails, or nothing."""
    mine = DeviceArray.from_host(driver, np.array([node.rank], np.int32))
    reason = ""
    for rank, handle in enumerate(node.allgather(mine.export())):
        if rank == node.rank or reason:
            continue
        try:
            theirs = DeviceArray.imported(driver, handle, (1,), np.int32)
        except UserError as error:
            reason = str(error).split(":")[0]
            continue
        if theirs.to_host()[0] != rank:
            reason = f"{driver.device_name} reads wrong numbers in another GPU's memory"
        driver.release_memory(theirs.pointer)
    node.Barrier()
    driver.free(mine.pointer)
    return reason
