"""train.py with a bug: ``faulty.py PLACE RANK COUNT ARGUMENTS..``: on RANK a method raises at call COUNT."""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import Any

import train
from pyrt.job import Job, run

PLACES = {
    "between steps": ("nn.train.step_loop", "StepLoop", "_check"),
    "host exchange": ("pyrt.exchange.host", "HostExchange", "finish"),
    "device exchange": ("pyrt.exchange.device", "DeviceExchange", "finish"),
    "hierarchical exchange": ("pyrt.exchange.hierarchical", "HierarchicalExchange", "finish"),
    "peer capture": ("pyrt.exchange.peer", "PeerExchange", "finish"),
    "move": ("pyrt.redistribute.staged", "StagedMove", "finish"),
    "helper": ("nn.input.upload_queue", "UploadQueue", "_take"),
    "writer": ("nn.checkpoints.folder", "Folder", "add"),
}


def main(job: Job) -> int:
    if job.rank == rank:
        module, owner, name = PLACES[place]
        break_at(getattr(importlib.import_module(module), owner), name)
    return train.main(job)


def break_at(owner: type, name: str) -> None:
    right, calls = getattr(owner, name), itertools.count()

    def wrong(self: Any, *arguments: Any) -> Any:
        if next(calls) == count:
            raise ValueError("a bug on one rank")
        return right(self, *arguments)

    setattr(owner, name, wrong)


place, rank, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
del sys.argv[1:4]
run(main)
