"""Over peer memory, by the ranks of one node: sum, update and spread in one kernel (kernels/comm/peer.cu).

    compute   | last product of rank 0 | sum, update, spread | next step
    compute   | last product of rank 1 |      sum, update, spread | next step

Each rank owns a shard of the parameters. Ranks write into each other's memory, and wait for nothing but the
numbers themselves; the host has no part in it, so that a graph holds whole steps. A rank that is late is
waited for; when one is gone, the others' watchdogs end them (pyrt/job/watchdog.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver, StreamHandle
from pyrt.errors import UserError
from pyrt.exchange import Bucket, ExchangeContext, PackedUpdate, QueueWork, Update, nothing
from pyrt.exchange.facts import Facts, Traffic
from pyrt.kernels import REALS, Argument, Launch
from pyrt.node_memory import NodeMemory, mailbox

if TYPE_CHECKING:
    from mpi4py import MPI

VEC4 = 4
"""Numbers that are sent together: a shard is made of whole vec4s."""

SLOTS = 3
"""Mailboxes that steps take in turn: one in use, one being cleared, one that is clear (see comm/peer.cu)."""

MOST_RANKS = (2, 4, 8)
"""Of a node: kernels are compiled for up to so many."""

_WARP = 32

_BUCKET, _RANKS = struct.Struct("3i4x"), struct.Struct("4iP")
"""What follows the segment in a bucket, and what precedes the ranks' memory (kernels/comm/shard.cuh)."""


@dataclass(frozen=True)
class Share:
    """What each rank's shard has of a bucket: ``vec4s``, from number ``first`` of the shard on."""

    bucket: Bucket
    vec4s: int
    first: int


def shares(buckets: Sequence[Bucket], ranks: int) -> list[Share]:
    """Cut the buckets into a shard for each of so many ranks, at multiples of four of the flat buffer.

    The last shards may go on past the end of a bucket, and so do those of further ranks, which are empty.
    """
    result, first = [], 0
    for bucket in buckets:
        vec4s = -(-bucket.stop // VEC4) - bucket.start // VEC4
        result.append(Share(bucket, -(-vec4s // ranks), first))
        first += result[-1].vec4s
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
    slots: DeviceArray
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
            start = (share.bucket.start // VEC4 + self.rank * share.vec4s) * VEC4
            part = Bucket(max(start, share.bucket.start), min(start + share.vec4s * VEC4, share.bucket.stop))
            if part.start < part.stop:
                result.append(part)
        return result

    @property
    def most_ranks(self) -> int:
        """For how many the kernels are compiled."""
        return most_ranks(self.ranks)

    @property
    def shard(self) -> int:
        """Vec4s in a shard of all buckets."""
        return sum(share.vec4s for share in self.shares)

    def pack(self, update: Update) -> PackedUpdate:
        """Pack the update of their buckets for these kernels."""
        return update.for_peers(self.gradients.driver, self.buckets)

    def bind(self, name: str, update: PackedUpdate, *rest: Argument) -> Launch:
        """Bind a kernel of the file; ``rest`` are its arguments between the buckets and the slots."""
        buckets = b"".join(
            segment + _BUCKET.pack(share.bucket.stop - share.bucket.start, share.vec4s, share.first)
            for segment, share in zip(update.segments, self.shares, strict=True)
        )
        packed = _RANKS.pack(self.rank, self.ranks, self.shard, len(self.shares), self.given_up) + b"".join(
            struct.pack(f"{self.most_ranks}P", *(array.pointer for array in arrays), *self._no_ranks)
            for arrays in self.memory
        )
        real, most = REALS[self.gradients.dtype], self.most_ranks
        library, driver = update.library, update.library.driver
        kernel = library.kernel(self.file, name, REAL=real, MOST_RANKS=most, UPDATE=update.header)
        lists = [DeviceArray.from_host(driver, np.frombuffer(one, np.uint8)) for one in (packed, buckets)]
        return kernel.bind((self.slots.size,), (self.threads,), *lists, *rest, self.slots)

    @property
    def _no_ranks(self) -> list[int]:
        """Null pointers in the places of ranks that are not there."""
        return [0] * (self.most_ranks - self.ranks)


def bind_update(name: str, peers: Peers, update: Update) -> QueueWork:
    """Bind a kernel that updates this rank's shard and spreads it, and the end of the step behind it."""
    packed = peers.pack(update)
    launch, end = peers.bind(name, packed, packed.update, peers.gradients), update.bind_end()
    if end is nothing:
        return launch

    def queue(stream: StreamHandle) -> None:
        launch(stream)
        end(stream)

    return queue


def bind_shard_sums(peers: Peers, update: Update) -> QueueWork:
    """Bind the sums of the shard that this rank owns, in place of its gradients."""
    return peers.bind("sum_shards", peers.pack(update), peers.gradients)


def most_ranks(ranks: int) -> int:
    """Return the least of `MOST_RANKS` that holds so many ranks of a node; kernels are compiled for it."""
    return next(most for most in MOST_RANKS if most >= ranks)


def _most_threads(ranks: int, dtype: np.dtype) -> int:
    """Return the threads of a block that have registers for a vec4 from each rank (comm/shard.cuh)."""
    return 256 if most_ranks(ranks) * dtype.itemsize > 32 else 512


MakeMemory = Callable[[ExchangeContext, int, int, int], list[DeviceArray]]
"""Arrays of this rank, a kind each, for so many ranks, vec4s in a shard, and blocks of a kernel."""


class PeerMemory(NodeMemory):
    """Memory of a node's ranks, and what the kernels need to know of it: ``peers``."""

    def __init__(
        self,
        setting: ExchangeContext,
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
        shard = sum(share.vec4s for share in cut)
        # As many on each rank: where they wait with flags, a block waits for those of its number.
        blocks = max(1, min(*node.allgather(driver.multiprocessors), -(-shard // _WARP)))
        with job.agree():  # while no watchdog waits for a rank that has no memory
            slots = DeviceArray.from_host(driver, np.zeros(blocks, np.int32))
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
            slots,
            self.given_up,
            min(_most_threads(node.size, setting.gradients.dtype), -(-shard // (_WARP * blocks)) * _WARP),
        )


def mailboxes(setting: ExchangeContext, node: MPI.Comm, owners: int) -> PeerMemory:
    """Make the memory for the kernels of comm/peer.cu. Collective: see `PeerMemory`."""
    return PeerMemory(setting, node, "comm/peer", _make_mailbox, owners)


def _make_mailbox(setting: ExchangeContext, ranks: int, shard: int, blocks: int) -> list[DeviceArray]:
    """(SLOTS, gradients and parameters, senders, shard, VEC4), flat."""
    numbers = SLOTS * 2 * ranks * shard * VEC4
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

    def __init__(self, setting: ExchangeContext) -> None:
        """Collective. Raises UserError, on all ranks, where they do not reach each other's memory."""
        if setting.node.size < setting.job.size:
            raise UserError(f"--exchange {self.name}: for the ranks of one node: use hierarchical or host")
        require_peers(self.name, setting.driver, setting.node.size)
        self._compute, self._phases = setting.streams.compute, setting.phases
        self._phase = setting.phases.phase("sum, update and spread", self._compute)
        with ExitStack() as opened:
            self._memory = opened.enter_context(closing(self._share(setting)))
            with setting.job.agree():  # memory may end on one of them
                self._work = bind_update("sum_update_spread", self._memory.peers, setting.update)
            opened.pop_all()
        self.updates: Sequence[Bucket] = self._memory.peers.own

    def _share(self, setting: ExchangeContext) -> PeerMemory:
        """Share the memory that the kernel works on; its kind decides the kernel."""
        return mailboxes(setting, setting.node, setting.node.size)

    def ready(self, bucket: int) -> None:
        pass

    def finish(self) -> None:
        self._phases.barrier()
        with self._phase:
            self._work(self._compute)

    def close(self) -> None:
        self._memory.close()


def peer_traffic(buckets: Sequence[Bucket], ranks: int, rank: int, itemsize: int) -> Traffic:
    """Gradients of each other rank's shard to it, new parameters of one's own shard to all."""
    shard = VEC4 * sum(share.vec4s for share in shares(buckets, ranks))
    return Traffic(2 * (ranks - 1) * shard, 2 * (ranks - 1))


FACTS = Facts(
    PeerExchange.name,
    "GPUs write into each other's memory: sum, update and spread in one kernel",
    PeerExchange,
    peer_traffic,
    rung=5,
    on_device=PeerExchange.on_device,
    updates_once_a_node=True,
)
