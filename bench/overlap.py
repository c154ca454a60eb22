"""What of an exchange a step waits for, and what several GPUs gain over one.

    mpirun -n 4 python3 bench/overlap.py [WAY ..]

For each network, batch and exchange: a step as `train.py` runs it; the same step without an exchange, each
rank updating with its own gradients alone; and the exchange alone, of the same buckets while nothing is
computed. Exposed is what the exchange adds to the step. The overlap rule is (step - max) / min of the other
two times: 0 where the shorter one hides behind the longer one, 1 where one waits for the other. The last
table is of host memory, where overlap has most to show: of a deep network, whose first gradients are there
when a third of the products are done, at a batch for which the rest of them last as long as the exchange.

Each exchange is checked first. Rank 0 times one GPU with the whole batch while the other ranks sleep.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from bench import exchange, step
from bench.program import require_gpu
from bench.step import WARM_UP, Case, Ours, our_options, sleep_until_all_are_here, wrong_results
from bench.timing import Times
from pyrt.arguments import Parser
from pyrt.errors import UserError
from pyrt.job import AgreedError, Job, agreed_by_some, run

if TYPE_CHECKING:  # at run time only once MPI has started: they load NumPy
    from pyrt.driver import Driver
    from pyrt.exchange import Bucket

NONE = "local"
"""The exchange that is none."""

WAYS = tuple(way for way in exchange.WAYS if way != "peer flags")
"""Those that `train.py` has."""

PART = 3000
"""Samples a rank for weak scaling; the batch of all for strong."""

STEPS = 20
"""Of an epoch."""

WINDOWS = 10
"""Of a run, in which the steps are timed: `WARM_UP` epochs come before them."""

SECONDS = 0.5
"""That all windows are to last; a window is a whole epoch at least."""

LARGEST = 64
"""Times its usual batch: the most that is taken to let products last as long as an exchange."""


class Work(NamedTuple):
    """A network with these hidden layers, and a batch over all ranks."""

    hidden: tuple[int, ...]
    batch: int

    def by(self, way: str) -> Case:
        """Return its step with that exchange."""
        return Case(self.batch, hidden=self.hidden, exchange=way, share_gpus=True)

    def __str__(self) -> str:
        return f"hidden {','.join(map(str, self.hidden))}, batch {self.batch}"


STRONG, WIDE, DEEP = Work((512,), PART), Work((2048,), 12000), Work((1024,) * 4, 12000)

BACKWARD = 2 / 3
"""Of a step's products: the exchange can begin when the others are done."""


@dataclass(frozen=True)
class Row:
    """A step with one exchange, and that exchange alone."""

    way: str
    step: Times
    alone: Times


@dataclass(frozen=True)
class Measured:
    """All that was timed of a work: each time is that of the slowest rank."""

    work: Work
    rows: Sequence[Row]
    none: Times
    """The step without an exchange."""
    one_gpu: Times | None = None
    """The whole batch on one GPU."""
    part: Times | None = None
    """One rank's part of the batch on one GPU: where the work grows with the ranks."""

    def exposed(self, row: Row) -> float:
        """Microseconds that the exchange adds to the step."""
        return row.step.median - self.none.median

    def rule(self, row: Row) -> float:
        """0 where the shorter of exchange and computation is hidden, 1 where nothing overlaps."""
        times = (self.none.median, row.alone.median)
        return (row.step.median - max(times)) / min(times)

    def gain(self, row: Row) -> float | None:
        """Divide the step on one GPU by the step on all."""
        return self.one_gpu.median / row.step.median if self.one_gpu is not None else None

    def efficiency(self, row: Row) -> float | None:
        """Return the weak-scaling efficiency: 1 if more ranks with more work take no longer."""
        return self.part.median / row.step.median if self.part is not None else None

    def fastest(self) -> Row:
        """Find the row of the shortest step."""
        return min(self.rows, key=lambda row: row.step.median)


def slowest(job: Job, times: Times) -> Times:
    """Return the times of the rank with the largest median. Collective."""
    everybody: list[Times] = job.comm.allgather(times)
    return max(everybody, key=lambda each: each.median)


def epochs_of_window(seconds: float) -> int:
    """Return how many epochs, of steps of about so many seconds, a window has."""
    return max(1, round(SECONDS / (WINDOWS * STEPS * seconds)))


def windows(job: Job, case: Case, epochs: int) -> list[float]:
    """Seconds a step in each window of so many epochs, by this rank's clock. Collective."""
    from train import train

    ours, counted = Ours(), WARM_UP + WINDOWS * epochs
    # And one more: at the end all losses are waited for, and the last ones follow each other at once.
    ours.add(train(our_options(case, STEPS, counted + 1), job), STEPS, epochs)
    return ours.wall[:WINDOWS]


def buckets(work: Work, way: str) -> list[Bucket]:
    """List the buckets in which that network's gradients leave by that exchange."""
    from nn.model.network import Network
    from nn.parallel.buckets import gradient_layout, panels
    from nn.parallel.shard import Shard

    part = Shard.alone(Network.dense((784, *work.hidden, 10), "sigmoid", "softmax"))
    return [panel.bucket for panel in panels(part, gradient_layout(part, "float32"), way)]


def alone(job: Job, driver: Driver, work: Work, ways: Sequence[str]) -> dict[str, Times]:
    """Each exchange with nothing beside it. Collective."""
    return {way: slowest(job, exchange.measure(way, driver, job, buckets(work, way))) for way in ways}


def on_one_gpu(job: Job, work: Work, guess: float) -> Times:
    """Time a step of about ``guess`` seconds on rank 0's GPU alone; the other ranks sleep. Collective."""
    times = None
    with job.agree(), agreed_by_some():
        try:
            if job.rank == 0:
                times = Times.of(windows(job.alone(), work.by("auto"), epochs_of_window(guess)))
        finally:
            sleep_until_all_are_here(job)
    result: Times = job.comm.bcast(times)
    return result


def measure(
    job: Job,
    work: Work,
    exchanges: Mapping[str, Times],
    one_gpu: bool = True,
    part: Times | None = None,
) -> Measured:
    """Time the steps of a work with each of these exchanges, whose times alone are given. Collective.

    Steps without an exchange come first and last. ``part`` is as `Measured` has it.
    """
    none = work.by(NONE)
    guess = max(job.comm.allgather(statistics.mean(windows(job, none, epochs=1))))
    apart = windows(job, none, epochs_of_window(guess))
    rows = []
    for way, by_itself in exchanges.items():
        seconds = windows(job, work.by(way), epochs_of_window(guess + 1e-6 * by_itself.median))
        rows.append(Row(way, slowest(job, Times.of(seconds)), by_itself))
    apart += windows(job, none, epochs_of_window(guess))
    whole = on_one_gpu(job, work, guess * job.size) if one_gpu else None
    return Measured(work, rows, slowest(job, Times.of(apart)), whole, part)


def balanced(work: Work, computing: float, exchanging: float) -> Work:
    """Return the network with a batch, in thousands, whose backward pass lasts as long as the exchange."""
    times = min(exchanging / (BACKWARD * computing), LARGEST)
    return Work(work.hidden, 1000 * max(1, round(times * work.batch / 1000)))


def default_ways(job: Job, driver: Driver) -> Iterator[str]:
    """Yield all exchanges that have a use here, fastest first. Collective."""
    from pyrt.exchange.device import verdict

    is_one_node = job.node.size == job.size
    takes_device_buffers = verdict(job, driver).is_proven
    if not takes_device_buffers and job.rank == 0:
        print("device: left out: no probe has found that MPI takes device buffers", flush=True)
    for way in reversed(WAYS):
        if way == "device" and not takes_device_buffers:
            continue
        if way != ("hierarchical" if is_one_node else "peer"):
            yield way


def check(job: Job, ways: Sequence[str], failures: list[str]) -> list[str]:
    """Take three steps each way; return the ways that work, and add what differs from NumPy. Collective."""
    works = []
    for way in ways:
        try:
            failures += wrong_results(job, [Work(WIDE.hidden, PART).by(way)])
        except AgreedError as error:
            if error.code != UserError.code:
                raise
            if job.rank == 0:
                print(f"{way}: left out: {error}", flush=True)
        else:
            works.append(way)
    return works


def table(measured: Measured) -> str:
    """Tabulate a line per exchange."""
    body = [
        [
            row.way,
            row.step.median,
            row.step.spread,
            measured.gain(row),
            measured.efficiency(row),
            measured.none.median,
            measured.exposed(row),
            row.alone.median,
            measured.rule(row),
        ]
        for row in measured.rows
    ]
    headers = ["exchange", "step us", "min to max", "x 1 GPU", "efficiency", "no exchange us", "exposed us"]
    headers += ["exchange alone us", "overlap rule"]
    formats = ("", ".1f", "", ".2f", ".2f", ".1f", ".1f", ".1f", ".2f")
    return tabulate(body, headers=headers, floatfmt=formats, missingval="-")


def title(measured: Measured, machine: str) -> str:
    """Say what the table shows."""
    text = f"784-{'-'.join(map(str, measured.work.hidden))}-10, batch {measured.work.batch}, {machine}"
    if measured.one_gpu is not None:
        text += f"; one GPU: {measured.one_gpu.median:.1f} us"
    if measured.part is not None:
        text += f"; efficiency: batch {PART} on one GPU ({measured.part.median:.1f} us) / step"
    return text


def in_short(takers: str, strong: Measured, weak: Measured, wide: Measured, *even: Measured) -> Iterator[str]:
    """Yield the numbers that matter, a line each: of the fastest exchange if the line names none.

    ``takers`` is what takes the steps, as "4 GPUs"; ``even`` the work whose products take as long as its
    exchange, if there is one.
    """
    for measured in (strong, weak, wide):
        row = measured.fastest()
        yield f"{takers} over 1, {measured.work}: {measured.gain(row):.2f} ({_exposed(measured, row)})"
    row = weak.fastest()
    yield f"weak scaling, {PART} a rank: {weak.efficiency(row):.2f} ({_exposed(weak, row)})"
    slow = [row for row in wide.rows if row.way in ("host", "blocking", "device")]
    if slow:
        times = ", ".join(f"{row.way} {row.step.median:.1f}" for row in slow)
        yield f"through MPI, {wide.work}, us: {times}"
    for measured in even:
        for row in measured.rows:
            rule = f"overlap rule {measured.rule(row):.2f}"
            yield f"{row.way} where products and exchange take about as long, {measured.work}: {rule}"


def _exposed(measured: Measured, row: Row) -> str:
    return f"{row.way}, exposed exchange {measured.exposed(row):.1f} us"


def measure_all(job: Job, ways: Sequence[str]) -> list[Measured]:
    """Strong scaling, weak scaling, a wide network; a deep one with a balanced batch, by host. Collective."""
    from pyrt.devices import open_device

    by_host = [way for way in ways if way == "host"]
    with closing(open_device(step.DEVICE, job, share_gpus=True).driver) as driver:
        narrow, wide = (alone(job, driver, work, ways) for work in (STRONG, WIDE))
        deep = alone(job, driver, DEEP, by_host)
    strong = measure(job, STRONG, narrow)
    weak = measure(job, Work(STRONG.hidden, PART * job.size), narrow, part=strong.one_gpu)
    result = [strong, weak, measure(job, WIDE, wide)]
    if by_host:
        computing = slowest(job, Times.of(windows(job, DEEP.by(NONE), epochs=1)))
        work = balanced(DEEP, computing.median, deep["host"].median)
        result.append(measure(job, work, deep, one_gpu=False))
    return result


def takers(job: Job, driver: Driver) -> str:
    """Say what takes the steps: GPUs, or ranks that share some. Collective."""
    gpus = len(set(job.comm.allgather(driver.device_id)))
    cards = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    return cards if gpus == job.size else f"{job.size} ranks on {cards}"


def main(job: Job) -> int:
    with job.agree():
        parser = Parser("overlap.py", __doc__)
        names = " or ".join(WAYS)
        parser.add_argument(
            "ways", nargs="*", metavar="WAY", help=f"{names} (default: all that have a use here)"
        )
        named: Sequence[str] = parser.parse_args(sys.argv[1:]).ways
        for way in named:
            if way not in WAYS:
                parser.error(f"no exchange is called {way}: there are {', '.join(WAYS)}")
        require_gpu()
        if job.size == 1:
            raise UserError("one rank has nothing to sum: mpirun -n 4 python3 bench/overlap.py")
    from pyrt.devices import open_device

    with closing(open_device(step.DEVICE, job, share_gpus=True).driver) as driver:
        who = takers(job, driver)
        machine = f"{who} ({driver.device_name})"
        ways = list(named or default_ways(job, driver))
    failures: list[str] = []
    ways = check(job, ways, failures)
    if ways and not failures:
        all_measured = measure_all(job, ways)
        if job.rank == 0:
            for measured in all_measured:
                print(f"\n{title(measured, machine)}\n{table(measured)}", flush=True)
            print("", *in_short(who, *all_measured), sep="\n", flush=True)
    if job.rank == 0:
        for failure in failures:
            print(f"overlap.py: error: {failure}", file=sys.stderr)
    return job.comm.bcast(1 if failures else 0)


if __name__ == "__main__":
    run(main)
