"""cuBLAS's matrix products on the project's own arrays and streams, through PyTorch or CuPy.

Both work in the GPU's primary context, which pyrt uses too: so the arrays are the same memory, and the
products are captured and timed as the project's own are.
"""

from __future__ import annotations

import importlib
from typing import Protocol

import numpy as np

from nn.launch.gemm import Product
from pyrt.clock import Work
from pyrt.driver import StreamHandle

MATHS = ("float32", "tf32")
"""How cuBLAS may multiply float32: as such, or rounded to TF32 on tensor cores."""

_COMPUTE = {"float32": 68, "tf32": 77}  # CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32
_FLOAT = 0  # CUDA_R_32F
_DEFAULT = -1  # CUBLAS_GEMM_DEFAULT


class Cublas(Protocol):
    """A way to cuBLAS."""

    name: str

    def product(self, product: Product, math: str) -> Work:
        """D = op(A) op(B), contiguous float32 matrices, as work for a stream; ``math`` of `MATHS`."""


def find() -> Cublas | None:
    """cuBLAS through what is installed and sees a GPU."""
    for kind in (TorchCublas, CupyCublas):
        try:
            return kind()
        except ImportError:
            continue
    return None


class TorchCublas:
    """torch.mm. Raises ImportError where PyTorch is missing or sees no GPU."""

    def __init__(self) -> None:
        self._torch = torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise ImportError("PyTorch sees no GPU")
        self.name = f"cuBLAS of CUDA {torch.version.cuda}, through PyTorch {torch.__version__}"

    def product(self, product: Product, math: str) -> Work:
        torch = self._torch
        arrays = product.D, product.A, product.B
        out, left, right = (torch.as_tensor(array, device="cuda") for array in arrays)
        left = left.t() if product.transpose_a else left
        right = right.t() if product.transpose_b else right

        def queue(stream: StreamHandle) -> None:
            torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
                torch.mm(left, right, out=out)

        return queue


class CupyCublas:
    """cublasGemmEx. Raises ImportError where CuPy is missing or sees no GPU."""

    def __init__(self) -> None:
        self._cupy = cupy = importlib.import_module("cupy")
        if not cupy.is_available():
            raise ImportError("CuPy sees no GPU")
        self._cublas = importlib.import_module("cupy.cuda.cublas")
        self._handle = cupy.cuda.device.get_cublas_handle()
        version = self._cublas.getVersion(self._handle)
        self.name = f"cuBLAS {version}, through CuPy {cupy.__version__}"
        self._one, self._zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def product(self, product: Product, math: str) -> Work:
        # cuBLAS is column-major: each of our arrays is its transpose there. D^T = op(B)^T op(A)^T.
        (M, N, K), D, A, B = product.sizes, product.D, product.A, product.B
        arguments = (
            *(int(product.transpose_b), int(product.transpose_a), N, M, K),
            *(self._one.ctypes.data, B.pointer, _FLOAT, B.ld, A.pointer, _FLOAT, A.ld),
            *(self._zero.ctypes.data, D.pointer, _FLOAT, D.ld),
            *(_COMPUTE[math], _DEFAULT),
        )

        def queue(stream: StreamHandle) -> None:
            with self._cupy.cuda.ExternalStream(stream.handle):
                self._cublas.gemmEx(self._handle, *arguments)

        return queue
