"""Over peer memory, by the ranks of one node: sum, update and spread in one kernel (kernels/peer.cu).

    compute   | last product of rank 0 | sum, update, spread | next step
    compute   | last product of rank 1 |      sum, update, spread | next step

Each rank owns a shard of the parameters. Ranks write into each other's memory, and wait for nothing but the
numbers themselves; the host has no part in it, so that a graph holds whole steps. A rank that is late is
waited for; when one is gone, the others' watchdogs end them (pyrt/watchdog.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.exchange import Bucket, Setting
from pyrt.kernels import REALS, Argument, KernelLibrary, Launch
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
    """Cut the buckets into a shard for each of so many ranks, at multiples of four of the flat buffer.

    The last shards may go on past the end of a bucket, and so do those of further ranks, which are empty.
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

    gradients: DeviceArray
    """The flat buffer that the shares are parts of."""
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

    def bind(self, library: KernelLibrary, name: str, stretches: Sequence[bytes], *rest: Argument) -> Launch:
        """Bind a kernel of the file: ``stretches`` are the parameters of each bucket, as sgd.cuh has them,
        ``rest`` the arguments between the buckets and the turns."""
        buckets = b"".join(
            stretch + struct.pack("3i4x", share.bucket.stop - share.bucket.start, share.fours, share.first)
            for stretch, share in zip(stretches, self.shares, strict=True)
        )
        packed = struct.pack(
            "4iP", self.rank, self.ranks, self.shard, len(self.shares), self.given_up
        ) + b"".join(
            struct.pack(f"{self.most_ranks}P", *(array.pointer for array in arrays), *self._no_ranks)
            for arrays in self.memory
        )
        real = REALS[self.gradients.dtype]
        kernel = library.kernel(self.file, name, REAL=real, MOST_RANKS=self.most_ranks)
        driver = library.driver
        lists = [DeviceArray.from_host(driver, np.frombuffer(one, np.uint8)) for one in (packed, buckets)]
        return kernel.bind((self.turns.size,), (self.threads,), *lists, *rest, self.turns)

    @property
    def _no_ranks(self) -> list[int]:
        """Null pointers in the places of ranks that are not there."""
        return [0] * (self.most_ranks - self.ranks)

    def bind_sums(self, name: str) -> Launch:
        """Bind ``sum_update_spread`` or ``update_spread`` for buckets that hold no parameters: sums alone."""
        return self._bind_alone(name, 0.0, 0.0, 0.0, self.gradients, None, None, None)

    def bind_shard_sums(self) -> Launch:
        """Bind the sums of the shard that this rank owns, in place of its gradients, without parameters."""
        return self._bind_alone("sum_shards", self.gradients)

    def _bind_alone(self, name: str, *rest: Argument) -> Launch:
        stretches = [struct.pack("qiii4iP", bucket.start, 0, 0, 0, 1, 0, 0, 0, 0) for bucket in self.buckets]
        return self.bind(KernelLibrary(self.gradients.driver), name, stretches, *rest)


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
        owners: int,
        lent: Sequence[DeviceArray] = (),
    ) -> None:
        """Make the memory for the kernels of a file; the node's first ``owners`` ranks own a shard each.

        Collective: see `NodeMemory`.
        """
        driver, job = setting.driver, setting.job
        cut = shares(setting.buckets, owners)
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
            setting.gradients,
            node.rank,
            node.size,
            cut,
            file,
            self.arrays,
            turns,
            self.given_up,
            min(_most_threads(node.size, setting.gradients.dtype), -(-shard // (_WARP * blocks)) * _WARP),
        )


def mailboxes(setting: Setting, node: MPI.Comm, owners: int) -> PeerMemory:
    """Make the memory for the kernels of peer.cu. Collective: see `PeerMemory`."""
    return PeerMemory(setting, node, "peer", _make_mailbox, owners)


def _make_mailbox(setting: Setting, ranks: int, shard: int, blocks: int) -> list[DeviceArray]:
    """(TURNS, gradients and parameters, senders, shard, FOUR), flat."""
    numbers = TURNS * 2 * ranks * shard * FOUR
    return [mailbox(setting.driver, setting.streams.compute, numbers, setting.gradients.dtype)]


def require_peers(name: str, driver: Driver, largest: int) -> None:
    """Raise UserError where no kernels write into other ranks' memory; ``largest``: most ranks of a node."""
    if not driver.has_kernels:
        raise UserError(f"--exchange {name}: the CPU has no kernels: use host or blocking")
    if not 2 <= largest <= MOST_RANKS[-1]:
        raise UserError(f"--exchange {name}: for 2 to {MOST_RANKS[-1]} ranks a node, not {largest}: use host")


class PeerExchange:
    """Queues one kernel once all buckets are ready."""

    name = "peer"
    on_device = True

    def __init__(self, setting: Setting) -> None:
        """Collective. Raises UserError, on all ranks, where they do not reach each other's memory."""
        if setting.node.size < setting.job.size:
            raise UserError(f"--exchange {self.name}: for the ranks of one node: use hierarchical or host")
        require_peers(self.name, setting.driver, setting.node.size)
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
        return mailboxes(setting, setting.node, setting.node.size)

    def ready(self, bucket: int) -> None:
        pass

    def finish(self) -> None:
        self._phases.barrier()
        with self._phase:
            self._work(self._compute)

    def close(self) -> None:
        self._memory.close()
