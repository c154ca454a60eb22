"""The state of a shard on a server: parameters, their update, version, and a histogram of staleness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pyrt.exchange import Bucket, ExchangeContext
from pyrt.exchange.server.message import VERSION, Message

MOST_STALE: Final = 1000
"""Updates that are stale by this many versions and more are counted together."""


class ShardState:
    """The range of the flat parameters that is a shard. Work is queued on the compute stream."""

    def __init__(self, setting: ExchangeContext, place: Bucket, is_copy: bool) -> None:
        """The steps of a copy are not those of the rank's own shard: the optimiser counts them apart."""
        self._compute = setting.streams.compute
        self.updates = parts_of(place, setting.buckets)
        self._gradients, self._parameters = (
            array.rows(*place) for array in (setting.gradients, setting.parameters)
        )
        update = setting.update.apart() if is_copy else setting.update
        self._update = update.bind(*self.updates, ends_step=True)
        self.version = 0
        self.stale = np.zeros(MOST_STALE + 1, np.int64)
        self._step = setting.phases.phase("step", self._compute)
        self._down = setting.phases.phase("parameters device -> host", self._compute)

    def apply(self, gradients: Message, pushes: Sequence[Message]) -> None:
        """Update by ``gradients``: those of one push, or the sum over these ``pushes``."""
        for push in pushes:
            self.stale[min(self.version - int(push.header[VERSION]), MOST_STALE)] += 1
        with self._step:
            self._gradients.queue_upload(gradients.numbers, self._compute)
            self._update(self._compute)
        self.version += 1

    def copy_to(self, pull: Message) -> None:
        """Put the parameters, as they are now, into an answer."""
        pull.header[VERSION] = self.version
        with self._down:
            self._parameters.queue_download(pull.numbers, self._compute)


def parts_of(place: Bucket, buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return the parts of the buckets that lie in the range ``place``."""
    cut = (Bucket(max(start, place.start), min(stop, place.stop)) for start, stop in buckets)
    return [part for part in cut if part.start < part.stop]
