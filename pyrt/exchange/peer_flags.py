"""One kernel over peer memory with flags, to compare with `PeerExchange` (kernels/comm/peer_flags.cu).

    compute   | last product of rank 0 |....| read, sum, update |..| read | next step
    compute   | last product of rank 1      | read, sum, update |..| read | next step

Each rank reads what others have in their memory, where that exchange writes into theirs. So all wait for each
other twice: until all gradients are there, and until all new numbers are. No choice of train.py.
"""

from __future__ import annotations

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.exchange import ExchangeContext
from pyrt.exchange.facts import Facts
from pyrt.exchange.peer import VEC4, PeerExchange, PeerMemory, peer_traffic

BARRIERS = 2
"""At which ranks meet in a step (see comm/peer_flags.cu)."""


class PeerFlagsExchange(PeerExchange):
    """Queues one kernel once all buckets are ready. The gradients are an allocation of their own."""

    name = "peer flags"

    def _share(self, setting: ExchangeContext) -> PeerMemory:
        node = setting.node
        return PeerMemory(setting, node, "comm/peer_flags", _make, node.size, lent=[setting.gradients])


def _make(setting: ExchangeContext, ranks: int, shard: int, blocks: int) -> list[DeviceArray]:
    """Make the outbox (shard, VEC4), and flags (BARRIERS, blocks, ranks) int32, none raised; all flat."""
    return [
        DeviceArray.empty(setting.driver, (shard * VEC4,), setting.gradients.dtype),
        DeviceArray.from_host(setting.driver, np.zeros(BARRIERS * blocks * ranks, np.int32)),
    ]


FACTS = Facts(
    PeerFlagsExchange.name,
    "as peer, with flags: to be measured against it",
    PeerFlagsExchange,
    peer_traffic,
    updates_once_a_node=True,
)
