"""Over peer memory with flags, to measure `PeerExchange` against: one kernel too (kernels/peer_flags.cu).

    compute   | last product of rank 0 |....| read, sum, update |..| read | next step
    compute   | last product of rank 1      | read, sum, update |..| read | next step

Each rank reads what others have in their memory, where that exchange writes into theirs. So all wait for each
other twice: until all gradients are there, and until all new numbers are. No choice of train.py.
"""

from __future__ import annotations

import numpy as np

from pyrt.exchange import Setting
from pyrt.exchange.peer import FOUR, PeerExchange, PeerMemory
from pyrt.memory import DeviceArray

BARRIERS = 2
"""At which ranks meet in a step (see peer_flags.cu)."""


class PeerFlagsExchange(PeerExchange):
    """Queues one kernel once all buckets are ready. The gradients are an allocation of their own."""

    name = "peer flags"

    def _share(self, setting: Setting) -> PeerMemory:
        node = setting.node
        return PeerMemory(setting, node, "peer_flags", _make, node.size, lent=[setting.gradients])


def _make(setting: Setting, ranks: int, shard: int, blocks: int) -> list[DeviceArray]:
    """The outbox (shard, FOUR), and flags (BARRIERS, blocks, ranks) int32 of which none is raised; flat."""
    return [
        DeviceArray.empty(setting.driver, (shard * FOUR,), setting.gradients.dtype),
        DeviceArray.from_host(setting.driver, np.zeros(BARRIERS * blocks * ranks, np.int32)),
    ]
