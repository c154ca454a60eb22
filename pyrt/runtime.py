"""What a program works with on one rank: its job, its device, streams, phases; sums of arrays over ranks.

    with pyrt.start() as runtime:
        x = DeviceArray.from_host(runtime.driver, numbers)
        runtime.allreduce(x)

The program may be started by mpirun, or by itself. Whatever ends the block on one rank ends all of them: an
exception prints its traceback and ends the job; a UserError that all ranks agree on prints one line and the
exit code is 2.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from pyrt.allreduce import AllReduce
from pyrt.arrays import DeviceArray
from pyrt.devices import Device, open_device
from pyrt.driver import Driver
from pyrt.exchange.choose import ExchangeChoice, choose
from pyrt.job import Job, session
from pyrt.phases import Phases
from pyrt.streams import Streams


@dataclass(frozen=True)
class Runtime:
    """One rank's job, device and phases."""

    job: Job
    device: Device
    phases: Phases

    @property
    def driver(self) -> Driver:
        return self.device.driver

    @cached_property
    def streams(self) -> Streams:
        """The three streams of this rank: upload, compute, download."""
        return Streams(self.driver)

    def warn(self, line: str) -> None:
        """Print a warning, on rank 0."""
        if self.job.rank == 0:
            print(f"warning: {line}", flush=True)

    def choose_exchange(self, name: str = "auto", ranks_per_node: int | None = None) -> ExchangeChoice:
        """Choose how arrays are summed over ranks: as named or, for ``auto``, the fastest that works here.

        Collective. Raises UserError, on all ranks, where so many ranks are not on one node.
        """
        return choose(name, self.driver, self.job, ranks_per_node)

    def make_allreduce(self, array: DeviceArray, exchange: str = "auto") -> AllReduce:
        """Make the sum of an array (n,) over ranks, in its place, to be used any number of times.

        Collective. Raises UserError, on all ranks, where that exchange cannot work here.
        """
        return AllReduce(self.driver, self.streams, self.phases, self.choose_exchange(exchange), array)

    def allreduce(self, array: DeviceArray, exchange: str = "auto") -> None:
        """Sum an array (n,) over ranks, in its place; it is there when this returns. Collective.

        To sum the same array many times, or beside other work, `make_allreduce` once.
        """
        made = self.make_allreduce(array, exchange)
        made()
        self.driver.synchronize_stream(self.streams.compute)
        made.close()


@contextmanager
def start(device: str = "auto", share_gpus: bool = True) -> Iterator[Runtime]:
    """Start MPI, or find what mpirun started, open this rank's device, and close both on the way out.

    ``device`` is auto, cuda, emulated or cpu. Collective.
    """
    with session() as job, open_runtime(job, device, share_gpus) as runtime:
        yield runtime


@contextmanager
def open_runtime(job: Job, device: str = "auto", share_gpus: bool = True) -> Iterator[Runtime]:
    """Open this rank's device, and close it on the way out; an exception passes. Collective."""
    phases = Phases(time.perf_counter())
    opened = open_device(device, job, share_gpus)
    phases.use_device(opened.driver)
    try:
        runtime = Runtime(job, opened, phases)
        for line in opened.warnings:
            runtime.warn(line)
        yield runtime
    finally:
        opened.driver.close()
