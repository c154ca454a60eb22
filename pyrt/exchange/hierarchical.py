"""Over several nodes: within each over peer memory, across them over the host.

    within a node    | sum of each rank's shard |                                  | update, spread |
    across nodes                                | copies, MPI_Iallreduce of shards |

Each rank sums, with the ranks of its place on the other nodes, the shard that it owns on its own: all links
carry a part, and each number crosses them once. Nodes may have different numbers of ranks: on each node as
many ranks own a shard as the smallest node has, so that the shards are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from mpi4py import MPI

from pyrt.exchange import Bucket, ExchangeContext, NoUpdate
from pyrt.exchange.facts import Facts
from pyrt.exchange.host import HostExchange
from pyrt.exchange.peer import bind_shard_sums, bind_update, mailboxes, peer_traffic, require_peers


class HierarchicalExchange:
    """Two kernels and, between them, another exchange over the ranks of the same place."""

    name = "hierarchical"
    on_device = False

    def __init__(self, setting: ExchangeContext) -> None:
        """Collective. Raises UserError, on all ranks, where a node's do not reach each other's memory."""
        job, node = setting.job, setting.node
        sizes = job.comm.allgather(node.size)
        require_peers("hierarchical", setting.driver, max(sizes))
        self._compute = setting.streams.compute
        with ExitStack() as opened:
            self._memory = opened.enter_context(closing(mailboxes(setting, node, min(sizes))))
            self.updates: Sequence[Bucket] = self._memory.peers.own
            self._comm = job.comm.Split(node.rank, job.rank)
            opened.callback(self._comm.Free)
            with job.agree():  # memory may end on one of them
                self._across = self._exchange_across(setting)
                self._sum = bind_shard_sums(self._memory.peers, setting.update)
                self._spread = bind_update("update_spread", self._memory.peers, setting.update)
            opened.pop_all()
        phase = setting.phases.phase
        self._sum_phase = phase("sum within the node", self._compute)
        self._spread_phase = phase("update and spread", self._compute)

    def _exchange_across(self, setting: ExchangeContext) -> HostExchange | None:
        """Make the exchange of this rank's shards across nodes; None if it owns none."""
        if not self.updates:
            return None
        job = replace(setting.job, comm=self._comm)
        return HostExchange(replace(setting, job=job, buckets=self.updates, update=NoUpdate()))

    def ready(self, bucket: int) -> None:
        pass

    def finish(self) -> None:
        with self._sum_phase:
            self._sum(self._compute)
        if self._across is not None:
            for shard in range(len(self.updates)):
                self._across.ready(shard)
            self._across.finish()
        with self._spread_phase:
            self._spread(self._compute)

    def close(self) -> None:
        if self._across is not None:
            self._across.close()
        self._memory.close()
        if self._comm != MPI.COMM_NULL:
            self._comm.Free()


FACTS = Facts(
    HierarchicalExchange.name,
    "peer memory within a node, pinned host memory and MPI_Iallreduce across them",
    HierarchicalExchange,
    peer_traffic,
    rung=6,
    updates_once_a_node=True,
)
