"""The CUDA device under the driver protocol, in the GPU's primary context: pycuda, and cuda-bindings for what
it has not (graphs, launches that overlap).

Kernels are compiled by `pycuda.compiler.compile`, as by a SourceModule, but loaded through cuda-bindings:
pycuda's Module and Function hide their handles (pycuda 2026.1, src/wrapper/wrap_cudadrv.cpp) and launch by
cuLaunchKernel, which takes no attributes, and a launch that overlaps needs the handle for cuLaunchKernelEx.

The primary context is the one a CUDA-aware MPI, PyTorch or CuPy in the same process uses too. It is
popped at exit on every way out, else pycuda aborts the interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pycuda
import pycuda.compiler
import pycuda.driver as cuda
from cuda.bindings import driver as bindings

from pyrt.cache import is_kept, make_folder
from pyrt.driver import TENSOR_MAP_BYTES, Shape3, nvcc
from pyrt.errors import UserError
from pyrt.host_memory import HostMemory
from pyrt.ledger import Ledger


def _nvcc_version() -> str:
    """Return nvcc's version in its own words. Raises UserError."""
    try:
        return str(pycuda.compiler.get_nvcc_version(nvcc.find_nvcc()))
    except OSError as error:
        raise UserError(f"nvcc does not run: {error}") from None


def visible_gpus() -> list[str]:
    """UUIDs of the GPUs this process may use, in the order CUDA numbers them."""
    bindings.cuInit(0)  # takes long: pycuda would hold the interpreter's lock meanwhile
    cuda.init()
    return [_uuid(index) for index in range(cuda.Device.count())]


def _uuid(index: int) -> str:
    # The second version tells MIG instances of a GPU apart; newer cuda-bindings have it under the first name.
    get = getattr(bindings, "cuDeviceGetUuid_v2", bindings.cuDeviceGetUuid)
    uuid = _call(get, _call(bindings.cuDeviceGet, index))
    return bytes(uuid.bytes).hex()


def _call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """Return the results of a cuda-bindings call without its status; RuntimeError if that is an error.

    UserError where that is want of memory.
    """
    status, *values = function(*arguments)
    if status == bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise _no_memory(f"{function.__name__} finds no memory")
    if status != bindings.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{function.__name__}: {status.name}")
    return values[0] if values else None


def _no_memory(what: str) -> UserError:
    """Return the UserError for want of device memory, in the current context."""
    try:
        free, total = (f"{nbytes / 1e6:.0f}" for nbytes in cuda.mem_get_info())
    except cuda.Error:  # as of a context that there was no memory for
        free = total = "?"
    return UserError(
        f"{what}, {free} of {total} MB free: use a smaller --batch or --hidden, or more GPUs; --memory says "
        "what takes it"
    )


class _PackedParameters:
    """The arguments of a launch in one block of memory, and how CUDA finds them: at ``address``."""

    def __init__(self, arguments: bytes) -> None:
        self._block = ctypes.create_string_buffer(arguments, len(arguments))
        self._size = ctypes.c_size_t(len(arguments))
        # CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END
        where = (1, ctypes.addressof(self._block), 2, ctypes.addressof(self._size), 0)
        self._where = (ctypes.c_void_p * len(where))(*where)
        self.address = ctypes.addressof(self._where)


def _overlapping() -> Any:
    """Launch while the kernel before still runs: this one waits for it by itself."""
    attribute = bindings.CUlaunchAttribute()
    attribute.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


class _Event:
    """An event of CUDA's. pycuda's own do not say their handle, which recording in a graph needs."""

    __slots__ = ("_driver", "handle")

    def __init__(self, driver: CudaDriver, flags: int) -> None:
        self._driver = driver
        self.handle = _call(bindings.cuEventCreate, flags)

    def __del__(self) -> None:
        if self._driver.is_open and hasattr(self, "handle"):  # else it is gone, or never was
            bindings.cuEventDestroy(self.handle)


class CudaDriver:
    """One GPU, by its CUDA number in this process."""

    name = "cuda"
    has_kernels = True

    def __init__(self, index: int) -> None:
        cuda.init()
        device = cuda.Device(index)
        self.device_name = device.name()
        self.device_id = _uuid(index)
        self.dlpack_device: tuple[int, int] | None = (2, index)
        capability = device.compute_capability()
        # The "a" brings what is this architecture's alone: wgmma, the sharing out of registers.
        self.architecture = "sm_{}{}".format(*capability) + ("a" if capability == (9, 0) else "")
        self._can_overlap = capability >= (9, 0)
        attribute = cuda.device_attribute
        self.multiprocessors = device.get_attribute(attribute.MULTIPROCESSOR_COUNT)
        self.shared_memory = device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        handle = _call(bindings.cuDeviceGet, index)
        bindings.cuDevicePrimaryCtxRetain(handle)  # makes it, and lets other threads work meanwhile
        self._context = device.retain_primary_context()  # raises what there is to raise
        bindings.cuDevicePrimaryCtxRelease(handle)
        self._context.push()
        self.ledger = Ledger()
        self._allocations: dict[int, Any] = {}
        self._pinned: list[Any] = []
        self._imported: dict[int, Any] = {}
        self._graphs: list[Any] = []
        self._modules: list[Any] = []
        self.is_open = True
        atexit.register(self.close)

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._context.synchronize()
        for graph in self._graphs:
            bindings.cuGraphExecDestroy(graph)
        for module in self._modules:
            bindings.cuModuleUnload(module)
        for imported in self._imported.values():
            imported.close()
        for allocation in self._allocations.values():
            allocation.free()
        for allocation in self._pinned:
            allocation.free()
        self._context.pop()

    def allocate(self, nbytes: int) -> int:
        try:
            allocation = cuda.mem_alloc(max(nbytes, 1))
        except cuda.MemoryError:
            raise _no_memory(f"{self.device_name}: {nbytes / 1e6:.0f} MB of GPU memory asked") from None
        # Held here so that garbage collection never frees memory that a stream may still use.
        self._allocations[int(allocation)] = allocation
        self.ledger.allocated(int(allocation), nbytes)
        return int(allocation)

    def free(self, pointer: int) -> None:
        self._allocations.pop(pointer).free()
        self.ledger.freed(pointer)

    def free_memory(self) -> int:
        free, _ = cuda.mem_get_info()
        return int(free)

    def allocate_pinned(self, nbytes: int, write_only: bool = False) -> np.ndarray:
        flags = cuda.host_alloc_flags.WRITECOMBINED if write_only else 0
        try:
            block = cuda.pagelocked_empty(max(nbytes, 1), np.uint8, mem_flags=flags)
        except cuda.MemoryError:
            free = HostMemory.now().free
            raise UserError(
                f"{nbytes / 1e6:.0f} MB of page-locked host memory asked, {free / 1e6:.0f} MB of host memory "
                "free: use a smaller --batch or --hidden, or fewer ranks a node"
            ) from None
        self._pinned.append(block.base)
        self.ledger.allocated_pinned(nbytes)
        return block[:nbytes]

    def allocate_mapped(self, nbytes: int) -> tuple[np.ndarray, int]:
        block = self.allocate_pinned(nbytes)
        block[:] = 0
        return block, int(block.ctypes.data)  # unified addressing: one pointer for both

    def host_view(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        raise RuntimeError("GPU memory has no host view: copy it to the host")

    def export_memory(self, pointer: int) -> bytes:
        if pointer not in self._allocations:  # CUDA takes any, and gives the start of the allocation
            raise ValueError("only whole allocations can be exported, not views")
        return bytes(cuda.mem_get_ipc_handle(pointer))

    def import_memory(self, handle: bytes) -> int:
        try:
            imported = cuda.IPCMemoryHandle(bytearray(handle))
        except cuda.Error as error:
            raise UserError(
                f"{self.device_name} cannot use memory of another rank ({error}): the ranks must be on one "
                "machine and their GPUs able to reach each other (nvidia-smi topo -p2p rw)"
            ) from None
        # Held here so that garbage collection never closes memory that a stream may still use.
        self._imported[int(imported)] = imported
        return int(imported)

    def release_memory(self, pointer: int) -> None:
        self._imported.pop(pointer).close()

    def copy_to_device(self, pointer: int, host: np.ndarray, stream: cuda.Stream) -> None:
        cuda.memcpy_htod_async(pointer, host, stream)

    def copy_to_host(self, host: np.ndarray, pointer: int, stream: cuda.Stream) -> None:
        cuda.memcpy_dtoh_async(host, pointer, stream)

    def fill(self, pointer: int, byte: int, nbytes: int, stream: cuda.Stream) -> None:
        cuda.memset_d8_async(pointer, byte, nbytes, stream)

    def create_stream(self) -> cuda.Stream:
        return cuda.Stream(int(bindings.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def synchronize_stream(self, stream: cuda.Stream) -> None:
        stream.synchronize()

    def synchronize(self) -> None:
        self._context.synchronize()

    def create_event(self, timing: bool) -> _Event:
        flags = bindings.CUevent_flags
        return _Event(self, int(flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING))

    def record(self, event: _Event, stream: cuda.Stream) -> None:
        _call(bindings.cuEventRecord, event.handle, stream.handle)

    def wait(self, stream: cuda.Stream, event: _Event) -> None:
        _call(bindings.cuStreamWaitEvent, stream.handle, event.handle, 0)

    def is_done(self, event: _Event) -> bool:
        (status,) = bindings.cuEventQuery(event.handle)
        if status not in (bindings.CUresult.CUDA_SUCCESS, bindings.CUresult.CUDA_ERROR_NOT_READY):
            raise RuntimeError(f"cuEventQuery: {status.name}")
        return status == bindings.CUresult.CUDA_SUCCESS

    def synchronize_event(self, event: _Event) -> None:
        _call(bindings.cuEventSynchronize, event.handle)

    def elapsed(self, start: _Event, stop: _Event) -> float:
        return _call(bindings.cuEventElapsedTime, start.handle, stop.handle) * 1e-3

    def begin_capture(self, stream: cuda.Stream) -> None:
        # Of this thread: what others do meanwhile (an MPI's, a tool's) does not break the capture.
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _call(bindings.cuStreamBeginCapture, stream.handle, mode)

    def end_capture(self, stream: cuda.Stream) -> Callable[[cuda.Stream], None]:
        description = _call(bindings.cuStreamEndCapture, stream.handle)
        try:
            graph = _call(bindings.cuGraphInstantiate, description, 0)
        finally:
            _call(bindings.cuGraphDestroy, description)
        self._graphs.append(graph)

        def launch(stream: cuda.Stream) -> None:
            _call(bindings.cuGraphLaunch, graph, stream.handle)

        return launch

    def record_in_graph(self, event: _Event, stream: cuda.Stream) -> None:
        flag = int(bindings.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL)
        _call(bindings.cuEventRecordWithFlags, event.handle, stream.handle, flag)

    def tensor_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        box: tuple[int, int, int, int],
    ) -> bytes:
        tensor_map = _call(
            bindings.cuTensorMapEncodeTiled,
            bindings.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            len(sizes),
            pointer,
            [bindings.cuuint64_t(size) for size in sizes],
            [bindings.cuuint64_t(stride) for stride in strides],
            [bindings.cuuint32_t(size) for size in box],
            [bindings.cuuint32_t(1)] * len(sizes),
            bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            bindings.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            bindings.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            bindings.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return ctypes.string_at(tensor_map.getPtr(), TENSOR_MAP_BYTES)

    def window_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        corners: tuple[tuple[int, int], tuple[int, int]],
        box: tuple[int, int],
        step: int,
    ) -> bytes:
        window_map = _call(
            bindings.cuTensorMapEncodeIm2col,
            bindings.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            len(sizes),
            pointer,
            [bindings.cuuint64_t(size) for size in sizes],
            [bindings.cuuint64_t(stride) for stride in strides],
            list(corners[0]),
            list(corners[1]),
            *box,
            [bindings.cuuint32_t(count) for count in (1, step, step, 1)],
            bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            bindings.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            bindings.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            bindings.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return ctypes.string_at(window_map.getPtr(), TENSOR_MAP_BYTES)

    def is_compiled(self, source: str, cache_dir: str) -> bool:
        return is_kept(self._cache_folder(source, cache_dir))

    def compile(self, source: str, cache_dir: str) -> None:
        # pycuda writes its cache in place, so a killed job would leave half a cubin behind for ever:
        # each source gets a folder of its own.
        def fill(scratch: Path) -> None:
            try:
                pycuda.compiler.compile(source, cache_dir=str(scratch), **self._compile_options())
            except cuda.CompileError as error:
                raise UserError(f"nvcc does not compile it\n{error.stderr or error.stdout}") from None

        make_folder(self._cache_folder(source, cache_dir), fill)

    def load_module(self, source: str, cache_dir: str) -> Any:
        self.compile(source, cache_dir)
        folder = self._cache_folder(source, cache_dir)
        cubin = pycuda.compiler.compile(source, cache_dir=str(folder), **self._compile_options())
        module = _call(bindings.cuModuleLoadData, cubin)
        self._modules.append(module)
        return module

    def _cache_folder(self, source: str, cache_dir: str) -> Path:
        key = "\0".join([source, _nvcc_version(), pycuda.VERSION_TEXT, repr(self._compile_options())])
        return Path(cache_dir) / hashlib.sha256(key.encode()).hexdigest()[:32]

    def _compile_options(self) -> dict[str, Any]:
        return {
            "nvcc": nvcc.find_nvcc(),
            "arch": self.architecture,
            "no_extern_c": True,
            "options": nvcc.options(_nvcc_version()),
        }

    def function(self, module: Any, name: str) -> Any:
        return _call(bindings.cuModuleGetFunction, module, name.encode())

    def launcher(
        self, function: Any, grid: Shape3, block: Shape3, arguments: bytes, shared: int, overlaps: bool
    ) -> Callable[[cuda.Stream], None]:
        # What is beyond 48 KiB must be allowed first; what another launch of the kernel needs stays allowed.
        most = bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if shared > _call(bindings.cuFuncGetAttribute, most, function):
            _call(bindings.cuFuncSetAttribute, function, most, shared)
        config = bindings.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared
        if overlaps and self._can_overlap:
            config.attrs, config.numAttrs = [_overlapping()], 1
        parameters = _PackedParameters(arguments)
        launched_on = 0

        def launch(stream: cuda.Stream) -> None:
            nonlocal launched_on
            if launched_on != stream.handle:
                launched_on = stream.handle
                config.hStream = bindings.CUstream(launched_on)
            _call(bindings.cuLaunchKernelEx, config, function, 0, parameters.address)

        return launch
