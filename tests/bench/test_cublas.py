"""bench/cublas.py: the arguments that a column-major cuBLAS is given; what is missing is passed over."""

import contextlib
import ctypes
import types

import numpy as np
import pytest

from bench import cublas
from nn.launch.gemm import Product
from pyrt.arrays import DeviceArray


def columns(address, rows, count, ld):
    """A column-major float32 matrix at an address, ``ld`` elements from one column to the next."""
    flat = np.ctypeslib.as_array((ctypes.c_float * (ld * count)).from_address(address))
    return flat.reshape(count, ld).T[:rows]


class FakeCublas:
    """gemmEx by its documentation, in host memory."""

    def getVersion(self, handle):
        return 130000

    def gemmEx(
        self, handle, ta, tb, m, n, k, alpha, A, a_type, lda, B, b_type, ldb, beta, C, c_type, ldc, kind, algo
    ):
        assert (handle, a_type, b_type, c_type, kind, algo) == ("handle", 0, 0, 0, 77, -1)
        left = columns(A, k, m, lda).T if ta else columns(A, m, k, lda)
        right = columns(B, n, k, ldb).T if tb else columns(B, k, n, ldb)
        one, zero = (columns(address, 1, 1, 1)[0, 0] for address in (alpha, beta))
        columns(C, m, n, ldc)[:] = one * (left @ right) + zero


@pytest.fixture
def installed(monkeypatch):
    """The modules that can be imported, by name."""
    modules = {}

    def load(name):
        if name not in modules:
            raise ImportError(name)
        return modules[name]

    monkeypatch.setattr(cublas.importlib, "import_module", load)
    return modules


def cupy(sees_gpu=True):
    device = types.SimpleNamespace(get_cublas_handle=lambda: "handle")
    cuda = types.SimpleNamespace(device=device, ExternalStream=contextlib.nullcontext)
    return types.SimpleNamespace(cuda=cuda, is_available=lambda: sees_gpu, __version__="14")


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_cupy_product(installed, transpose_a, transpose_b):
    installed.update({"cupy": cupy(), "cupy.cuda.cublas": FakeCublas()})
    rng = np.random.default_rng(0)
    M, N, K = 3, 5, 7
    A = rng.random((K, M) if transpose_a else (M, K), np.float32)
    B = rng.random((N, K) if transpose_b else (K, N), np.float32)
    D = np.full((M, N), np.nan, np.float32)
    there = [DeviceArray(None, host.ctypes.data, host.shape, host.dtype, host.shape[1]) for host in (D, A, B)]
    way = cublas.find()
    assert way.name == "cuBLAS 130000, through CuPy 14"
    product = Product(*there, transpose_a, transpose_b)
    way.product(product, "tf32")(types.SimpleNamespace(handle=1))
    np.testing.assert_allclose(
        D, (A.T if transpose_a else A) @ (B.T if transpose_b else B), rtol=1e-5, atol=1e-6
    )


def test_what_is_missing_or_sees_no_gpu_is_passed_over(installed):
    assert cublas.find() is None
    installed["cupy"] = cupy(sees_gpu=False)
    blind = types.SimpleNamespace(is_available=lambda: False)
    installed["torch"] = types.SimpleNamespace(cuda=blind)
    assert cublas.find() is None
