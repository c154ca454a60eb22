"""Several exchanges as one: of buckets that are summed over different ranks.

They take turns in `finish`; the last one ends the step. Some of its updates may come before updates of the
others: what has to wait for all of these is queued behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pyrt.exchange import Bucket, Exchange


class InTurn:
    """Each exchange with its buckets, by their numbers among all."""

    def __init__(
        self, parts: Sequence[tuple[Sequence[int], Exchange]], end: Callable[[], object] | None = None
    ) -> None:
        """``end`` queues what comes behind the updates of all of them."""
        self._exchanges, self._end = [exchange for _, exchange in parts], end
        self.name = " and ".join(exchange.name for exchange in self._exchanges)
        self.on_device = all(exchange.on_device for exchange in self._exchanges)
        self.updates: Sequence[Bucket] = [
            bucket for exchange in self._exchanges for bucket in exchange.updates
        ]
        self._ready = {
            bucket: partial(exchange.ready, place)
            for buckets, exchange in parts
            for place, bucket in enumerate(buckets)
        }

    def ready(self, bucket: int) -> None:
        self._ready[bucket]()

    def finish(self) -> None:
        for exchange in self._exchanges:
            exchange.finish()
        if self._end is not None:
            self._end()

    def close(self) -> None:
        for exchange in self._exchanges:
            exchange.close()
