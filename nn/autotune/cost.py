"""What a step costs a rank under a plan: flops, bytes and messages as formulas, and the time to expect.

All numbers come from the step's list (nn/autotune/listed_step.py). docs/explain/plans.md derives the
formulas, and says what the times leave out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

from nn.autotune.listed_step import ListedStep, Memory
from nn.autotune.rates import EXCHANGE, GATHER, REDUCE, SUM, TRANSPOSE, Rates
from nn.launch.gemm.components import COMPONENTS
from nn.launch.gemm.product import Product
from nn.launch.gemm.wgmma import products
from nn.launch.work import Work
from nn.parallel.buckets import Panel
from nn.parallel.plan import Plan
from nn.program.operations import BucketReady, FinishRedistribution, Operation, StartRedistribution
from pyrt.exchange import Bucket
from pyrt.exchange.facts import NO_TRAFFIC, Traffic
from pyrt.exchange.registry import exchanges
from pyrt.redistribute import Redistribution

CLASSIFIER = "fused classifier"
"""The kernel of a narrow output layer, several products in one."""


def is_pass(work: Work) -> bool:
    """Return whether work is bound by the bytes that it moves: neither one product nor a convolution."""
    return len(work.products) != 1 and work.convolution is None


def kind(operation: Operation) -> str:
    """Name the kind by which other operations than products and convolutions are timed: what one does, or
    its own name."""
    if len(operation.work.products) > 1:
        return CLASSIFIER
    return operation.work.kind or operation.name


def moved(move: Redistribution, ranks: int, rank: int) -> Traffic:
    """Count what a rank sends in a redistribution, without looking at each receiver."""
    return reduce(Traffic.plus, (_stage(stage, ranks, rank) for stage in move.stages), NO_TRAFFIC)


def _stage(move: Redistribution, ranks: int, rank: int) -> Traffic:
    has = move.source_of(ranks, rank)
    if not has.size:
        return NO_TRAFFIC
    if move.target == "whole":
        return Traffic(has.size * (ranks - 1), ranks - 1)
    if not (isinstance(move.source, str) and isinstance(move.target, str)):
        return Traffic(move.sent(ranks, rank), move.messages(ranks, rank))
    kept = move.target_of(ranks, rank)
    parts = move.shape[0] // move.together if move.target == "rows" else move.shape[1]
    parts = min(ranks, parts)  # some may be empty
    return Traffic(has.size - has.intersection(kept).size, parts - (kept.size > 0))


@dataclass(frozen=True)
class Span:
    """The ranks that move something among them, and how many of them are on this rank's node."""

    ranks: int
    on_node: int

    @classmethod
    def of_group(cls, plan: Plan, ranks_per_node: int) -> Span:
        """Consecutive ones."""
        return cls(plan.shards, min(plan.shards, ranks_per_node))

    @classmethod
    def of_exchange(cls, plan: Plan, over_all: bool, ranks_per_node: int) -> Span:
        """All, or a rank of each group."""
        if over_all:
            return cls(plan.ranks, min(plan.ranks, ranks_per_node))
        return cls(plan.groups, max(1, min(plan.groups, ranks_per_node // plan.shards)))


@dataclass
class Cost:
    """Of one step, of the rank that has most to do."""

    what: str
    flops: int = 0
    traffic: int = 0
    """Bytes that its operations read and write."""
    sent: float = 0.0
    """Bytes that it sends to others, and in how many"""
    messages: float = 0.0
    memory: Memory = field(default_factory=lambda: Memory(0, 0, 0, 0))
    products: float = 0.0
    """Seconds of matrix products,"""
    convolutions: float = 0.0
    """of convolutions,"""
    passes: float = 0.0
    """of all other operations,"""
    moves: float = 0.0
    """in which nothing goes on but a move of activations or their gradients,"""
    exchange: float = 0.0
    """or the exchange of gradients, updates in it."""

    @property
    def seconds(self) -> float:
        return sum(self._parts.values())

    @property
    def bound(self) -> str:
        """What takes most of the time, and which part."""
        parts = self._parts
        most = max(parts, key=lambda name: parts[name])
        return f"{most} {parts[most] / self.seconds:.0%}"

    @property
    def _parts(self) -> dict[str, float]:
        return {
            name: getattr(self, name) for name in ("products", "convolutions", "passes", "moves", "exchange")
        }


@dataclass(frozen=True)
class Line:
    """An operation, a move or an exchange of a step: what it does, what it sends, its seconds by itself."""

    name: str
    flops: int
    traffic: int
    sent: float
    messages: float
    seconds: float

    def __add__(self, other: Line) -> Line:
        """Add two lines of the same name."""
        mine, others = list(vars(self).values())[1:], list(vars(other).values())[1:]
        return Line(self.name, *(a + b for a, b in zip(mine, others, strict=True)))


class Costing:
    """What a step that was built on paper costs with these rates."""

    def __init__(self, step: ListedStep, rates: Rates) -> None:
        self._step, self._rates, self._plan = step, rates, step.plan
        self._itemsize = step.itemsize
        self._cost = Cost(str(step.plan))
        self._lines: list[Line] = []

    @cached_property
    def cost(self) -> Cost:
        """All of it. The compute stream does operations in order; a move goes on beside those between its
        start and its finish, an exchange as its way does."""
        cost, now = self._cost, 0.0
        cost.memory = self._step.memory
        ends: dict[int, float] = {}
        ready: list[float] = []
        for item in self._step.items:
            if isinstance(item, Operation):
                now += self._operation(item)
            elif isinstance(item, StartRedistribution):
                ends[id(item)] = now + self._move(item)
                if not self._rates.overlaps:  # the thread that computes is the one that moves
                    cost.moves, now = cost.moves + ends[id(item)] - now, ends[id(item)]
            elif isinstance(item, FinishRedistribution):
                end = max(now, ends[id(item.started)])
                cost.moves, now = cost.moves + end - now, end
            elif isinstance(item, BucketReady):
                ready.append(now)
        cost.exchange = self._exchange(ready, now)
        return cost

    @property
    def lines(self) -> list[Line]:
        """Of all that a step is made of, in order; of what comes in panels one line."""
        _ = self.cost
        found: dict[str, Line] = {}
        for line in self._lines:
            found[line.name] = found[line.name] + line if line.name in found else line
        return list(found.values())

    def _operation(self, operation: Operation) -> float:
        cost, made, convolution = self._cost, operation.work.products, operation.work.convolution
        cost.flops += operation.flops
        cost.traffic += operation.bytes
        if convolution is not None:
            sizes = convolution.sizes
            seconds = self._rates.convolution_seconds(convolution.kind, sizes, operation.bytes)
            cost.convolutions += seconds
        elif len(made) == 1:
            seconds = self._product(operation, made[0])
            cost.products += seconds
        else:
            seconds = self._rates.pass_seconds(kind(operation), operation.bytes)
            cost.passes += seconds
        self._lines.append(Line(operation.name, operation.flops, operation.bytes, 0, 0, seconds))
        return seconds

    def _product(self, operation: Operation, product: Product) -> float:
        M, N, K = product.sizes
        layout = "nt"[product.transpose_a] + "nt"[product.transpose_b]
        seconds = self._rates.product_seconds(M, N, K, layout, operation.bytes)
        if not operation.tensor_flops:
            return seconds
        # Pixels are one term, and products of them fewer than those that were timed.
        components = COMPONENTS[self._rates.math]
        part = operation.tensor_flops / (2 * M * N * K * products(components, components))
        least = min(seconds, 1e-6 * self._rates.operation_us)
        return least + part * (seconds - least)

    def _move(self, item: StartRedistribution) -> float:
        span = Span.of_group(self._plan, self._rates.ranks_per_node)
        sent = moved(item.move, span.ranks, self._step.shard.index)
        seconds = self._seconds(move_kind(item.move), sent, span)
        self._count(item.name, sent, seconds)
        return seconds

    def _seconds(self, kind: str, sent: Traffic, span: Span) -> float:
        """Predict the seconds of an all-to-all: messages within nodes and across them overlap."""
        rates, nbytes = self._rates, sent.elements * self._itemsize
        if span.ranks <= span.on_node:
            return rates.node[kind].seconds(nbytes, sent.messages)
        near = (span.on_node - 1) / (span.ranks - 1)
        across = rates.network[kind].seconds(nbytes * (1 - near), sent.messages * (1 - near))
        if span.on_node == 1:
            return across
        return max(across, rates.node[kind].seconds(nbytes * near, sent.messages * near))

    def _count(self, name: str, sent: Traffic, seconds: float) -> None:
        nbytes = sent.elements * self._itemsize
        self._cost.sent += nbytes
        self._cost.messages += sent.messages
        self._lines.append(Line(name, 0, 0, nbytes, sent.messages, seconds))

    def _exchange(self, ready: Sequence[float], now: float) -> float:
        """Seconds from the end of the backward pass on until all parameters are new."""
        panels, end = self._step.panels, now
        for over_all in (False, True):
            mine = [place for place, panel in enumerate(panels) if panel.over_all == over_all]
            if not mine:
                continue
            span = Span.of_exchange(self._plan, over_all, self._rates.ranks_per_node)
            update = self._step.update(over_all)
            self._count_update(update, span)
            if span.ranks == 1:
                end += self._rates.pass_seconds(kind(update), update.bytes)
            elif self._rates.overlaps and exchanges()[self._rates.exchange].overlaps:
                # Each bucket begins when it is there and the one before it is over.
                first = ready[mine[0]]
                for place in mine:
                    first = max(first, ready[place]) + self._buckets([panels[place]], span)
                end = max(end, first)
            else:
                end += self._buckets([panels[place] for place in mine], span)
        return end - now

    def _count_update(self, update: Operation, span: Span) -> None:
        """Over peer memory each parameter is updated once in a node, else by every rank."""
        owners = span.on_node if exchanges()[self._rates.exchange].updates_once_a_node else 1
        flops, traffic = update.flops // owners, update.bytes // owners
        self._cost.flops += flops
        self._cost.traffic += traffic
        # Where there are others its time is in that of the exchange.
        seconds = self._rates.pass_seconds(kind(update), update.bytes) if span.ranks == 1 else 0.0
        self._lines.append(Line("update", flops, traffic, 0, 0, seconds))

    def _buckets(self, panels: Sequence[Panel], span: Span) -> float:
        """Seconds of the exchange of these, their update in it; what it sends is counted."""
        seconds, buckets = 0.0, [panel.bucket for panel in panels]
        for took, sent in exchange_stages(self._rates, buckets, span, self._itemsize):
            self._count(f"exchange over {span.ranks} ranks", sent, took)
            seconds += took
        return seconds


def exchange_stages(
    rates: Rates, buckets: Sequence[Bucket], span: Span, itemsize: int
) -> Iterator[tuple[float, Traffic]]:
    """Seconds, and what a rank sends, of each stage of an exchange.

    Across nodes: first and last within each, over peer memory, if that is the way; between, each rank's
    share across them.
    """
    node, network, part = rates.node, rates.network, 1.0
    if span.ranks <= span.on_node:
        sent = exchanges()[rates.exchange].sent(buckets, span.ranks, 0, itemsize)
        yield node[EXCHANGE].seconds(sent.elements * itemsize, sent.messages), sent
        return
    if exchanges()[rates.exchange].updates_once_a_node and span.on_node > 1:
        near = exchanges()["peer"].sent(buckets, span.on_node, 0, itemsize)
        yield node[EXCHANGE].seconds(near.elements * itemsize, near.messages), near
        part = 1 / span.on_node
    nodes = -(-span.ranks // span.on_node) if part < 1 else span.ranks
    elements = part * sum(bucket.stop - bucket.start for bucket in buckets)
    far = Traffic(2 * (nodes - 1) / nodes * elements, 2 * (nodes - 1))
    yield network[EXCHANGE].seconds(far.elements * itemsize, far.messages), far


def once_an_exchange(plan: Plan, over_all: bool, rates: Rates) -> float:
    """Seconds of an exchange, over all ranks or over those of a shard, whatever there is to exchange."""
    span = Span.of_exchange(plan, over_all, rates.ranks_per_node)
    if span.ranks == 1:
        return 1e-6 * rates.operation_us
    if rates.overlaps and exchanges()[rates.exchange].overlaps:
        return 0.0
    return sum(seconds for seconds, _ in exchange_stages(rates, (), span, 0))


def move_kind(move: Redistribution) -> str:
    """Return one of `nn.autotune.rates.KINDS`."""
    if move.sums:
        return SUM if move.target == "whole" else REDUCE
    return GATHER if move.target == "whole" else TRANSPOSE


def fork_and_join(step: ListedStep, ranks: int, rates: Rates) -> Cost:
    """Predict the cost of the course's fork and join. ``step`` is the step of a rank alone.

    One rank has all. Around every product it sends each other rank some rows of one operand and all of the
    other operand, and receives the rows of the result.
    """
    cost = Costing(step, rates).cost
    span = Span(ranks, min(ranks, rates.ranks_per_node))
    links = rates.node if span.ranks <= span.on_node else rates.network
    cost.what, cost.products = "fork and join", 0.0
    for operation in step.items:
        for product in operation.work.products if isinstance(operation, Operation) else ():
            M, N, K = product.sizes
            rows = -(-M // ranks)
            out, back = forked(product, ranks)
            layout = "nt"[product.transpose_a] + "nt"[product.transpose_b]
            nbytes = (rows * K + K * N + rows * N) * product.D.dtype.itemsize
            cost.products += rates.product_seconds(rows, N, K, layout, nbytes)
            itemsize = product.D.dtype.itemsize
            cost.sent += out.elements * itemsize
            cost.messages += out.messages
            moving = out.plus(back)
            cost.moves += links[GATHER].seconds(moving.elements * itemsize, moving.messages)
            cost.flops += 2 * (rows - M) * N * K
    return cost


def forked(product: Product, ranks: int) -> tuple[Traffic, Traffic]:
    """Count what the root sends for one product, and what it receives."""
    M, N, K = product.sizes
    others = M - -(-M // ranks)
    return Traffic(others * K + (ranks - 1) * K * N, 2 * (ranks - 1)), Traffic(others * N, ranks - 1)
