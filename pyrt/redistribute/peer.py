"""Over peer memory, by ranks of one node: one kernel a move (kernels/comm/redistribute.cu).

    compute             | source |  other work                   | target
    a stream of its own          | send |....| take, clear |
                                        \\  /
    link                               numbers
                                        /  \
    rank 1              | source |     | send | take, clear |

Ranks write into each other's mailboxes, and wait for nothing but the numbers themselves; the host has no part
in it, so that a graph holds whole steps. A rank that is late is waited for; when one is gone, the others'
watchdogs end them (pyrt/job/watchdog.py).
"""

from __future__ import annotations

import struct

import numpy as np
from mpi4py import MPI

from pyrt.arrays import DeviceArray
from pyrt.errors import UserError
from pyrt.exchange.peer import MOST_RANKS, SLOTS, most_ranks
from pyrt.kernels import REALS, Constants, Kernel, KernelLibrary
from pyrt.node_memory import NodeMemory, mailbox
from pyrt.redistribute import Redistribution, RedistributionContext, require_fitting
from pyrt.redistribute.regions import Region
from pyrt.redistribute.slices import BYTES, VEC4, in_device_memory, packed_slice, require_countable, vec4s

_WARP = 32
_MOST_THREADS = 512
_MOST_BLOCKS = 32
"""Of a move: fewer than multiprocessors, for products to run beside it."""

_PAST_BYTES = 8  # what a block remembers of the last move


def kernel_file(dtype: np.dtype, ranks: int) -> tuple[str, Constants]:
    """Name the kernel file and constants of moves among ``ranks`` ranks."""
    return "comm/redistribute", {"REAL": REALS[dtype], "MOST_RANKS": most_ranks(ranks)}


class PeerLinks:
    """A mailbox for each rank, which all moves share: they take its slots one after another."""

    name = "peer"
    on_device = True

    def __init__(self, setting: RedistributionContext) -> None:
        """Collective. Raises UserError, on all ranks, where they do not reach each other's memory."""
        _require_peers(setting)
        self.setting = setting
        driver, job = setting.driver, setting.job
        largest = job.comm.allreduce(setting.largest, MPI.MAX)
        # Each message may end in the middle of a four, or be an empty one: of the two stages of a sum to all.
        self.capacity = vec4s(largest) + 2 * job.size
        require_countable(VEC4 * self.capacity)
        self.stream = driver.create_stream()
        self.blocks = max(1, min(_MOST_BLOCKS, driver.multiprocessors // 2))
        longest = -(-self.capacity // (job.size - 1))  # about, of a message
        self.threads = min(_MOST_THREADS, -(-longest // (self.blocks * _WARP)) * _WARP)
        with job.agree():  # memory may end on one of them
            self.past = DeviceArray.from_host(driver, np.zeros(self.blocks * _PAST_BYTES, np.uint8))
        numbers, dtype = SLOTS * self.capacity * VEC4, setting.dtype
        self.mailboxes = NodeMemory(
            driver, job, job.node, self.stream, lambda: [mailbox(driver, self.stream, numbers, dtype)]
        )
        self._library = KernelLibrary(driver)

    def kernel(self, move: Redistribution) -> Kernel:
        name = "move_parts" if not move.sums else "sum_to_all" if move.target == "whole" else "sum_to_parts"
        file, constants = kernel_file(self.setting.dtype, self.setting.job.size)
        return self._library.kernel(file, name, **constants)

    def bind(
        self, phase_name: str, move: Redistribution, source: DeviceArray, target: DeviceArray
    ) -> _PeerMove:
        return _PeerMove(self, phase_name, move, source, target)

    def close(self) -> None:
        # Graphs do moves in the stream that they are launched into.
        self.setting.driver.synchronize_stream(self.setting.streams.compute)
        self.mailboxes.close()


def _require_peers(setting: RedistributionContext) -> None:
    """UserError where there are no kernels to write into other ranks' memory, or none can reach all ranks."""
    if not setting.driver.has_kernels:
        raise UserError("--exchange peer: the CPU has no kernels: use host")
    if setting.job.node.size < setting.job.size:
        raise UserError("--exchange peer: layers are split over ranks of several nodes: use host")
    if setting.job.size > MOST_RANKS[-1]:
        most = MOST_RANKS[-1]
        raise UserError(f"--exchange peer: layers are split over up to {most} ranks, not {setting.job.size}")


class _PeerMove:
    """Queues one kernel, on a stream that the compute stream waits for."""

    def __init__(
        self,
        links: PeerLinks,
        phase_name: str,
        move: Redistribution,
        source: DeviceArray,
        target: DeviceArray,
    ) -> None:
        require_fitting(links.setting, move, source, target)
        setting, kernel = links.setting, links.kernel(move)
        plan = in_device_memory(setting.driver, [_packed_plan(links, move, source, target)])
        self._work = kernel.bind((links.blocks,), (links.threads,), plan, links.past)
        self._driver, self._stream = setting.driver, links.stream
        self._compute, self._barrier = setting.streams.compute, setting.barrier
        self._ready, self._done = (setting.driver.create_event(timing=False) for _ in range(2))
        self._phase = setting.phases.phase(phase_name, links.stream)

    def start(self) -> None:
        self._barrier()
        self._driver.record(self._ready, self._compute)
        self._driver.wait(self._stream, self._ready)
        with self._phase:
            self._work(self._stream)
        self._driver.record(self._done, self._stream)

    def finish(self) -> None:
        self._driver.wait(self._compute, self._done)


def _packed_plan(links: PeerLinks, move: Redistribution, source: DeviceArray, target: DeviceArray) -> bytes:
    """``Plan`` of kernels/comm/redistribute.cu."""
    job, mailboxes = links.setting.job, links.mailboxes
    most = most_ranks(job.size)
    filled = _place(move, len(move.stages), job.size, job.rank, 0)
    if filled > links.capacity:
        raise ValueError(f"{move} brings more than the largest move that was announced")
    pointers = [mailbox.pointer for mailbox in mailboxes.arrays[0]] + [0] * (most - job.size)
    header = struct.pack(
        f"{most}PP4i", *pointers, mailboxes.given_up, job.rank, job.size, links.capacity, filled
    )
    arrays = [(source, move.source_of(job.size, job.rank)), (target, move.target_of(job.size, job.rank))]
    stages = [
        _packed_stage(move, index, job.size, job.rank, arrays[index], arrays[1])
        for index in range(len(move.stages))
    ]
    return (header + b"".join(stages)).ljust(len(header) + 2 * len(stages[0]), b"\0")


def _packed_stage(
    move: Redistribution,
    index: int,
    ranks: int,
    rank: int,
    out_of: tuple[DeviceArray, Region],
    into: tuple[DeviceArray, Region],
) -> bytes:
    """``Stage`` of kernels/comm/redistribute.cu, from one array into another; of each, what it holds."""
    stage, most = move.stages[index], most_ranks(ranks)
    sent, received, longest_sent, longest_received = [], [], 1, 1
    for other in range(ranks):
        there, here = stage.message(ranks, rank, other), stage.message(ranks, other, rank)
        place_there = _place(move, index, ranks, other, rank)
        place_here = _place(move, index, ranks, rank, other)
        sent.append(packed_slice(out_of[0], there.within(out_of[1]), place_there))
        received.append(packed_slice(into[0], here.within(into[1]), place_here))
        if other != rank:
            longest_sent = max(longest_sent, vec4s(there.size))
            longest_received = max(longest_received, vec4s(here.size))
    lists = [b"".join(slices).ljust(most * BYTES, b"\0") for slices in (sent, received)]
    return b"".join(lists) + struct.pack("2i", longest_sent, longest_received)


def _place(move: Redistribution, index: int, ranks: int, receiver: int, sender: int) -> int:
    """Find where a sender's message of a stage lies in a slot of the receiver's mailbox; in vec4s.

    Messages lie there in the order of the stages, then of the senders. An empty one takes one vec4, too.
    """
    before = [(stage, other) for stage in move.stages[:index] for other in range(ranks)]
    if index < len(move.stages):
        before += [(move.stages[index], other) for other in range(sender)]
    return sum(
        max(1, vec4s(stage.message(ranks, other, receiver).size))
        for stage, other in before
        if other != receiver
    )
