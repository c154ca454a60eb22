"""Over peer memory, by the ranks of one node: sum, update and spread in one kernel (kernels/peer.cu).

    compute   | last product of rank 0 | sum, update, spread | next step
    compute   | last product of rank 1 |      sum, update, spread | next step

Each rank owns a shard of the parameters. Ranks write into each other's memory, and wait for nothing but the
numbers themselves; the host has no part in it, so that a graph holds whole steps. A rank that is late is
waited for; when one is gone, the others' watchdogs end them (pyrt/watchdog.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange import Bucket, Setting
from pyrt.mailboxes import Mailboxes
from pyrt.memory import DeviceArray

if TYPE_CHECKING:
    from mpi4py import MPI

FOUR = 4
"""Numbers that are sent together: a shard is made of whole fours."""

TURNS = 3
"""Mailboxes that steps take in turn: one in use, one being cleared, one that is clear (see peer.cu)."""

MOST_RANKS = (2, 4, 8)
"""Of a node: kernels are compiled for up to so many."""

_WARP = 32
_MOST_THREADS = 512  # of a block: with up to 128 registers each they fit a multiprocessor


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
    """What the kernel needs to know of the ranks of a node."""

    rank: int
    mailboxes: Sequence[DeviceArray]
    """Of each rank: (TURNS, gradients and parameters, senders, shard, FOUR), flat."""
    shares: Sequence[Share]
    turns: DeviceArray
    """(blocks,) int32, the turn that each block takes next."""
    given_up: int
    """Pointer to an int32 in the host's memory: not 0 when a rank is gone."""
    threads: int
    """Of each block."""

    @property
    def buckets(self) -> list[Bucket]:
        return [share.bucket for share in self.shares]

    @property
    def ranks(self) -> int:
        return len(self.mailboxes)

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


class PeerMemory(Mailboxes):
    """The mailboxes of a node's ranks, and what the kernels need to know of them: ``peers``."""

    def __init__(self, setting: Setting, node: MPI.Comm) -> None:
        """Collective on all ranks of the job, of which those of ``node`` reach each other's memory.

        Raises UserError, on all ranks, where they do not.
        """
        driver, job, stream = setting.driver, setting.job, setting.streams.compute
        cut = shares(setting.buckets, node.size)
        shard = sum(share.fours for share in cut)
        blocks = max(1, min(driver.multiprocessors, -(-shard // _WARP)))
        with job.together():  # memory may end on one of them
            turns = DeviceArray.from_host(driver, np.zeros(blocks, np.int32))
        numbers = TURNS * 2 * node.size * shard * FOUR
        super().__init__(driver, job, node, stream, numbers, setting.gradients.dtype)
        threads = min(_MOST_THREADS, -(-shard // (_WARP * blocks)) * _WARP)
        self.peers = Peers(node.rank, self.arrays, cut, turns, self.given_up, threads)


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
            raise UserError("--exchange peer: for the ranks of one node: use hierarchical or host")
        require_peers("peer", setting.driver, setting.node)
        self._memory = PeerMemory(setting, setting.node)
        self._compute, self._phases = setting.streams.compute, setting.phases
        self._phase = setting.phases.phase("sum, update and spread", self._compute)
        self._work = setting.update.bind_spread(self._memory.peers)

    def ready(self, bucket: int) -> None:
        pass

    def finish(self) -> None:
        self._phases.barrier()
        with self._phase:
            self._work(self._compute)

    def close(self) -> None:
        self._memory.close()
