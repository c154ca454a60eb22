"""The forms of kernels and parameters in docs/reference/kernel_files.md, compiled and launched.

On a GPU where there is one, else on the emulated device.
"""

from __future__ import annotations

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.kernels import KernelLibrary
from tests.pyrt.sources import folder_of

SOURCE = r"""
// constants: WIDE=0|1
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdint>
/* " in a comment, 'quotes', extern "C" __global__ void commented(int n) {} */
#define BLOCK 256
#define RESTRICT __restrict__
#define KERNEL extern "C" __global__ void
#if WIDE && !defined(NARROW)
typedef double real;
#else
typedef float real;
#endif
using word = unsigned long long;
__device__ inline char quote() { return '"' + '{'; }

template <class T> __device__ T twice(T x) { return 2 * x; }
template <class T> __global__ void any(T *x) { *x = twice(*x); }
namespace mine { __device__ inline int one() { return 1; } }

extern "C" {
__global__ void numbers(bool yes, signed char a, unsigned char b, short c, unsigned short int d, int e,
                        unsigned f, long g, long long h, unsigned long long i, size_t j, std::uint32_t k,
                        long unsigned int l, uint m, double *out)
{
    const double values[] = {double(yes), double(a), double(b), double(c), double(d), double(e), double(f),
                             double(g), double(h), double(i), double(j), double(k), double(l), double(m)};
    for (int n = 0; n < 14; n++)
        out[n] = values[n];
}
}

extern "C" __launch_bounds__(BLOCK) __global__
void vectors(char a, float4 b, char2 c, float3 d, int2 e, half f, uchar4 g, double2 h, half2 i, short4 j,
             longlong2 k, char l, real out[])
{
    const real values[] = {real(a), b.x, b.w, real(c.x), real(c.y), d.x, d.z, real(e.x), real(e.y),
                           __half2float(f), real(g.x), real(g.w), real(h.x), real(h.y), __low2float(i),
                           __high2float(i), real(j.x), real(j.w), real(k.x), real(k.y), real(l)};
    for (int n = 0; n < 21; n++)
        out[n] = values[n];
}

KERNEL arrays(int n, const unsigned int *RESTRICT a, const long long b[], const half *__restrict__ c, bool *d,
              const float4 *e, const short *f, word *g, half2 *h, real *out)
{
    const int i = threadIdx.x;
    if (i < n)
        out[i] = real(twice(a[i]) + b[i] + d[i] + f[i] + g[i] + mine::one()) + __half2float(c[i]) + e[i].w;
    if (i < n)
        h[i] = __floats2half2_rn(i, __half2float(c[i]) + 0.5f);
}

extern "C" __global__ void declared(int, float *);
__global__ void declared(int n, float *x) { x[0] = n; }

extern "C" __global__ void no_parameters(void) {}
"""


@pytest.fixture(scope="module")
def forms(driver: Driver) -> KernelLibrary:
    return KernelLibrary(driver, [folder_of("forms", SOURCE)])


def launched(
    forms: KernelLibrary, name: str, wide: int, threads: int, *arguments: object
) -> list[np.ndarray]:
    """What the kernel has left in the arrays among its arguments."""
    there = [
        DeviceArray.from_host(forms.driver, one) if isinstance(one, np.ndarray) else one for one in arguments
    ]
    forms.kernel("forms", name, WIDE=wide).bind((1,), (threads,), *there)(forms.driver.create_stream())
    return [array.to_host() for array in there if isinstance(array, DeviceArray)]


def test_numbers_of_every_type(forms: KernelLibrary) -> None:
    given = [
        True,
        -128,
        255,
        -32768,
        65535,
        -(2**31),
        2**32 - 1,
        -(2**62),
        2**62,
        2**63,
        2**40,
        2**32 - 2,
        9,
        10,
    ]
    (out,) = launched(forms, "numbers", 0, 1, *given, np.zeros(14))
    np.testing.assert_array_equal(out, np.array(given, float))


@pytest.mark.parametrize(("wide", "real"), [(0, "f4"), (1, "f8")])
def test_vectors_by_value(forms: KernelLibrary, wide: int, real: str) -> None:
    given = [1, (2, 3, 4, 5), (6, 7), (8, 9, 10), [11, 12], 13.5, (14, 15, 16, 17), (18, 19), (20, 21)]
    given += [(22, 23, 24, 25), (26, 27), 28]
    (out,) = launched(forms, "vectors", wide, 1, *given, np.zeros(21, real))
    expected = [1, 2, 5, 6, 7, 8, 10, 11, 12, 13.5, 14, 17, 18, 19, 20, 21, 22, 25, 26, 27, 28]
    np.testing.assert_array_equal(out, expected)


def test_arrays_of_every_type(forms: KernelLibrary) -> None:
    n = 8
    r = np.arange(n)
    arrays = [r.astype(dtype) for dtype in ("u4", "i8", "f2", "?")]
    arrays += [np.arange(4 * n, dtype="f4"), r.astype("i2"), r.astype("u8"), np.zeros((n, 2), "f2")]
    *_, h, out = launched(forms, "arrays", 1, n, n, *arrays, np.zeros(n))
    np.testing.assert_array_equal(out, 2 * r + r + (r > 0) + r + r + 1 + r + 4 * r + 3)
    np.testing.assert_array_equal(h, np.stack([r, r + 0.5], axis=1))


def test_kernels_declared_before_or_without_parameters(forms: KernelLibrary) -> None:
    (x,) = launched(forms, "declared", 0, 1, 5, np.zeros(1, "f4"))
    assert x == 5
    assert launched(forms, "no_parameters", 0, 1) == []
