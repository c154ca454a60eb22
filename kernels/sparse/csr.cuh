// A sparse matrix with shared weights: what its kernels have in common.
//
// W (units, inputs) lies row by row, without the weights that are zero. Row r has the entries starts[r] to
// starts[r + 1]: of each the column, an index into `columns`, and a code. Its weight is codebook[code]: many entries
// share one float. So an entry takes 3 bytes if there are at most 65536 columns, and else 5. Rows are sorted, the
// longest first: unit_of[r] is the unit that row r belongs to. Arrays of entries end at a multiple of OCTET of them,
// and what is there to fill them up are columns and codes that exist.
#pragma once

#include "async_copies.cuh"
#include "common.cuh"
#include "nn/activations.cuh"
#include "warp_sum.cuh"

typedef unsigned short index16;
typedef int index32;
typedef unsigned char code;

const int CODES = 256;  // floats of a codebook
const int OCTET = 8;    // neighbouring entries that a lane loads together

// AsyncCopies where the device has them, or else copies that are done at once.
#if defined(PYRT_EMULATED) || __CUDA_ARCH__ >= 800
typedef AsyncCopies Copies;
#else
struct Copies {
    template <int BYTES>
    __device__ void start(float *target, const float *source, int inside)
    {
        for (int i = 0; i < BYTES / 4; i++)
            target[i] = i < inside ? source[i] : 0;
    }
    __device__ void end_group() {}
    template <int PENDING>
    __device__ void wait()
    {
    }
};
#endif

// The entries of a row, from `first` to before `last`.
struct Row {
    int first, last;
};

// A result of its sum.
__device__ inline real output(real sum, const real *bias, int unit)
{
    return ACTIVATE(bias ? sum + bias[unit] : sum);
}

// All threads of the block, of one dimension, copy the codebook; a barrier of the block must follow.
__device__ inline void copy_codebook(real *book, const real *codebook)
{
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < CODES; i += blockDim.x * blockDim.y)
        book[i] = codebook[i];
}

__device__ inline unsigned word(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// OCTET entries as they lie in memory: one load of 16 bytes, or two, and one of 8.
struct Octet {
    uint4 columns[sizeof(COLUMN) / 2];
    uint2 codes;

    __device__ int column(int j) const
    {
        if constexpr (sizeof(COLUMN) == 2)
            return word(columns[0], j / 2) >> 16 * (j % 2) & 0xffff;
        else
            return word(columns[j / 4], j % 4);
    }
    __device__ int code_of(int j) const { return (j < 4 ? codes.x : codes.y) >> 8 * (j % 4) & 0xff; }
};

// Entries never change while a network runs, so they may be read before the kernel before this one is done.
__device__ inline Octet read_octet(const COLUMN *columns, const code *codes, int at)
{
    Octet octet;
#pragma unroll
    for (int i = 0; i < int(sizeof(COLUMN) / 2); i++)
        octet.columns[i] = __ldg((const uint4 *)(columns + at) + i);
    octet.codes = __ldg((const uint2 *)(codes + at));
    return octet;
}

// Adds the octet's products to a sum; it begins at entry `at`. Entries of other rows are looked up too, since that is
// quicker than to branch, but not added.
__device__ inline real add_octet(real sum, const Octet &octet, int at, Row row, const real *book, const real *x)
{
#pragma unroll
    for (int j = 0; j < OCTET; j++) {
        const real more = sum + book[octet.code_of(j)] * x[octet.column(j)];
        sum = at + j >= row.first && at + j < row.last ? more : sum;
    }
    return sum;
}
