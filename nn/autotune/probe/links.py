"""What moves between ranks: moves and exchanges over groups of them, and the link that their times fit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import combinations
from typing import cast

import numpy as np

from nn.autotune.cost import move_kind, moved
from nn.autotune.probe.clock import ROUNDS, SLOW, SPAN, medians
from nn.autotune.probe.context import Extent, ProbeContext
from nn.autotune.probe.lender import Lender
from nn.autotune.rates import EXCHANGE, KINDS, Link
from nn.launch.kernels import Kernels
from nn.model.network import Network
from nn.optimisers import Sgd
from nn.parallel.shard import Shard
from nn.program.rank_model import Numbers, RankModel, TrainingArrays
from pyrt.arrays import DeviceArray
from pyrt.clock import Work, repeated, together
from pyrt.driver import Driver, StreamHandle
from pyrt.driver.null import NullDriver
from pyrt.exchange import Exchange, ExchangeContext
from pyrt.exchange.choose import ExchangeChoice
from pyrt.exchange.facts import Traffic
from pyrt.exchange.registry import create_exchange, exchanges
from pyrt.job import agreed_by_some
from pyrt.phases import Phases
from pyrt.redistribute import Bound, Redistribution, RedistributionContext
from pyrt.redistribute.registry import create_links
from pyrt.streams import Streams

Sample = tuple[float, float, float]
"""Bytes and messages that a rank sends, and the seconds that it takes."""


class LinkProbe:
    """What connects ranks, measured over groups of some of them."""

    def __init__(self, setting: ProbeContext, extent: Extent, kernels: Kernels | None) -> None:
        self._setting, self._extent, self._kernels = setting, extent, kernels
        self._streams = Streams(setting.driver)
        self._dtype = np.dtype(setting.task.dtype)

    def fitted(self, sizes: Iterable[int]) -> dict[str, Link]:
        """Measure links among the ranks of a node, in groups of these sizes. Collective."""
        way = self._setting.way
        return self._fit([way.among(way.job.rank // size) for size in sizes])

    def across(self) -> dict[str, Link]:
        """Measure links between ranks in the same place of all nodes; nothing for one node. Collective."""
        way = self._setting.way
        sizes = set(way.job.comm.allgather(way.node.size))
        if way.node.size == way.job.size or len(sizes) > 1:
            return {}
        return self._fit([way.among(way.node.rank)])

    def _fit(self, groups: Sequence[ExchangeChoice]) -> dict[str, Link]:
        samples: dict[str, list[Sample]] = {name: [] for name in KINDS}
        for group in groups:
            for name, sample in (*self._moves(group), *self._exchanges(group)):
                samples[name].append(sample)
            group.close()
        return {name: fit(of_kind) for name, of_kind in samples.items()} if groups else {}

    def _moves(self, group: ExchangeChoice) -> Iterator[tuple[str, Sample]]:
        job = group.job
        all_moves = [move for nbytes in self._extent.moved for move in _all_moves(self._shape(nbytes))]
        largest = max(move.received(job.size, job.rank) for move in all_moves)
        phases = Phases(time.perf_counter())
        with self._lent() as driver:
            made_from = RedistributionContext(driver, self._streams, job, phases, self._dtype, largest)
            with self._setting.job.agree(), agreed_by_some():
                links = create_links(group.redistribution, made_from)
            with closing(links):
                for move in all_moves:
                    source, target = (
                        DeviceArray.empty(driver, held(job.size, job.rank).shape, self._dtype)
                        for held in (move.source_of, move.target_of)
                    )
                    bound = links.bind("probe", move, source, target)
                    took = self._seconds(partial(_move, bound), links.on_device)
                    yield move_kind(move), self._sample(moved(move, job.size, 0), took)

    @contextmanager
    def _lent(self) -> Iterator[Driver]:
        """Lend a driver; free its memory after the block, when no rank writes to it any more."""
        with closing(Lender(self._setting.driver)) as lender:
            yield cast(Driver, lender)
            self._setting.job.comm.Barrier()

    def _shape(self, nbytes: int) -> tuple[int, int]:
        """Return the shape of a nearly square matrix of about so many bytes."""
        rows = max(8, int((nbytes // self._dtype.itemsize) ** 0.5) // 8 * 8)
        return rows, rows

    def _exchanges(self, group: ExchangeChoice) -> Iterator[tuple[str, Sample]]:
        for nbytes in self._extent.moved:
            units, inputs = self._shape(nbytes)
            network = Network.dense((inputs, units), "sigmoid", "softmax")
            shard = Shard.alone(network)
            with self._lent() as driver:
                model = RankModel(driver, shard, Numbers(self._dtype.name, self._kernels, apart=True), 1)
                arrays = TrainingArrays(model, Sgd(0.5, 0.0, 1e-4), (group.name, group.name))
                buckets = [panel.bucket for panel in arrays.panels]
                made_from = ExchangeContext(
                    driver,
                    self._streams,
                    group.job,
                    group.node,
                    Phases(time.perf_counter()),
                    model.parameters.flat,
                    arrays.gradients.flat,
                    buckets,
                    arrays.update(),
                )
                with self._setting.job.agree(), agreed_by_some():
                    made = create_exchange(group.name, made_from)
                with closing(made):
                    took = self._seconds(partial(_exchange, made, len(buckets)), made.on_device)
                    self._setting.job.comm.Barrier()  # nobody lets go of memory that others write
            job = group.job
            sent = exchanges()[group.name].sent(buckets, job.size, 0, self._dtype.itemsize)
            yield EXCHANGE, self._sample(sent, took)

    def _sample(self, sent: Traffic, seconds: float) -> Sample:
        """Return what the busiest rank sends, as in predictions, and the median of the times."""
        (took,) = medians(self._setting.job, [seconds])
        return sent.elements * self._dtype.itemsize, sent.messages, took

    def _seconds(self, work: Work, on_device: bool) -> float:
        """Time one piece by the host's clock, repeated equally often on every rank. Collective.

        On the null device it is a second: nothing is moved.
        """
        if isinstance(self._setting.driver, NullDriver):
            return 1.0
        driver, stream, comm = self._setting.driver, self._streams.compute, self._setting.job.comm
        once = comm.allreduce(self._once(work)) / comm.size  # the first sets things up
        once = comm.allreduce(self._once(work)) / comm.size
        count = max(1, min(20, round(SPAN / once)))
        many = together(driver, stream, work, count) if on_device else repeated(work, count)
        rounds = 1 if once > SLOW else ROUNDS
        return statistics.median(self._once(many) for _ in range(rounds)) / count

    def _once(self, work: Work) -> float:
        self._setting.job.comm.Barrier()
        started = time.perf_counter()
        work(self._streams.compute)
        self._setting.driver.synchronize()
        return time.perf_counter() - started


def _move(bound: Bound, stream: StreamHandle) -> None:
    bound.start()
    bound.finish()


def _exchange(made: Exchange, buckets: int, stream: StreamHandle) -> None:
    for bucket in range(buckets):
        made.ready(bucket)
    made.finish()


def _all_moves(shape: tuple[int, int]) -> list[Redistribution]:
    """List one of each kind."""
    return [
        Redistribution(shape, "columns", "whole"),
        Redistribution(shape, "rows", "columns"),
        Redistribution(shape, "whole", "columns", sums=True),
        Redistribution(shape, "whole", "whole", sums=True),
    ]


def fit(samples: Sequence[Sample]) -> Link:
    """Fit a link to these times by least squares of their ratios; no part of it is negative."""
    nbytes, messages, seconds = np.array(samples, float).T
    columns = np.stack([np.ones_like(seconds), messages, nbytes], axis=1) / seconds[:, None]
    # Where all have sent as many messages nothing tells these from what is there once.
    usable = (0, 2) if np.ptp(messages) == 0 else (0, 1, 2)
    best, least = np.zeros(3), np.inf
    for count in range(1, len(usable) + 1):
        for chosen in combinations(usable, count):
            values, *_ = np.linalg.lstsq(columns[:, chosen], np.ones(len(samples)), rcond=None)
            error = float(np.square(columns[:, chosen] @ values - 1).sum())
            if (values >= 0).all() and error < least:
                best, least = np.zeros(3), error
                best[list(chosen)] = values
    once, each, per_byte = (float(value) for value in best)
    return Link(1e6 * once, 1e6 * each, 1e-9 / max(per_byte, 1e-15))
