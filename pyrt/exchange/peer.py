"""Over peer memory, by the ranks of one node: sum, update and spread in one kernel (kernels/peer.cu).

    compute   | last product of rank 0 | sum, update, spread | next step
    compute   | last product of rank 1 |      sum, update, spread | next step

Each rank owns a shard of the parameters. Ranks write into each other's memory, and wait for nothing but the
numbers themselves; the host has no part in it, so that a graph holds whole steps. A rank that is late is
waited for; when one is gone, the others' watchdogs end them (pyrt/watchdog.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange import Bucket, Setting
from pyrt.memory import DeviceArray
from pyrt.node_memory import NodeMemory, mailbox

if TYPE_CHECKING:
    from mpi4py import MPI

FOUR = 4
"""Numbers that are sent together: a shard is made of whole fours."""

TURNS = 3
"""Mailboxes that steps take in turn: one in use, one being cleared, one that is clear (see peer.cu)."""

MOST_RANKS = (2, 4, 8)
"""Of a node: kernels are compiled for up to so many."""

_WARP = 32


@dataclass(frozen=True)
class Share:
    """What each rank's shard has of a bucket: ``fours``, from number ``first`` of the shard on."""

    bucket: Bucket
    fours: int
    first: int


def shares(buckets: Sequence[Bucket], ranks: int) -> list[Share]:
    """The buckets cut into a shard for each rank, at multiples of four elements of the flat buffer.

    The last ranks' shards may go on past the end of a bucket.
    """
    result, first = [], 0
    for bucket in buckets:
        fours = -(-bucket.stop // FOUR) - bucket.start // FOUR
        result.append(Share(bucket, -(-fours // ranks), first))
        first += result[-1].fours
    return result


@dataclass(frozen=True)
class Peers:
    """What the kernels need to know of the ranks of a node."""

    rank: int
    ranks: int
    shares: Sequence[Share]
    file: str
    """Of these kernels."""
    memory: Sequence[Sequence[DeviceArray]]
    """Of each kind, in the order in which they have them, that of each rank."""
    turns: DeviceArray
    """(blocks,) int32, where each block is; 0 at first. As many blocks on each rank."""
    given_up: int
    """Pointer to an int32 in the host's memory: not 0 when a rank is gone."""
    threads: int
    """Of each block."""

    @property
    def buckets(self) -> list[Bucket]:
        return [share.bucket for share in self.shares]

    @property
    def own(self) -> list[Bucket]:
        """What this rank owns of the flat buffers: a part of each bucket that it has a part of."""
        result = []
        for share in self.shares:
            start = (share.bucket.start // FOUR + self.rank * share.fours) * FOUR
            part = Bucket(max(start, share.bucket.start), min(start + share.fours * FOUR, share.bucket.stop))
            if part.start < part.stop:
                result.append(part)
        return result

    @property
    def most_ranks(self) -> int:
        """For how many the kernels are compiled."""
        return most_ranks(self.ranks)

    @property
    def shard(self) -> int:
        """Fours in a shard of all buckets."""
        return sum(share.fours for share in self.shares)


def most_ranks(ranks: int) -> int:
    """For how many ranks of a node the kernels are compiled that serve so many."""
    return next(most for most in MOST_RANKS if most >= ranks)


def _most_threads(ranks: int, dtype: np.dtype) -> int:
    """Of a block: those that have registers for a four from each rank (see shard.cuh)."""
    return 256 if most_ranks(ranks) * dtype.itemsize > 32 else 512


MakeMemory = Callable[[Setting, int, int, int], list[DeviceArray]]
"""Arrays of this rank, a kind each, for so many ranks, fours in a shard, and blocks of a kernel."""


class PeerMemory(NodeMemory):
    """Memory of a node's ranks, and what the kernels need to know of it: ``peers``."""

    def __init__(
        self,
        setting: Setting,
        node: MPI.Comm,
        file: str,
        make: MakeMemory,
        lent: Sequence[DeviceArray] = (),
    ) -> None:
        """Collective: see `NodeMemory`. For the kernels of that file."""
        driver, job = setting.driver, setting.job
        cut = shares(setting.buckets, node.size)
        shard = sum(share.fours for share in cut)
        # As many on each rank: where they wait with flags, a block waits for those of its number.
        blocks = max(1, min(*node.allgather(driver.multiprocessors), -(-shard // _WARP)))
        with job.together():  # while no watchdog waits for a rank that has no memory
            turns = DeviceArray.from_host(driver, np.zeros(blocks, np.int32))
        super().__init__(
            driver,
            job,
            node,
            setting.streams.compute,
            lambda: make(setting, node.size, shard, blocks),
            lent,
        )
        self.peers = Peers(
            node.rank,
            node.size,
            cut,
            file,
            self.arrays,
            turns,
            self.given_up,
            min(_most_threads(node.size, setting.gradients.dtype), -(-shard // (_WARP * blocks)) * _WARP),
        )


def mailboxes(setting: Setting, node: MPI.Comm) -> PeerMemory:
    """Memory for the kernels of peer.cu. Collective: see `NodeMemory`."""
    return PeerMemory(setting, node, "peer", _make_mailbox)


def _make_mailbox(setting: Setting, ranks: int, shard: int, blocks: int) -> list[DeviceArray]:
    """(TURNS, gradients and parameters, senders, shard, FOUR), flat."""
    numbers = TURNS * 2 * ranks * shard * FOUR
    return [mailbox(setting.driver, setting.streams.compute, numbers, setting.gradients.dtype)]


def require_peers(name: str, driver: Driver, node: MPI.Comm) -> None:
    """UserError where there are no kernels to write into other ranks' memory, or no others."""
    if not driver.has_kernels:
        raise UserError(f"--exchange {name}: the CPU has no kernels: use host or blocking")
    if not 2 <= node.size <= MOST_RANKS[-1]:
        raise UserError(
            f"--exchange {name}: for 2 to {MOST_RANKS[-1]} ranks a node, not {node.size}: use host"
        )


class PeerExchange:
    """Queues one kernel once all buckets are ready."""

    name = "peer"
    on_device = True

    def __init__(self, setting: Setting) -> None:
        """Collective. Raises UserError, on all ranks, where they do not reach each other's memory."""
        if setting.node.size < setting.job.size:
            raise UserError(f"--exchange {self.name}: for the ranks of one node: use hierarchical or host")
        require_peers(self.name, setting.driver, setting.node)
        self._compute, self._phases = setting.streams.compute, setting.phases
        self._phase = setting.phases.phase("sum, update and spread", self._compute)
        with ExitStack() as opened:
            self._memory = opened.enter_context(closing(self._share(setting)))
            with setting.job.together():  # memory may end on one of them
                self._work = setting.update.bind_spread(self._memory.peers)
            opened.pop_all()
        self.updates: Sequence[Bucket] = self._memory.peers.own

    def _share(self, setting: Setting) -> PeerMemory:
        """What the kernel works on, and so which one it is."""
        return mailboxes(setting, setting.node)

    def ready(self, bucket: int) -> None:
        pass

    def finish(self) -> None:
        self._phases.barrier()
        with self._phase:
            self._work(self._compute)

    def close(self) -> None:
        self._memory.close()
