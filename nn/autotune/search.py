"""The plan that should be fastest, of all grids of the ranks and all splits of the layers.

Each layer says how it may be split (`Layer.splits`). Three ways are 3^L plans a grid, too many to list for a
deep network. But what a layer costs depends on its own split and on those of its neighbours alone, and the
head on those of the first and the last layer: costs are sums over pairs of layers. So a few plans tell them
all. With r the cost of samples
everywhere, r(l: a) the same with layer l split by a, the pair of the layers l and m adds

    r(l: a, m: b) - r(l: a) - r(m: b) + r

to what the two add by themselves, r(l: a) - r and r(m: b) - r. The best sum is found layer by layer (dynamic
programming). It is exact where an exchange comes behind everything; where it overlaps with the backward
pass, sums are but near, and of the best of them each is looked at by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from nn.autotune.cost import Cost, Costing, fork_and_join, once_an_exchange
from nn.autotune.listed_step import Task, on_null
from nn.autotune.rates import Rates
from nn.parallel.plan import SAMPLES, Plan
from pyrt.errors import UserError

_KEPT, _TRIED, _LOOKED_AT = 16, 16, 4
"""Plans of a grid: of those that end alike after some layers the fastest that are kept; and those that are
played through in the end, until so many fit into memory."""

Splits = tuple[str, ...]


class Parts(NamedTuple):
    """Of a cost: what adds up over the layers."""

    seconds: float
    memory: float
    """Bytes without activations: these share memory, and do not add up."""

    def plus(self, other: Parts, times: int = 1) -> Parts:
        return Parts(self.seconds + times * other.seconds, self.memory + times * other.memory)


NOTHING = Parts(0.0, 0.0)


class Search:
    """Of a task's plans for so many ranks, by these rates."""

    def __init__(self, task: Task, ranks: int, rates: Rates) -> None:
        """UserError where the rates do not reach so far."""
        rates.require_reach(ranks)
        self.task, self.ranks, self.rates = task, ranks, rates
        self._costs: dict[tuple[Plan, bool], Cost | None] = {}

    def cost(self, plan: Plan, counts_activations: bool = True) -> Cost | None:
        """None for a plan that does not fit the network, or kernels' indices."""
        key = plan, counts_activations
        if key not in self._costs:
            self._costs[key] = self._look(*key)
        return self._costs[key]

    @property
    def data(self) -> Plan:
        """The plan that splits samples alone."""
        return Plan.data(self.ranks, self.task.network.depth)

    def fork_and_join(self) -> Cost | None:
        """Predict the course's fork and join; None for a rank alone, if one rank cannot hold the batch, or
        for a network that is not of products alone."""
        if self.ranks == 1 or not self.task.network.is_dense:
            return None
        alone = Plan.data(1, self.task.network.depth)
        try:
            return fork_and_join(on_null(self.task, alone, self.rates.device), self.ranks, self.rates)
        except UserError:
            return None

    def _look(self, plan: Plan, counts_activations: bool) -> Cost | None:
        exchange = self.rates.exchange
        try:
            plan.require_fits(self.task.network, self.ranks)
            step = on_null(self.task, plan, self.rates.device, 0, exchange, counts_activations)
            return Costing(step, self.rates).cost
        except UserError:
            return None

    def best(self) -> Plan:
        """Find the plan of least predicted time that fits a rank's memory. Raises UserError if none fits."""
        found = [found for shards in self._shards() for found in self._candidates(shards)]
        if not found:
            raise UserError(
                f"no plan for {self.ranks} rank(s) fits their memory: use more, or a smaller --batch"
            )
        return min(found, key=lambda one: one[0])[1]

    def fits(self, cost: Cost) -> bool:
        """Return whether a rank has the memory; True if its memory is unknown."""
        return self._has_room(cost.memory.total)

    def _has_room(self, nbytes: float) -> bool:
        return not self.rates.memory_gb or nbytes <= self.rates.memory_gb * 1e9

    def _shards(self) -> Iterator[int]:
        """Search each grid. In a group larger than any layer's units some ranks would have no weights."""
        widest = max(self.task.network.sizes)
        return (size for size in range(1, min(self.ranks, widest) + 1) if self.ranks % size == 0)

    def _candidates(self, shards: int) -> list[tuple[float, Plan]]:
        """List the plans of one grid that fit and may be best, with their seconds."""
        if shards == 1:
            plans = [self.data]
        else:
            found = (plan for parts, plan in self.sums(shards) if self._has_room(parts.memory))
            plans = [plan for plan in found if set(plan.splits) != {SAMPLES}][:_TRIED]
        costs = ((self.cost(plan), plan) for plan in plans)
        fitting = ((cost.seconds, plan) for cost, plan in costs if cost is not None and self.fits(cost))
        return list(itertools.islice(fitting, _LOOKED_AT))

    def sums(self, shards: int) -> list[tuple[Parts, Plan]]:
        """List the best plans of one grid, fastest first, with their costs as sums over pairs of layers."""
        groups, network = self.ranks // shards, self.task.network
        any_plan = Plan.model(groups, shards, network.depth)
        chain = _Chain(
            lambda splits: self._parts(Plan(groups, shards, splits)),
            [network.layer(number).splits for number in network.numbers],
            {over_all: self._once(any_plan, over_all) for over_all in (True, False)},
        )
        return [(parts, Plan(groups, shards, splits)) for parts, splits in sorted(chain.best())]

    def _parts(self, plan: Plan) -> Parts | None:
        """Return the costs that add up over layers, without the fixed cost of an exchange."""
        cost = self.cost(plan, counts_activations=False)
        if cost is None:
            return None
        exchanges = {plan.over_all(layer) for layer in self.task.network.numbers}
        once = sum(self._once(plan, over_all) for over_all in exchanges)
        return Parts(cost.seconds - once, cost.memory.total)

    def _once(self, plan: Plan, over_all: bool) -> float:
        return once_an_exchange(plan, over_all, self.rates)


class _Chain:
    """The splits of all layers of one grid."""

    def __init__(
        self, parts_of: Callable[[Splits], Parts | None], ways: Sequence[Splits], once: Mapping[bool, float]
    ) -> None:
        """``parts_of`` some plan; None for one that cannot be. ``ways``: how each layer may be split.
        ``once``: the fixed costs of the exchange over all ranks, and of that of shards."""
        self._parts_of, self._ways, self._once = cache(parts_of), ways, once
        self._samples = self._parts_with()

    def best(self) -> list[tuple[Parts, Splits]]:
        """List the fastest chains and their costs."""
        found: list[tuple[Parts, Splits]] = []
        if self._samples is None:
            return found
        for first in self._ways[0]:
            if (alone := self._alone(0, first)) is None:
                continue
            chains: list[tuple[Parts, Splits]] = [(self._samples.plus(alone), (first,))]
            for layer in range(1, len(self._ways)):
                chains = list(self._longer(chains, layer))
            found += chains
        return [(parts.plus(Parts(self._exchanged(splits), 0)), splits) for parts, splits in found]

    def _exchanged(self, splits: Splits) -> float:
        return sum(self._once[over_all] for over_all in _exchanges(splits))

    def _longer(self, chains: Sequence[tuple[Parts, Splits]], layer: int) -> Iterator[tuple[Parts, Splits]]:
        """Extend each chain by a layer; keep the best of those that end alike and exchange alike."""
        kept: dict[object, list[tuple[Parts, Splits]]] = {}
        for parts, splits in chains:
            for split in self._ways[layer]:
                added = self._added(splits, split, layer)
                if added is not None:
                    longer = (*splits, split)
                    alike = split, _exchanges(longer)
                    kept.setdefault(alike, []).append((parts.plus(added), longer))
        for alike_ones in kept.values():
            alike_ones.sort()
            smallest = sorted(alike_ones[_KEPT:], key=lambda chain: chain[0].memory)
            yield from (*alike_ones[:_KEPT], *smallest[:_LOOKED_AT])

    def _added(self, splits: Splits, split: str, layer: int) -> Parts | None:
        """Extend a chain by one layer of this split."""
        pairs = {layer - 1, 0} if layer == len(self._ways) - 1 else {layer - 1}
        added = [self._alone(layer, split), *(self._pair(at, splits[at], layer, split) for at in pairs)]
        total = NOTHING
        for parts in added:
            if parts is None:
                return None
            total = total.plus(parts)
        return total

    def _alone(self, layer: int, split: str) -> Parts | None:
        parts = self._parts_with((layer, split))
        return parts.plus(self._samples, -1) if parts is not None and self._samples is not None else None

    def _pair(self, one: int, split: str, other: int, other_split: str) -> Parts | None:
        """Return the cost of a pair of layers beyond that of each alone."""
        if SAMPLES in (split, other_split):
            return NOTHING
        parts = self._parts_with((one, split), (other, other_split))
        known = self._alone(one, split), self._alone(other, other_split), self._samples
        if parts is None or None in known:
            return None
        for part in known:
            assert part is not None
            parts = parts.plus(part, -1)
        return parts

    def _parts_with(self, *changes: tuple[int, str]) -> Parts | None:
        """Cost of a plan that splits samples in all layers but those changed."""
        splits = [SAMPLES] * len(self._ways)
        for layer, split in changes:
            splits[layer] = split
        return self._parts_of(tuple(splits))


def _exchanges(splits: Splits) -> frozenset[bool]:
    """Return which exchanges these layers take part in: that over all ranks, that of shards."""
    plan = Plan(1, 1, splits)
    return frozenset(plan.over_all(layer) for layer in range(1, len(splits) + 1))
