"""Builds a training on the null device, to know the memory that it needs and the kernels to compile.

Counts the bytes requested for arrays on the device and for page-locked host memory. Not counted: contexts,
modules and graphs on the device; the data set, NumPy's temporaries and MPI's buffers on the host.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace

from nn.input import placement
from nn.input.distribute import held_bytes, is_in_parts
from nn.launch.kernels import Kernels
from nn.parallel.buckets import gradient_layout
from nn.parallel.shard import Shard
from nn.problem.problem import Problem
from nn.train.fork_join import Fork
from nn.train.rank_resources import RankGroups, RankResources
from nn.train.setup import set_up
from pyrt.arrays import Layout
from pyrt.driver import Driver
from pyrt.driver.null import NullDriver
from pyrt.errors import UserError
from pyrt.host_memory import HostMemory
from pyrt.job import Job
from pyrt.kernels import KernelLibrary
from pyrt.ledger import Ledger, Row
from pyrt.phases import Phases
from pyrt.streams import Streams

_OF_NO_LAYER = ("batches", "evaluation", "exchange", "moves", "losses")
"""Rows of ledgers: chunks of samples or the whole training set; evaluations' chunks; buffers of what ranks
exchange; losses on their way to the host, and what counts the steps."""


@dataclass(frozen=True)
class Line:
    """Bytes of a layer, or of what is no layer's."""

    name: str
    weights: int = 0
    """And biases; where tensor cores read weights as components, these too."""
    gradients: int = 0
    momentum: int = 0
    """All that the optimiser keeps of parameters."""
    activations: int = 0
    """And their gradients, bf16 components of both, and the largest workspaces: all that a step uses up. They
    share one allocation, by their lifetimes."""
    workspaces: int = 0
    """Small arrays that operations keep for their kernels: maps of tensors, counters, sums of blocks."""
    buffers: int = 0
    """All else on the device."""
    pinned: int = 0
    """Host memory that the device reads or writes."""

    @property
    def device(self) -> int:
        """All but what is pinned."""
        return sum(getattr(self, column) for column in COLUMNS)


COLUMNS = [field.name for field in fields(Line) if field.name not in ("name", "pinned")]


@dataclass(frozen=True)
class Needs:
    """What a rank needs."""

    rank: int
    lines: list[Line]
    data: int = 0
    """Bytes of the data set in this rank's memory on the host; they are there before the run."""

    @property
    def device(self) -> int:
        return sum(line.device for line in self.lines)

    @property
    def pinned(self) -> int:
        return sum(line.pinned for line in self.lines)

    def column(self, name: str) -> int:
        """Sum up a column."""
        return sum(getattr(line, name) for line in self.lines)


def rehearse(
    problem: Problem,
    shard: Shard,
    groups: RankGroups,
    job: Job,
    driver: Driver,
    where: str,
    fork: Fork | None = None,
) -> tuple[Needs, list[str]]:
    """Count what a run would need of this driver and the host, on this rank; list the sources of its kernels.

    The training set is placed ``where``. Collective. Raises UserError, on all ranks, if the run would fail
    with it whatever the memory.
    """
    options, largest = problem.settings, shard.largest_received(problem.schedule.batch)
    null = NullDriver.like(driver)
    kernels = None
    if driver.has_kernels:
        kernels = Kernels(KernelLibrary(null), options.dtype, options.gemm, options.math, options.conv)
    phases = Phases(time.perf_counter())
    resources = RankResources.make(job, Streams(null), phases, kernels, groups, options.dtype, largest)
    resources = replace(resources, fork=fork)
    with closing(resources.links):
        setup = set_up(problem, shard, resources, where, graphs=False)
        lines = lines_of(null.ledger, shard, setup.model.parameters.layout)
        setup.close()
    return Needs(job.rank, lines, held_bytes(problem.dataset)), list(null.sources)


def lines_of(ledger: Ledger, shard: Shard, parameters: Layout) -> list[Line]:
    """List the ledger of a run's driver, its flat buffers split by layer."""
    gradients = gradient_layout(shard, parameters.dtype.name)
    states, clock = divmod(ledger.device[Row("momentum")], parameters.size * parameters.dtype.itemsize)
    flat = [("weights", parameters), ("gradients", gradients), *states * [("momentum", parameters)]]
    lines = [_layer(ledger, flat, layer) for layer in range(shard.network.depth + 1)]
    loss = gradients.nbytes("loss") if ledger.device[Row("gradients")] else 0
    lines.append(Line("all layers", activations=ledger.device[Row("activations")]))
    for row in map(Row, _OF_NO_LAYER):
        buffers = ledger.device[row] + (loss + clock if row.what == "losses" else 0)
        lines.append(Line(row.what, buffers=buffers, pinned=ledger.pinned[row]))
    device = ledger.device.total() - sum(line.device for line in lines)
    pinned = ledger.pinned.total() - sum(line.pinned for line in lines)
    return [*lines, Line("other", buffers=device, pinned=pinned)]


def _layer(ledger: Ledger, flat: Sequence[tuple[str, Layout]], layer: int) -> Line:
    columns = {name: ledger.device[Row(name, layer)] for name in COLUMNS}
    for name, layout in flat:
        if ledger.device[Row(name)]:
            mine = (array for array in (f"W{layer}", f"b{layer}") if array in layout.shapes)
            columns[name] += sum(map(layout.nbytes, mine))
    pinned = sum(ledger.pinned[Row(name, layer)] for name in COLUMNS)
    return Line(f"layer {layer}" if layer else "input", **columns, pinned=pinned)


@dataclass(frozen=True)
class Pool:
    """Memory that some ranks share, and what they need of it; bytes."""

    where: str
    needed: int
    free: int
    ranks: int
    parts: Mapping[str, int]
    """What this rank needs of it, by what it is for."""
    advice: str

    @property
    def fits(self) -> bool:
        return self.needed <= self.free

    def said(self, parts: str = "") -> str:
        """Say it in words; ``parts`` in brackets."""
        who = "the run needs" if self.ranks == 1 else f"{self.ranks} ranks need"
        return f"{who} {_size(self.needed)} {self.where}{parts}, which has {_size(self.free)} free"

    def require(self, stream: bool) -> None:
        """UserError, with what is needed, what there is, and what to lower, where it does not fit.

        ``stream`` is whether another placement would be of help.
        """
        if not self.fits:
            parts = ", ".join(f"{name} {_size(nbytes)}" for name, nbytes in self.parts.items() if nbytes)
            of_each = "" if self.ranks == 1 else "one of them "
            advice = f"{self.advice}{', or --placement stream' if stream else ''}"
            raise UserError(f"{self.said(f' ({of_each}{parts})')}: use {advice}")


def pools(needs: Needs, job: Job, driver: Driver) -> list[Pool]:
    """List the memory of the device, if it runs kernels, and of the host. Collective on the node."""
    is_hosts = driver.name != "cuda"
    device = "" if is_hosts else driver.device_id
    ranks = job.node.allgather((device, needs.device, needs.pinned))
    on_mine = [nbytes for name, nbytes, _ in ranks if name == device]
    host = sum(pinned for _, _, pinned in ranks)
    on_device = {name: needs.column(name) for name in COLUMNS}
    on_host = {"pinned": needs.pinned}
    result = []
    if driver.has_kernels:
        advice = "a smaller --batch or --hidden, more ranks with --plan model"
        free = driver.free_memory()
        result.append(Pool("on the device", sum(on_mine), free, len(on_mine), on_device, advice))
    if is_hosts:
        host, on_host = host + sum(on_mine), {**on_device, **on_host}
    advice = "a smaller --batch or --hidden, fewer ranks a node"
    result.append(Pool("on the host", host, HostMemory.now().free, len(ranks), on_host, advice))
    return result


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


@dataclass(frozen=True)
class Rehearsal:
    """Where the training set lies, and what the run needs then."""

    placement: str
    needs: Needs
    pools: list[Pool]
    sources: list[str]
    """Of the kernels that the run will load on this rank."""

    def require_room(self, asked: str) -> None:
        """UserError where it does not fit; ``asked`` is the placement that the user has asked for."""
        for pool in self.pools:
            pool.require(stream=asked == "resident")


def choose_placement(
    problem: Problem,
    shard: Shard,
    groups: RankGroups,
    job: Job,
    driver: Driver,
    fork: Fork | None = None,
) -> Rehearsal:
    """Choose the placement asked for or, for ``auto``, resident where that fits on every rank.

    Collective. Raises UserError, on all ranks, where the run cannot be, whatever the memory.
    """

    asked = problem.settings.placement

    def placed(where: str) -> Rehearsal:
        needs, sources = rehearse(problem, shard, groups, job, driver, where, fork)
        return Rehearsal(where, needs, pools(needs, job, driver), sources)

    with job.agree():
        # A parameter server has no batches: it may be on the CPU beside workers on GPUs.
        may_be_resident = not shard.works or placement.may_be_resident(
            asked, driver, problem.schedule.samples
        )
    may_be_resident = may_be_resident and not is_in_parts(problem.dataset)
    if all(job.comm.allgather(may_be_resident)):
        resident = placed("resident")
        device = resident.pools[0]
        fits = asked == "resident" or placement.fits(device.needed, device.free)
        if all(job.comm.allgather(fits)):
            return resident
    return placed("stream")


def largest(needs: Needs, job: Job) -> Needs:
    """Return the needs of the rank that needs most. Collective."""
    return max(job.comm.allgather(needs), key=lambda one: one.device + one.pinned)
