"""Through pinned host memory: MPI moves packed messages, the host adds up sums.

    compute             | source |  other work                           | target
    a stream of its own          | pack |                     | unpack |
    MPI                                 |  Ialltoallv         |
    a sum to "whole"                    |  Ialltoallv | add | Iallgatherv |

Where messages are whole rows of an array without gaps, packing is a copy, and on the CPU nothing at all;
else a kernel packs, straight into host memory. No device pointer reaches MPI, so this is safe on every MPI.
MPI makes progress when it is called: in ``finish``, and before that where the source is there at once, as on
the CPU.

Sums come as Ialltoallv and are added up here, in the order of the ranks. One Iallreduce would be less to
write, but MPI chooses its order, by the size and the number of ranks, and promises the same bits on all ranks
to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyrt.arrays import DeviceArray, mapped, pinned
from pyrt.redistribute import RedistributionContext
from pyrt.redistribute.packing import Packing, QueueWork, bind_kernel, bind_numpy, bind_numpy_sum
from pyrt.redistribute.staged import Memory, StagedLinks


@dataclass(frozen=True)
class _HostMemory:
    """Host memory as NumPy's, and where there are kernels as theirs."""

    host: np.ndarray
    device: DeviceArray | None

    def part(self, start: int, stop: int) -> _HostMemory:
        return _HostMemory(self.host[start:stop], self.device.rows(start, stop) if self.device else None)

    def for_mpi(self) -> np.ndarray:
        return self.host


class _Buffer:
    """Memory for the messages of any move: as much as the largest one needs that was bound so far."""

    def __init__(self, setting: RedistributionContext) -> None:
        self._driver, self._dtype = setting.driver, setting.dtype
        self._memory = self._allocate(0)

    def of_size(self, size: int) -> _HostMemory:
        if size > self._memory.host.size:
            self._memory = self._allocate(size)
        return self._memory.part(0, size)

    def _allocate(self, size: int) -> _HostMemory:
        if not self._driver.has_kernels:
            return _HostMemory(pinned(self._driver, (size,), self._dtype), None)
        return _HostMemory(*mapped(self._driver, (size,), self._dtype))


class HostLinks(StagedLinks):
    """MPI is given host memory."""

    name = "host"

    def __init__(self, setting: RedistributionContext) -> None:
        """Collective."""
        super().__init__(setting)
        self._outgoing, self._incoming = _Buffer(setting), _Buffer(setting)

    def memory_of(self, array: DeviceArray) -> _HostMemory | None:
        if array.driver.has_kernels:
            return None
        return _HostMemory(array.host_view().reshape(-1), None)

    def outgoing(self, size: int) -> _HostMemory:
        return self._outgoing.of_size(size)

    def incoming(self, size: int) -> _HostMemory:
        return self._incoming.of_size(size)

    def bind_copy(self, name: str, array: DeviceArray, packing: Packing, memory: Memory) -> QueueWork:
        assert isinstance(memory, _HostMemory)
        host, device = memory.host, memory.device
        if device is None:
            return bind_numpy(name, array, packing, host)
        if not packing.is_array:
            return bind_kernel(name, array, packing, device)
        if name == "pack":
            return lambda stream: array.queue_download(host, stream)
        return lambda stream: array.queue_upload(host, stream)

    def bind_sum(self, parts: Memory, size: int, result: Memory) -> QueueWork:
        """Sum with NumPy, at once."""
        assert isinstance(parts, _HostMemory) and isinstance(result, _HostMemory)
        return bind_numpy_sum(parts.host.reshape(self.setting.job.size, size), result.host)
