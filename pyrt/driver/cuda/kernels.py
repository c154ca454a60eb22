"""Kernels of a GPU, from source to launch; and what describes matrices and images to them.

They are compiled by `pycuda.compiler.compile`, as by a SourceModule, but loaded through cuda-bindings:
pycuda's Module and Function hide their handles (pycuda 2026.1, src/wrapper/wrap_cudadrv.cpp) and launch by
cuLaunchKernel, which takes no attributes, and a launch that overlaps needs the handle for cuLaunchKernelEx.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pycuda
import pycuda.compiler
import pycuda.driver as cuda
from cuda.bindings import driver as bindings

from pyrt.cache import is_kept, make_folder
from pyrt.driver import TENSOR_MAP_BYTES, Shape3, nvcc
from pyrt.driver.cuda.calls import call
from pyrt.errors import UserError


def _nvcc_version() -> str:
    """Return nvcc's version in its own words. Raises UserError."""
    try:
        return str(pycuda.compiler.get_nvcc_version(nvcc.find_nvcc()))
    except OSError as error:
        raise UserError(f"nvcc does not run: {error}") from None


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


class CudaKernels:
    """The calls of the driver for kernels, of a GPU of this compute capability, in the current context."""

    def __init__(self, capability: tuple[int, int]) -> None:
        # The "a" brings what is this architecture's alone: wgmma, the sharing out of registers.
        self.architecture = "sm_{}{}".format(*capability) + ("a" if capability == (9, 0) else "")
        self._can_overlap = capability >= (9, 0)
        self._modules: list[Any] = []

    def _unload(self) -> None:
        """Unload all modules."""
        for module in self._modules:
            bindings.cuModuleUnload(module)

    def tensor_map(
        self,
        pointer: int,
        sizes: tuple[int, int, int, int],
        strides: tuple[int, int, int],
        box: tuple[int, int, int, int],
    ) -> bytes:
        tensor_map = call(
            bindings.cuTensorMapEncodeTiled,
            bindings.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            len(sizes),
            pointer,
            [bindings.cuuint64_t(size) for size in sizes],
            [bindings.cuuint64_t(stride) for stride in strides],
            [bindings.cuuint32_t(size) for size in box],
            [bindings.cuuint32_t(1)] * len(sizes),
            bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(bindings.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{2 * box[0]}B"),
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
        window_map = call(
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
        module = call(bindings.cuModuleLoadData, cubin)
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
        return call(bindings.cuModuleGetFunction, module, name.encode())

    def launcher(
        self, function: Any, grid: Shape3, block: Shape3, arguments: bytes, shared: int, overlaps: bool
    ) -> Callable[[cuda.Stream], None]:
        # A kernel must be allowed more than 48 KiB first; the most that a launch of it needs stays allowed.
        most = bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if shared > call(bindings.cuFuncGetAttribute, most, function):
            call(bindings.cuFuncSetAttribute, function, most, shared)
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
            call(bindings.cuLaunchKernelEx, config, function, 0, parameters.address)

        return launch
