"""The CUDA device under the driver protocol, in the GPU's primary context: pycuda, and cuda-bindings for what
it has not (graphs, launches that overlap).

The primary context is the one a CUDA-aware MPI, PyTorch or CuPy in the same process uses too. It is
popped at exit on every way out, else pycuda aborts the interpreter.
"""

from __future__ import annotations

import atexit

import pycuda.driver as cuda
from cuda.bindings import driver as bindings

from pyrt.driver.cuda.calls import call
from pyrt.driver.cuda.kernels import CudaKernels
from pyrt.driver.cuda.memory import CudaMemory
from pyrt.driver.cuda.streams import CudaStreams


def visible_gpus() -> list[str]:
    """UUIDs of the GPUs this process may use, in the order CUDA numbers them."""
    bindings.cuInit(0)  # takes long: pycuda would hold the interpreter's lock meanwhile
    cuda.init()
    return [_uuid(index) for index in range(cuda.Device.count())]


def _uuid(index: int) -> str:
    # The second version tells MIG instances of a GPU apart; newer cuda-bindings have it under the first name.
    get = getattr(bindings, "cuDeviceGetUuid_v2", bindings.cuDeviceGetUuid)
    uuid = call(get, call(bindings.cuDeviceGet, index))
    return bytes(uuid.bytes).hex()


class CudaDriver(CudaMemory, CudaStreams, CudaKernels):
    """One GPU, by its CUDA number in this process."""

    name = "cuda"
    has_kernels = True

    def __init__(self, index: int) -> None:
        cuda.init()
        device = cuda.Device(index)
        CudaMemory.__init__(self, device.name())
        CudaKernels.__init__(self, device.compute_capability())
        self.device_id = _uuid(index)
        self.dlpack_device: tuple[int, int] | None = (2, index)
        attribute = cuda.device_attribute
        self.multiprocessors = device.get_attribute(attribute.MULTIPROCESSOR_COUNT)
        self.shared_memory = device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        handle = call(bindings.cuDeviceGet, index)
        bindings.cuDevicePrimaryCtxRetain(handle)  # makes it, and lets other threads work meanwhile
        context = device.retain_primary_context()  # raises what there is to raise
        bindings.cuDevicePrimaryCtxRelease(handle)
        CudaStreams.__init__(self, context)
        context.push()
        self.is_open = True
        atexit.register(self.close)

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._context.synchronize()
        self._destroy_graphs()
        self._unload()
        self._free_all()
        self._context.pop()
