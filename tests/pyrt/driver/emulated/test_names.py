"""CUDA's names on the emulated device, each against what CUDA's manual says of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from tests.pyrt.driver.emulated.conftest import Bench


def ints(count: int) -> np.ndarray:
    return np.zeros(count, np.int32)


def check_each(plain: Bench, expected: Mapping[str, object], kind: str = "int", rtol: float = 0.0) -> None:
    """Compare the value of each expression in each of 64 threads of a block; ``i`` is the thread."""
    lines = "\n".join(f"out[{row * 64} + i] = {value};" for row, value in enumerate(expected))
    source = f"""
    #include <cuda_fp16.h>
    extern "C" __global__ void test({kind} *out)
    {{
        const int i = threadIdx.x;
        {lines}
    }}"""
    dtype = {"int": np.int32, "double": np.float64}[kind]
    (out,) = plain.kernel(source)(1, 64, np.zeros((len(expected), 64), dtype))
    for row, (value, right) in zip(out, expected.items(), strict=True):
        np.testing.assert_allclose(row, right, rtol=rtol, err_msg=value)


I = np.arange(64)
LANE = I % 32


class TestPlaces:
    def test_threads_and_blocks_in_three_dimensions(self, plain: Bench) -> None:
        kernel = plain.named(
            "places",
            """
        extern "C" __global__ void places(int *out)
        {
            const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
            const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
            out[block * blockDim.x * blockDim.y * blockDim.z + thread] += thread + 1000 * block;
        }""",
        )
        out = DeviceArray.from_host(plain.driver, ints(2 * 3 * 4 * 5 * 3 * 2))
        kernel.bind((2, 3, 4), (5, 3, 2), out)(plain.stream)
        block, thread = np.divmod(np.arange(out.size), 30)
        np.testing.assert_array_equal(out.to_host(), thread + 1000 * block)


class TestBarriers:
    def test_counting_forms(self, plain: Bench) -> None:
        expected: dict[str, object] = {
            "__syncthreads_count(i < 41)": 41,
            "__syncthreads_count(2 * i)": 63,
            "__syncthreads_and(i < 64)": 1,
            "__syncthreads_and(i != 50)": 0,
            "__syncthreads_or(i == 50)": 1,
            "__syncthreads_or(0)": 0,
        }
        check_each(plain, expected)

    def test_what_was_written_before_is_seen_after(self, plain: Bench) -> None:
        source = """
        extern "C" __global__ void test(int *out)
        {
            __shared__ int place[70];
            for (int round = 0; round < 5; round++) {
                place[threadIdx.x] = threadIdx.x + round;
                __syncthreads();
                out[threadIdx.x] += place[(threadIdx.x + 1 + round) % 70];
                __syncthreads();
            }
        }"""
        (out,) = plain.kernel(source)(1, 70, ints(70))
        expected = sum((np.arange(70) + 1 + r) % 70 + r for r in range(5))
        np.testing.assert_array_equal(out, expected)


class TestWarps:
    def test_shuffles(self, plain: Bench) -> None:
        lanes = {
            "__shfl_sync(~0u, 3 * i, 5)": I - LANE + 5,
            "__shfl_sync(~0u, 3 * i, i + 1, 8)": I // 8 * 8 + (I + 1) % 8,
            "__shfl_up_sync(~0u, 3 * i, 3)": np.where(LANE < 3, I, I - 3),
            "__shfl_up_sync(~0u, 3 * i, 3, 8)": np.where(I % 8 < 3, I, I - 3),
            "__shfl_down_sync(~0u, 3 * i, 3)": np.where(LANE > 28, I, I + 3),
            "__shfl_down_sync(~0u, 3 * i, 3, 16)": np.where(I % 16 > 12, I, I + 3),
            "__shfl_xor_sync(~0u, 3 * i, 5)": I ^ 5,
            # A higher segment may read from a lower one, not the other way round.
            "__shfl_xor_sync(~0u, 3 * i, 8, 8)": np.where(I & 8, I ^ 8, I),
        }
        check_each(plain, {value: 3 * lane for value, lane in lanes.items()})

    def test_shuffles_of_eight_bytes(self, plain: Bench) -> None:
        check_each(plain, {"__shfl_xor_sync(~0u, i / 3.0, 1)": (I ^ 1) / 3.0}, kind="double")

    def test_votes(self, plain: Bench) -> None:
        expected: dict[str, object] = {
            "__ballot_sync(~0u, i % 2)": -0x55555556,
            "i % 32 < 8 ? __ballot_sync(0xff, i % 3 == 0) : 0": np.where(
                LANE < 8, np.where(I < 32, 0b01001001, 0b10010010), 0
            ),
            "__any_sync(~0u, i == 40)": I // 32,
            "__all_sync(~0u, i != 40)": 1 - I // 32,
        }
        check_each(plain, expected)

    def test_parts_of_a_warp_meet_by_themselves(self, plain: Bench) -> None:
        source = """
        extern "C" __global__ void test(int *out)
        {
            const unsigned low = 0xffff;
            int value = threadIdx.x;
            if (threadIdx.x < 16)
                for (int distance = 8; distance > 0; distance /= 2)
                    value += __shfl_xor_sync(low, value, distance);
            else
                value = __shfl_sync(~low, value, 20);
            out[threadIdx.x] = __shfl_sync(low | ~low, value, 31 - threadIdx.x);
        }"""
        (out,) = plain.kernel(source)(1, 32, ints(32))
        np.testing.assert_array_equal(out, [20] * 16 + [120] * 16)

    def test_syncwarp_orders_shared_memory(self, checking: Bench) -> None:
        source = """
        extern "C" __global__ void test(int *out)
        {
            __shared__ int place[32];
            place[threadIdx.x] = threadIdx.x;
            __syncwarp();
            out[threadIdx.x] = place[31 - threadIdx.x];
        }"""
        (out,) = checking.kernel(source)(1, 32, ints(32))
        np.testing.assert_array_equal(out, 31 - np.arange(32))


class TestSharedMemory:
    SOURCE = """
    struct alignas(32) Wide { double of[4]; };

    template <class T>
    __device__ T *twice(int i)
    {
        __shared__ T one[64];
        one[i] = T(i) / 2;
        return one;
    }

    extern "C" __global__ void test(int n, float *floats, double *doubles, int *aligned)
    {
        extern __shared__ __align__(16) int dynamic[];
        __shared__ Wide wide;  // a comment; with a semicolon
        __shared__ __align__(64) unsigned char bytes[3];
        const int i = threadIdx.x;
        dynamic[n - 1 - i] = i;
        float *f = twice<float>(i);
        double *d = twice<double>(i);
        __syncthreads();
        floats[i] = f[n - 1 - i] + dynamic[i];
        doubles[i] = d[n - 1 - i];
        aligned[i] = ((size_t)&wide % 32 == 0) + 2 * ((size_t)bytes % 64 == 0) + 4 * ((void *)f != (void *)d);
    }"""

    @pytest.mark.parametrize("bench", ["plain", "checking"])
    def test_every_declaration_has_its_own(self, request: pytest.FixtureRequest, bench: str) -> None:
        kernel = request.getfixturevalue(bench).kernel(self.SOURCE)
        floats, doubles, aligned = kernel(
            1, 64, 64, np.zeros(64, "f4"), np.zeros(64), ints(64), shared=64 * 4
        )
        np.testing.assert_array_equal(doubles, I[::-1] / 2)
        np.testing.assert_array_equal(floats, I[::-1] * 1.5)
        assert set(aligned) == {7}


class TestAtomics:
    CALLS = (
        ("Add({}, i)", 5, 5 + I.sum()),
        ("Sub({}, i)", 5, 5 - I.sum()),
        ("Min({}, i + 3)", 50, 3),
        ("Max({}, i)", 5, 63),
        ("And({}, ~(i & 12))", 255, 255 & ~12),
        ("Or({}, i & 12)", 1, 13),
        ("Xor({}, i)", 9, 9),
        ("Inc((unsigned *){}, 9)", 0, 4),
        ("Dec((unsigned *){}, 9)", 0, 6),
        ("Exch({}, 7)", 5, 7),
        ("CAS({}, i, i + 1)", 0, 64),
    )
    """Each with what was there before, and what is there at the end."""

    @pytest.mark.parametrize("scope", ["", "_block", "_system"])
    def test_integers(self, plain: Bench, scope: str) -> None:
        lines = []
        for place, (call, *_) in enumerate(self.CALLS):
            name, arguments = call.split("(", 1)
            lines.append(f"atomic{name}{scope}({arguments.format(f'(x + {place})')};")
        source = f"""
        extern "C" __global__ void test(int *x)
        {{
            const int i = threadIdx.x;
            {" ".join(lines)}
        }}"""
        calls, before, after = zip(*self.CALLS, strict=True)
        (x,) = plain.kernel(source)(1, 64, np.array(before, np.int32))
        assert dict(zip(calls, x, strict=True)) == dict(zip(calls, after, strict=True))

    def test_real_numbers_over_all_cores(self, plain: Bench) -> None:
        source = """
        extern "C" __global__ void test(float *f, double *d)
        {
            atomicAdd(f, 1.0f);
            atomicAdd(d, 0.5);
        }"""
        f, d = plain.kernel(source)(100, 64, np.zeros(1, "f4"), np.zeros(1))
        assert (f, d) == (6400, 3200)

    def test_they_give_what_was_there(self, plain: Bench) -> None:
        source = 'extern "C" __global__ void test(int *x, int *seen) { seen[threadIdx.x] = atomicAdd(x, 2); }'
        _, seen = plain.kernel(source)(1, 64, ints(1), ints(64))
        assert sorted(seen) == list(range(0, 128, 2))


class TestArithmetic:
    def test_whole_numbers(self, plain: Bench) -> None:
        expected: dict[str, object] = {
            "min(i, 5) + max(i, 60)": np.minimum(I, 5) + np.maximum(I, 60),
            "__popc(i)": [i.bit_count() for i in range(64)],
            "__ffs(i)": [(i & -i).bit_length() for i in range(64)],
            "__clz(i)": [32 - i.bit_length() for i in range(64)],
            "__float_as_int(__int_as_float(i + 1000))": I + 1000,
            "__float_as_int(1.0f)": 0x3F800000,
            "__float_as_uint(__uint_as_float(i + 3000000000u)) - 3000000000u": I,
            "__float_as_uint(-0.0f) >> 31": 1,
            "warpSize": 32,
            "sizeof(float4) + 100 * alignof(float4)": 1616,
            "alignof(double2) + 100 * alignof(double4)": 1616,
            "alignof(longlong2) + 100 * alignof(short4) + 10000 * alignof(char4)": 40816,
            "make_char2(0, i).y + make_ulonglong3(0, 0, i).z + make_short2(i, 0).x": 3 * I,
        }
        check_each(plain, expected)

    def test_real_numbers(self, plain: Bench) -> None:
        expected: dict[str, object] = {
            "rsqrt(i + 1.0)": 1 / np.sqrt(I + 1),
            "rsqrtf(i + 1.0f)": 1 / np.sqrt(I + 1),
            "__expf(i / 9.0f)": np.exp(I / 9),
            "__logf(i + 1.0f)": np.log(I + 1),
            "__fdividef(i, 3)": I / 3,
            "exp(-float(i)) + tanhf(i)": np.exp(-I.astype(float)) + np.tanh(I),
            "fmaxf(i, 3) * sqrtf(i)": np.maximum(I, 3) * np.sqrt(I),
        }
        check_each(plain, expected, kind="double", rtol=1e-6)

    def test_numbers_of_16_bits(self, plain: Bench) -> None:
        h = "half(i)"
        expected: dict[str, object] = {
            "sizeof(half) + 100 * alignof(half2)": 402,
            "__half2float(__float2half(0.1f))": float(np.float16(0.1)),
            "float(__double2half(0.1))": float(np.float16(0.1)),
            "__half2float(__int2half_rn(2049))": 2048,
            "__half2float(__float2half_rn(1e6f))": np.inf,
            "__half2int_rn(half(2.5f)) + 100 * __half2int_rn(half(-3.5f))": 2 - 400,
            "__half2float(__hadd(half(2048), half(1)))": 2048,
            f"float(__hsub({h}, half(9))) + float(half(2) - half(1.5f))": I - 8.5,
            f"__half2float(__hmul({h}, half(0.5f)))": I / 2,
            "__half2float(__hdiv(half(1), half(3)))": float(np.float16(1 / 3)),
            f"__half2float(__hfma({h}, half(3), half(0.5f)))": 3 * I + 0.5,
            "float(__hneg(__habs(half(-2))))": -2,
            f"__half2float(__hmax({h}, half(5)))": np.maximum(I, 5),
            f"__half2float(__hmin({h}, half(9)))": np.minimum(I, 9),
            f"__heq({h}, half(3)) + 2 * __hlt({h}, half(3)) + 4 * __hgt({h}, half(3))": 4
            - 3 * (I == 3)
            - 2 * (I < 3),
            "__half2float(hsqrt(half(4))) + __half2float(hexp(half(0))) + __half2float(hlog(half(1)))": 3,
            f"__low2float(__halves2half2({h}, half(0))) + __high2float(make_half2(half(1), half(2)))": I + 2,
            f"__half2float(__low2half(__half2half2({h})))": I,
            f"__half2float(__high2half(make_half2(half(1), {h})))": I,
            "__half22float2(__hadd2(__floats2half2_rn(i, 1), __float22half2_rn(make_float2(2, i)))).y": I + 1,
            f"__low2float(__hfma2(__half2half2({h}), __half2half2(half(2)), __half2half2(half(1))))": 2 * I
            + 1,
            f"__high2float(__hmul2(__half2half2({h}), __half2half2(half(2))))": 2 * I,
        }
        check_each(plain, expected, kind="double")

    def test_vectors(self, plain: Bench) -> None:
        source = """
        extern "C" __global__ void __launch_bounds__(8) test(const float *__restrict__ x, float *y)
        {
            const float4 v = __ldg((const float4 *)x + threadIdx.x);
            const uchar4 bytes = make_uchar4(1, 2, 3, 4);
            const int2 pair = make_int2(10, 20);
            ((float4 *)y)[threadIdx.x] = make_float4(v.w, v.z, v.y + bytes.z, v.x + pair.y);
        }"""
        x = np.arange(32, dtype=np.float32)
        _, y = plain.kernel(source)(1, 8, x, np.zeros(32, "f4"))
        expected = x.reshape(8, 4)[:, ::-1] + np.array([0, 0, 3, 20])
        np.testing.assert_array_equal(y.reshape(8, 4), expected)
