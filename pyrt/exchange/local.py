"""One rank: its gradients are the sum, so only the update is left.

Several ranks that are given it train apart, each with its own gradients alone: a step without an exchange, to
measure what one costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyrt.exchange import Bucket, ExchangeContext
from pyrt.exchange.facts import NO_TRAFFIC, Facts


class LocalExchange:
    """Updates every bucket once all are ready."""

    name = "local"
    on_device = True

    def __init__(self, setting: ExchangeContext) -> None:
        self.updates: Sequence[Bucket] = setting.buckets
        self._compute = setting.streams.compute
        self._step = setting.phases.phase("step", self._compute)
        self._update = setting.update.bind(*setting.buckets, ends_step=True)

    def ready(self, bucket: int) -> None:
        pass

    def finish(self) -> None:
        with self._step:
            self._update(self._compute)

    def close(self) -> None:
        pass


FACTS = Facts(
    LocalExchange.name,
    "none: each rank updates with its own gradients alone, to measure a step without a sum",
    LocalExchange,
    lambda buckets, ranks, rank, itemsize: NO_TRAFFIC,
    on_device=LocalExchange.on_device,
)
