"""MPI on device buffers: kernels pack, add up and unpack, without copies of ours.

    compute             | source |  other work                                   | target
    a stream of its own          | pack |                        | add | unpack |
    MPI                                 |  Ialltoallv            |
    a sum to "whole"                    |  Ialltoallv | add | Iallgatherv |

MPI knows no streams: the host looks at the event behind the kernels before it lets MPI read, and queues what
reads MPI's results once Test has said that they are there. Where messages are whole rows of an array without
gaps MPI is given the array itself.

Some MPIs hang on device buffers. Where nothing makes progress for `LIMIT` seconds within ``finish`` all ranks
end, with a line that says so: so a rank that comes to a move that much later than another looks like a hang.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from pyrt.arrays import DeviceArray
from pyrt.exchange.device import LIMIT, for_mpi, kernel_file, verdict
from pyrt.job import AgreedError
from pyrt.job.stall import StallWatch
from pyrt.kernels import KernelLibrary, blocks
from pyrt.mpi_probe.libraries import PROBE
from pyrt.redistribute import RedistributionContext
from pyrt.redistribute.packing import Packing, QueueWork, bind_kernel, bind_numpy, bind_numpy_sum
from pyrt.redistribute.staged import Memory, StagedLinks

_THREADS = 256


@dataclass(frozen=True)
class _DeviceMemory:
    """A flat array on the device."""

    array: DeviceArray

    def part(self, start: int, stop: int) -> _DeviceMemory:
        return _DeviceMemory(self.array.rows(start, stop))

    def for_mpi(self) -> MPI.buffer:
        return for_mpi(self.array)


class _Buffer:
    """Memory for the messages of any move: as much as the largest one needs that was bound so far."""

    def __init__(self, setting: RedistributionContext) -> None:
        self._driver, self._dtype = setting.driver, setting.dtype
        self._array = DeviceArray.empty(setting.driver, (0,), setting.dtype)

    def of_size(self, size: int) -> _DeviceMemory:
        if size > self._array.size:
            # MPI writes it, which the checks of the emulated device do not see: for them it is written here.
            self._array = DeviceArray.from_host(self._driver, np.zeros(size, self._dtype))
        return _DeviceMemory(self._array.rows(0, size))


class DeviceLinks(StagedLinks):
    """MPI is given device memory."""

    name = "device"

    def __init__(self, setting: RedistributionContext) -> None:
        """Collective. Raises UserError, on all ranks, where this MPI takes no device buffers."""
        refusal = verdict(setting.job, setting.driver).refusal
        if refusal:
            raise AgreedError(f"--exchange device: {refusal}")
        super().__init__(setting)
        self._outgoing, self._incoming = _Buffer(setting), _Buffer(setting)
        self._library = KernelLibrary(setting.driver)
        # Rank 0 speaks, if it can.
        limit = LIMIT * (1.0 if setting.job.rank == 0 else 1.25)
        self._watch = StallWatch(lambda: self.progress if self.is_inside else None, limit, self._give_up)

    def close(self) -> None:
        self._watch.close()
        super().close()

    def memory_of(self, array: DeviceArray) -> _DeviceMemory:
        return _DeviceMemory(array.reshape(array.size))

    def outgoing(self, size: int) -> _DeviceMemory:
        return self._outgoing.of_size(size)

    def incoming(self, size: int) -> _DeviceMemory:
        return self._incoming.of_size(size)

    def bind_copy(self, name: str, array: DeviceArray, packing: Packing, memory: Memory) -> QueueWork:
        assert isinstance(memory, _DeviceMemory)
        if not array.driver.has_kernels:
            return bind_numpy(name, array, packing, memory.array.host_view())
        return bind_kernel(name, array, packing, memory.array)

    def bind_sum(self, parts: Memory, size: int, result: Memory) -> QueueWork:
        assert isinstance(parts, _DeviceMemory) and isinstance(result, _DeviceMemory)
        ranks = self.setting.job.size
        if not self.setting.driver.has_kernels:
            return bind_numpy_sum(parts.array.host_view().reshape(ranks, size), result.array.host_view())
        file, constants = kernel_file(self.setting.dtype)
        kernel = self._library.kernel(file, "sum_over_ranks", **constants)
        return kernel.bind((blocks(size, _THREADS),), (_THREADS,), ranks, size, parts.array, result.array)

    def _give_up(self) -> None:
        library = self.setting.job.library
        self.setting.job.stop(
            f"--exchange device: no progress for {LIMIT:g} s: {library} may hang on device buffers "
            f"(`{PROBE}` finds out), or a rank has stopped: use --exchange host",
            code=1,
        )
