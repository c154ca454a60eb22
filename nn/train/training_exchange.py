"""Opens the exchange of a training: over all ranks, over the ranks of a shard, or both in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

from nn.launch.update import LossRing
from nn.program.rank_model import RankModel, TrainingArrays
from nn.program.step import Wrap
from nn.program.update import ParameterUpdate
from nn.train.rank_resources import RankResources
from pyrt.exchange import Asynchrony, Exchange, ExchangeContext
from pyrt.exchange.choose import ExchangeChoice
from pyrt.exchange.in_turn import InTurn
from pyrt.exchange.registry import create_exchange
from pyrt.job import agreed_by_some


@dataclass(frozen=True)
class ExchangeOpener:
    """Makes the exchange of these gradients; the update that ends a step keeps its loss in the ``ring``."""

    model: RankModel
    arrays: TrainingArrays
    resources: RankResources
    ring: LossRing
    wrap: Wrap
    """What is put around each update."""
    asynchrony: Asynchrony
    """Settings of asynchronous exchanges."""

    def open(self, opened: ExitStack) -> Exchange:
        """Make the exchange: of buckets that all ranks sum, and of those that ranks of one shard sum.

        Collective. What it is made of is closed with what is ``opened``.
        """
        loss_over_all = self.model.shard.plan.loss_over_all
        makers = {True: self.resources.groups.all, False: self.resources.groups.same_shard}
        found = [panel.over_all for panel in self.arrays.panels]
        several = len(set(found)) > 1
        end, rings = self._end_of_several() if several else None, {loss_over_all: self.ring}
        parts = []
        for over_all in (not loss_over_all, loss_over_all):
            buckets = [index for index, mine in enumerate(found) if mine == over_all]
            if buckets:
                update = self.arrays.update(rings.get(over_all) if end is None else None, self.wrap)
                made = self._exchange_of(makers[over_all], buckets, update)
                parts.append((buckets, opened.enter_context(closing(made))))
        return InTurn(parts, end) if several else parts[0][1]

    def _end_of_several(self) -> Callable[[], object] | None:
        """Bind the end of a step behind all exchanges; None if the last one may end it.

        The last may end it before the others have made their updates: a count of steps must wait for these.
        """
        if not self.arrays.state.counts:
            return None
        resources = self.resources
        with resources.job.agree(), resources.driver.ledger.of("exchange"):
            end = self.arrays.update(self.ring, self.wrap).bind(ends_step=True)
        return partial(end, resources.streams.compute)

    def _exchange_of(
        self, choice: ExchangeChoice, buckets: Sequence[int], update: ParameterUpdate
    ) -> Exchange:
        resources = self.resources
        context = ExchangeContext(
            resources.driver,
            resources.streams,
            choice.job,
            choice.node,
            resources.phases,
            self.model.parameters.flat,
            self.arrays.gradients.flat,
            [self.arrays.panels[index].bucket for index in buckets],
            update,
            self.asynchrony,
        )
        with resources.job.agree(), agreed_by_some(), resources.driver.ledger.of("exchange"):
            return create_exchange(choice.name, context)
