"""Every way to sum gradients, update parameters and spread them, from 4 kB to 64 MB, beside NCCL's sum alone.

    mpirun -n 4 python3 bench/exchange.py [WAY ..]

A step of an exchange is timed as training runs it: one that stays on the device in a graph, by the device's
clock; the others by the host's, from its first call until the parameters are there. Each is checked first.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from bench.program import require_gpu
from bench.step import reason
from bench.timing import ROUNDS, WARM_UP, Times
from pyrt.arguments import Parser
from pyrt.clock import StreamClock, together
from pyrt.errors import UserError
from pyrt.job import AgreedError, Job, run

if TYPE_CHECKING:  # at run time only once MPI has started: they load NumPy
    from nn.launch.update import Segment
    from pyrt.arrays import DeviceArray
    from pyrt.driver import Driver
    from pyrt.exchange import Bucket, Exchange, PackedUpdate, QueueWork

SIZES = (4 << 10, 64 << 10, 512 << 10, 1628200, 4 << 20, 16 << 20, 64 << 20)
"""Bytes of float32; the fourth are all gradients of 784-512-10."""

WAYS = ("root", "blocking", "host", "device", "hierarchical", "peer", "peer flags")
"""``peer flags`` is no choice of train.py: it is here to be compared with ``peer``."""
RATE = 2.0**-10

LEAST_ROUNDS = 5
"""Repetitions that count of the slowest step."""

TIMEOUT = 300
"""Seconds that NCCL may take for all sizes."""


def repetitions(nbytes: int) -> int:
    """Return how many steps of so many bytes a graph has: the same on every rank, for a millisecond or so."""
    return max(2, min(64, round(1e-3 / (10e-6 + nbytes / 100e9))))


class WrongSum(AgreedError):
    """What was to be timed computes something else."""

    code = 1


class PlainUpdate:
    """p -= RATE g, on all of a flat buffer: by kernels or, on a device that has none, in NumPy."""

    def __init__(self, parameters: DeviceArray, gradients: DeviceArray) -> None:
        from nn.launch.kernels import Kernels
        from nn.launch.update import UpdateArrays
        from nn.optimisers import Sgd
        from pyrt.kernels import KernelLibrary

        self._has_kernels = parameters.driver.has_kernels
        self._kernels = Kernels(KernelLibrary(parameters.driver), parameters.dtype)
        self._arrays = UpdateArrays(Sgd(RATE, 0.0, 0.0), parameters, gradients, {}, None)

    def bind(self, *buckets: Bucket, ends_step: bool = False) -> QueueWork:
        from nn.launch.update import Update

        if not buckets:  # to end a step takes nothing here
            return self.refresh()
        work = Update(self._arrays, self._segments(buckets))
        if self._has_kernels:
            return work.on_device(self._kernels)
        compute = work.in_numpy()
        return lambda stream: compute()

    def apart(self) -> PlainUpdate:
        return self

    def refresh(self) -> QueueWork:
        from pyrt.exchange import nothing

        return nothing

    def for_peers(self, driver: Driver, buckets: Sequence[Bucket]) -> PackedUpdate:
        return self._arrays.for_peers(self._kernels, self._segments(buckets), None)

    def bind_end(self) -> QueueWork:
        return self.refresh()

    def _segments(self, buckets: Sequence[Bucket]) -> list[Segment]:
        from nn.launch.update import Segment

        return [Segment(start, stop - start, 0) for start, stop in buckets]


class Contender:
    """An exchange of these buckets, with gradients of this rank's own."""

    def __init__(self, way: str, driver: Driver, job: Job, buckets: Sequence[Bucket]) -> None:
        import numpy as np

        from pyrt.arrays import DeviceArray
        from pyrt.exchange import ExchangeContext
        from pyrt.exchange.peer_flags import PeerFlagsExchange
        from pyrt.exchange.registry import create_exchange
        from pyrt.phases import Phases
        from pyrt.streams import Streams

        self._driver, self._job, self._buckets = driver, job, buckets
        self.nbytes = 4 * sum(stop - start for start, stop in buckets)
        size, self.streams = max(bucket.stop for bucket in buckets), Streams(driver)
        self._mine = np.random.default_rng(job.rank).standard_normal(size, np.float32)
        self._gradients = DeviceArray.from_host(driver, self._mine)
        self._parameters = DeviceArray.from_host(driver, np.ones(size, np.float32))
        update = PlainUpdate(self._parameters, self._gradients)
        phases = Phases(time.perf_counter())
        setting = ExchangeContext(
            driver,
            self.streams,
            job,
            job.node,
            phases,
            self._parameters,
            self._gradients,
            buckets,
            update,
        )
        self.exchange: Exchange = (
            PeerFlagsExchange(setting) if way == PeerFlagsExchange.name else create_exchange(way, setting)
        )

    def step(self, _: Any = None) -> None:
        """Queue one, or do it."""
        for bucket in range(len(self._buckets)):
            self.exchange.ready(bucket)
        self.exchange.finish()

    def check(self) -> None:
        """Collective. WrongSum, on all ranks, where a step does something else."""
        import numpy as np
        from mpi4py import MPI

        self.step()
        self._driver.synchronize()
        total = self._mine.astype(np.float64)
        self._job.comm.Allreduce(MPI.IN_PLACE, total)
        expected = np.ones_like(total)
        for start, stop in self._buckets:
            expected[start:stop] -= RATE * total[start:stop]
        mine = float(np.abs(self._parameters.to_host() - expected).max())
        error = np.max(self._job.comm.allgather(mine))  # NaN, if there is one
        if not error < 1e-6:
            raise WrongSum(f"{self.exchange.name}, {self.nbytes} bytes: {error:.1e} off")
        # The sums of sums stay finite.
        self._gradients.set(np.zeros_like(self._mine) + np.float32(1e-30))

    def seconds(self) -> Iterator[float]:
        """Time one step, again and again. Collective."""
        count = repetitions(self.nbytes)
        if self.exchange.on_device:
            clock = StreamClock(self._driver, self.streams.compute)
            work = together(self._driver, self.streams.compute, self.step, count)
            while True:
                self._job.comm.barrier()
                yield clock.seconds(work) / count
        while True:
            self._job.comm.barrier()
            started = time.perf_counter()
            self.step()
            self._driver.synchronize()
            yield time.perf_counter() - started

    def free(self) -> None:
        """Collective."""
        self.exchange.close()
        for array in (self._gradients, self._parameters):
            self._driver.free(array.pointer)


def measure(
    way: str, driver: Driver, job: Job, buckets: Sequence[Bucket], longest: float = math.inf
) -> Times:
    """Over `ROUNDS` repetitions, fewer where these would take more than ``longest`` seconds. Collective."""
    contender = Contender(way, driver, job, buckets)
    try:
        contender.check()
        seconds = contender.seconds()
        once = [next(seconds) for _ in range(WARM_UP)][-1]
        return Times.of([next(seconds) for _ in range(rounds(max(job.comm.allgather(once)), longest))])
    finally:
        contender.free()


def rounds(once: float, longest: float) -> int:
    """Return how many repetitions of ``once`` seconds fit into ``longest``: `LEAST_ROUNDS` to `ROUNDS`."""
    return int(min(ROUNDS, max(LEAST_ROUNDS, longest / once)))


def nccl(gpus: int, sizes: Sequence[int] = SIZES) -> tuple[dict[int, Times], str]:
    """Time NCCL's sum alone, by bytes; also say why some times are missing, empty if none."""
    program = Path(__file__).parent / "baselines" / "nccl.py"
    words = [sys.executable, str(program), "--gpus", str(gpus), "--bytes", *map(str, sizes)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return {}, f"not done after {TIMEOUT} s"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    why = reason(done.stderr) if done.returncode != 0 else ""
    return {line["bytes"]: Times(*line["us"]) for line in lines}, why


def table(times: dict[str, dict[int, Times]]) -> str:
    """Tabulate a row for each size, microseconds and GB/s of each way: bytes of gradients over time."""
    body = [
        [nbytes, *(cell for way in times for cell in _cells(times[way].get(nbytes), nbytes))]
        for nbytes in SIZES
    ]
    headers = ["bytes", *(f"{way} {unit}" for way in times for unit in ("us", "GB/s"))]
    return tabulate(body, headers=headers, floatfmt=".1f", missingval="-")


def _cells(times: Times | None, nbytes: int) -> list[float | None]:
    return [None, None] if times is None else [times.median, nbytes / times.median * 1e-3]


def asked(words: Sequence[str]) -> Sequence[str]:
    """Return the ways that the command line names, or all. Raises UserError for an unknown way."""
    parser = Parser("exchange.py", __doc__)
    names = " or ".join(repr(way) if " " in way else way for way in WAYS)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"{names} (default: all)")
    ways: Sequence[str] = parser.parse_args(words).ways or WAYS
    for way in ways:
        if way not in WAYS:
            raise UserError(f"{way} is no WAY: take {names}")
    return ways


def main(job: Job) -> int:
    with job.agree():
        ways = asked(sys.argv[1:])
        require_gpu()
        if job.size == 1:
            raise UserError("one rank has nothing to sum: mpirun -n 2 python3 bench/exchange.py")
    from pyrt.devices import open_device
    from pyrt.exchange import Bucket

    times: dict[str, dict[int, Times]] = {}
    with closing(open_device("cuda", job, share_gpus=True).driver) as driver:
        for way in ways:
            times[way] = {nbytes: measure(way, driver, job, [Bucket(0, nbytes // 4)]) for nbytes in SIZES}
        name = driver.device_name
    if job.rank == 0:
        times["NCCL"], why = nccl(job.size)
        if why:
            print(f"NCCL: left out: {why}", flush=True)
        print(f"\nSum, update and spread over {job.size} x {name}; NCCL: the sum alone")
        print(table(times), flush=True)
    job.wait_for_all()
    return 0


if __name__ == "__main__":
    run(main)
