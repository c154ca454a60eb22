// Y = f(X W' + b) with a sparse W that shares its weights, for one sample or a few: the ladder.
// constants: REAL=float COLUMN=index16|index32 ACTIVATION=identity|sigmoid|tanh|relu
//
// X (samples, inputs), Y (samples, units), without gaps; W: see csr.cuh; `bias` (units) may be null. For one sample
// each weight is used once, so what counts are the bytes of W. Sums have an order that only W and the launch decide.
// In all kernels blockIdx.y is the sample.

#include "csr.cuh"

// Naive: a thread a row. Lanes walk through different rows, so each of their loads is a transaction of its own, and
// a warp takes as long as its longest row.
//
// Block of one dimension, grid x: blocks over the rows; no shared memory.
extern "C" __global__ void csr_thread(int units, int inputs, const int *starts, const int *unit_of,
                                      const COLUMN *columns, const code *codes, const real *codebook, const real *X,
                                      const real *bias, real *Y)
{
    wait_for_previous_kernel();
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= units)
        return;
    const real *x = X + (offset)blockIdx.y * inputs;
    real sum = 0;
    for (int i = starts[r]; i < starts[r + 1]; i++)
        sum += codebook[codes[i]] * x[columns[i]];
    Y[(offset)blockIdx.y * units + unit_of[r]] = output(sum, bias, unit_of[r]);
}

// A warp a row: lanes take neighbouring entries, so that a warp's loads are one transaction or two. The codebook is
// in shared memory.
//
// Block 32 x any, grid x: blocks over the rows, a warp each; shared memory: 1 KB.
extern "C" __global__ void csr_warp(int units, int inputs, const int *starts, const int *unit_of,
                                    const COLUMN *columns, const code *codes, const real *codebook, const real *X,
                                    const real *bias, real *Y)
{
    wait_for_previous_kernel();
    __shared__ real book[CODES];
    copy_codebook(book, codebook);
    __syncthreads();
    const int r = blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= units)
        return;
    const real *x = X + (offset)blockIdx.y * inputs;
    real sum = 0;
    for (int i = starts[r] + threadIdx.x; i < starts[r + 1]; i += WARP)
        sum += book[codes[i]] * x[columns[i]];
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        Y[(offset)blockIdx.y * units + unit_of[r]] = output(sum, bias, unit_of[r]);
}

// Vector loads: a lane takes 8 neighbouring entries by loads of 16 and 8 bytes, so that few loads keep many bytes on
// their way. Octets begin at multiples of 8 entries, rows anywhere: what lies beside the row is not added.
//
// Launch and shared memory as csr_warp.
extern "C" __global__ void csr_vector(int units, int inputs, const int *starts, const int *unit_of,
                                      const COLUMN *columns, const code *codes, const real *codebook, const real *X,
                                      const real *bias, real *Y)
{
    wait_for_previous_kernel();
    __shared__ real book[CODES];
    copy_codebook(book, codebook);
    __syncthreads();
    const int r = blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= units)
        return;
    const real *x = X + (offset)blockIdx.y * inputs;
    const Row row = {starts[r], starts[r + 1]};
    real sum = 0;
    for (int at = row.first / OCTET * OCTET + threadIdx.x * OCTET; at < row.last; at += WARP * OCTET)
        sum = add_octet(sum, read_octet(columns, codes, at), at, row, book, x);
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        Y[(offset)blockIdx.y * units + unit_of[r]] = output(sum, bias, unit_of[r]);
}

const int AHEAD = sizeof(COLUMN) == 2 ? 4 : 2;  // octets of a lane that are on their way, as registers allow

// The octets that a lane takes of one row after another: in each they begin `step` entries apart, at `place` entries
// from the row's first octet.
struct Ring {
    const COLUMN *columns;
    const code *codes;
    int place, step;
    Octet octets[AHEAD];

    __device__ int begin(Row row) const { return row.first / OCTET * OCTET + place; }

    __device__ void ask(int i, int at, Row row)
    {
        if (at < row.last)
            octets[i] = read_octet(columns, codes, at);
    }

    __device__ void ask_first(Row row)
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            ask(i, begin(row) + i * step, row);
    }

    // The lane's part of a row's sum. Each octet that is used makes room for one that is asked for: of this row or, when
    // none of the warp's lanes has more of it, of the next row.
    __device__ real sum(Row row, Row next, const real *book, const real *x)
    {
        real sum = 0;
        int at = begin(row);
        bool ends;
        do {
            ends = at - int(threadIdx.x % WARP) * OCTET + AHEAD * step >= row.last;
            const Row then = ends ? next : row;
            int asked = ends ? begin(next) : at + AHEAD * step;
#pragma unroll
            for (int i = 0; i < AHEAD; i++, at += step, asked += step) {
                if (at < row.last)
                    sum = add_octet(sum, octets[i], at, row, book, x);
                ask(i, asked, then);
            }
        } while (!ends);
        return sum;
    }
};

// Starts a copy of a sample to shared memory.
__device__ inline void start_copy(Copies &copies, real *to, const real *from, int count)
{
    if ((size_t)from % 16 == 0)
        for (int i = 4 * threadIdx.x; i < count; i += 4 * blockDim.x)
            copies.start<16>(to + i, from + i, min(4, count - i));
    else
        for (int i = threadIdx.x; i < count; i += blockDim.x)
            copies.start<4>(to + i, from + i, 1);
    copies.end_group();
}

// The sample in shared memory, where a look-up by 32 lanes takes as many turns as lanes meet in a bank: 3.4 on
// average, or 1.5 if entries are interleaved (Csr.interleaved in nn/launch/csr.py). And several octets of each lane
// on their way, the first ones before the kernel before this one is done: no kernel writes W.
//
// Block of whole warps, at most 1024 threads; grid x: any, one block a multiprocessor is best. `parts` warps share a
// row, a power of two that divides the warps of a block. Warps take rows in turns, those of one block as far apart as
// there are blocks: since the longest come first, all blocks have as much to do. Shared memory: the sample, in whole
// multiples of 16 bytes, and 1.3 KB.
extern "C" __global__ void __launch_bounds__(1024)
csr_shared(int units, int inputs, int parts, const int *starts, const int *unit_of, const COLUMN *columns,
           const code *codes, const real *codebook, const real *X, const real *bias, real *Y)
{
    start_beside_previous_kernel(true);
    extern __shared__ __align__(16) real x[];
    __shared__ real book[CODES];
    __shared__ real sums[2][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, part = warp % parts;
    const int rows = blockDim.x / WARP / parts;  // that a block takes at once
    const int stride = rows * gridDim.x, rounds = (units + stride - 1) / stride;
    int r = warp / parts * gridDim.x + blockIdx.x;
    const auto row_of = [=](int r) { return r < units ? Row{starts[r], starts[r + 1]} : Row{0, 0}; };
    Ring ring = {columns, codes, (part * WARP + lane) * OCTET, parts * WARP * OCTET};
    Row row = row_of(r);
    ring.ask_first(row);
    copy_codebook(book, codebook);

    wait_for_previous_kernel();
    Copies copies;
    start_copy(copies, x, X + (offset)blockIdx.y * inputs, inputs);
    Row next = row_of(r + stride);
    copies.wait<0>();
    __syncthreads();

    real *y = Y + (offset)blockIdx.y * units;
    for (int round = 0; round < rounds; round++, r += stride) {
        real sum = ring.sum(row, next, book, x);
        row = next;
        next = row_of(r + 2 * stride);
        sum = warp_sum(sum);
        if (parts > 1) {
            real *meeting = sums[round % 2];  // the other half may still be read
            if (lane == 0)
                meeting[warp] = sum;
            __syncthreads();
            sum = 0;
            for (int i = 0; i < parts; i++)
                sum += meeting[warp / parts * parts + i];
        }
        if (lane == 0 && part == 0 && r < units)
            y[unit_of[r]] = output(sum, bias, unit_of[r]);
    }
}
