"""Counts what a rank gives MPI to send, to compare with the prediction of nn/autotune/cost.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time only once MPI has started: they load NumPy
    from nn.app.options import Options
    from nn.parallel.plan import Plan
    from pyrt.job import Job


class CountingComm:
    """A communicator that adds up what this rank gives to the calls that move numbers."""

    def __init__(self, comm: Any, counted: Counter[str]) -> None:
        self._comm, self._counted = comm, counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Dup(self) -> CountingComm:
        return CountingComm(self._comm.Dup(), self._counted)

    def Split(self, *arguments: Any) -> CountingComm:
        return CountingComm(self._comm.Split(*arguments), self._counted)

    def Ialltoallv(self, send: Any, receive: Any) -> Any:
        others = [count for rank, count in enumerate(send[1]) if rank != self._comm.rank]
        self._counted["elements"] += sum(others)
        self._counted["messages"] += sum(count > 0 for count in others)
        return self._comm.Ialltoallv(send, receive)

    def Iallgatherv(self, send: Any, message: Any) -> Any:
        own, others = message[1][self._comm.rank], self._comm.size - 1
        self._counted["elements"] += own * others
        self._counted["messages"] += others if own else 0
        return self._comm.Iallgatherv(send, message)

    def Iallreduce(self, send: Any, receive: Any) -> Any:
        ring = 2 * (self._comm.size - 1)
        self._counted["elements"] += ring * send.size / self._comm.size
        self._counted["messages"] += ring
        return self._comm.Iallreduce(send, receive)


def sent_in_run(options: Options, plan: Plan, folder: Path, job: Job) -> Counter[str]:
    """Elements and messages that this rank sends in a run under a plan, whose file is left in the folder.

    Only of ways through host memory: what goes over peer memory MPI does not see. Collective.
    """
    from nn.parallel import plan_files
    from train import train

    path, counted = folder / "plan.json", Counter[str]()
    if job.rank == 0:
        plan_files.save(path, plan)
    train(replace(options, plan=str(path)), replace(job, comm=CountingComm(job.comm, counted)))  # type: ignore[arg-type]
    return counted
