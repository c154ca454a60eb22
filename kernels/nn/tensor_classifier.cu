// The end of a network with few classes on tensor cores, for arithmetic in bf16: what fused_classifier.cu does, of
// activations that are there as bf16 numbers.
// architectures: sm_90a
// constants: REAL=float HEAD=softmax|sigmoid ACTIVATION=sigmoid|tanh|relu SLICE=32|64|128
//
// In fused_classifier.cu each activation takes part in 30 multiplications by float32 units, whose operands come from
// shared memory: with 2048 hidden units that takes four times as long as to read A and to write dZ. Tensor cores do
// the same products in less time than memory needs. The idea: a warp keeps to SLICE columns of A, in all products.
// It brings them, 16 rows at a time, makes its part of the logits, dZ and dW, and nobody else needs them. Warps meet
// only for the logits. dZ takes the place of A in shared memory, and leaves from there; sums over the rows stay in
// registers until the last row.
//
// A and dZ are rows x hidden bf16 numbers with leading dimensions that are multiples of 8; hidden is even, and at most
// 16 SLICE; at most 16 classes. W begins at a multiple of 8 bytes, partials at one of 16. W is rounded to bf16, the
// gradient of the logits to TF32; products of either are exact.

#include "common.cuh"
#include "nn/activations.cuh"
#include "bfloat16.cuh"
#include "gemm/mma.cuh"

const unsigned ALL_LANES = 0xffffffff;
const int LANES = 16;  // of a row in the head: classes at most

#include "nn/row_head.cuh"

const int WARPS = 16, THREADS = WARPS * WARP;
const int ROWS = 16;                     // of a chunk, as tensor cores take them
const int STAGES = 2;                    // chunks in shared memory: one that is multiplied, one on its way
const int PITCH = WARPS * SLICE + 16;    // numbers from row to row: lanes that read 8 bytes meet no bank twice
const int LOGITS = 24;                   // and of logits
const int EIGHT = 8;                     // numbers that are copied together
const int SEGMENTS = SLICE / EIGHT;      // of a row of a slice
const int COPIES = ROWS * SEGMENTS / WARP;  // that a lane makes of a chunk
const int PART = SLICE < 64 ? 32 : 64;   // columns whose sums over the rows a warp makes at once
const int KEPT = PART / 16 * 4 / 8;      // of these sums that a lane keeps

struct alignas(16) Eight {
    unsigned pairs[4];
};

struct alignas(8) Four {
    unsigned left, right;  // pairs

    __device__ float of(int i) const
    {
        const unsigned pair = i < 2 ? left : right;
        return __uint_as_float(i % 2 ? pair & 0xffff0000 : pair << 16);
    }
};

__device__ inline Four four(const bfloat16 *numbers) { return *(const Four *)numbers; }

// Rounds to the nearest TF32 number: tensor cores ignore the bits behind. A NaN stays one.
__device__ inline float to_tf32(float x) { return x == x ? __uint_as_float(__float_as_uint(x) + (1 << 12)) : x; }

struct Shared {
    bfloat16 W[LANES][PITCH];
    bfloat16 A[STAGES][ROWS][PITCH];
    float logits[WARPS][ROWS][LOGITS];  // of each warp's columns
    float G[ROWS][LANES + 4];
};

// W as bf16 numbers, 0 beyond it. All threads take part; each has several loads under way before it waits.
__device__ inline void load_weights(Shared &shared, const real *W, int classes, int hidden)
{
    const int AT_ONCE = 8;
    for (int i = threadIdx.x; i < LANES * PITCH / 2; i += THREADS)
        if (i / (PITCH / 2) >= classes || i % (PITCH / 2) * 2 >= hidden)
            *(unsigned *)&shared.W[i / (PITCH / 2)][i % (PITCH / 2) * 2] = 0;
    const int pairs = hidden / 2;
    for (int first = threadIdx.x; first < classes * pairs; first += AT_ONCE * THREADS) {
        float2 held[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * THREADS < classes * pairs)
                held[i] = ((const float2 *)W)[first + i * THREADS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int pair = first + i * THREADS;
            if (pair < classes * pairs)
                *(unsigned *)&shared.W[pair / pairs][pair % pairs * 2] = to_bfloat16_pair(held[i].x, held[i].y);
        }
    }
}

// Computes a warp's columns of a chunk. (g, t) are this lane's places in the operands of an mma.
struct Slice {
    int first, columns;  // the slice's first column; how many of the matrix are in it, perhaps none
    int lane, g, t;

    __device__ Slice(int hidden)
        : first(threadIdx.x / WARP * SLICE), columns(min(max(hidden - first, 0), SLICE)), lane(threadIdx.x % WARP),
          g(lane / 4), t(lane % 4)
    {
    }

    // Starts the copies of so many rows; what is not there becomes 0.
    __device__ void bring(AsyncCopies &copies, bfloat16 (*A)[PITCH], const bfloat16 *from, int ld, int rows) const
    {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int row = (i * WARP + lane) / SEGMENTS, column = (i * WARP + lane) % SEGMENTS * EIGHT;
            const int inside = row < rows ? min(max(columns - column, 0), EIGHT) / 2 : 0;
            copies.start<16>((float *)&A[row][first + column],
                             (const float *)(from + (offset)row * ld + first + column), inside);
        }
    }

    // This slice's part of the logits. Lane t has k = 4 t to 4 t + 3 of each 16: 8 bytes of a row, for two mma.
    __device__ void logits(Shared &shared, const bfloat16 (*A)[PITCH]) const
    {
        float z[2][4] = {};
#pragma unroll
        for (int k = 0; k < SLICE; k += 16) {
            const int column = first + k + 4 * t;
            const Four above = four(&A[g][column]), below = four(&A[g + 8][column]);
            const Four w[2] = {four(&shared.W[g][column]), four(&shared.W[g + 8][column])};
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const float a[4] = {above.of(i), below.of(i), above.of(i + 1), below.of(i + 1)};
#pragma unroll
                for (int half = 0; half < 2; half++)
                    multiply_add(z[half], a, {w[half].of(i), w[half].of(i + 1)});
            }
        }
        float (*mine)[LOGITS] = shared.logits[threadIdx.x / WARP];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                mine[g + i / 2 * 8][half * 8 + 2 * t + i % 2] = z[half][i];
    }

    // dW += G' A. Of 32 columns lane g has 4 g to 4 g + 3, one for each of four mma.
    __device__ void add_weight_gradient(float (&dW)[SLICE / 32][4][4], const Shared &shared,
                                        const bfloat16 (*A)[PITCH]) const
    {
#pragma unroll
        for (int k = 0; k < ROWS; k += 8) {
            const float a[4] = {shared.G[k + t][g], shared.G[k + t][g + 8], shared.G[k + t + 4][g],
                                shared.G[k + t + 4][g + 8]};
#pragma unroll
            for (int i = 0; i < SLICE / 32; i++) {
                const int column = first + 32 * i + 4 * g;
                const Four above = four(&A[k + t][column]), below = four(&A[k + t + 4][column]);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    multiply_add(dW[i][j], a, {above.of(j), below.of(j)});
            }
        }
    }

    // dZ = (G W) f'(A) in the place of A, of PART columns from `from` on; and their sums over this lane's rows: of
    // columns 4 t to 4 t + 3 of each 16. For G W lane g has 2 g and 2 g + 1 of the 16, one for each of two mma.
    __device__ void make_gradient(float (&sums)[PART / 4], const Shared &shared, bfloat16 (*A)[PITCH], int from) const
    {
        float a[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[half][i] = shared.G[g + i % 2 * 8][half * 8 + t + i / 2 * 4];
#pragma unroll
        for (int tile = 0; tile < PART / 16; tile++) {
            float d[2][4] = {};
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int column = from + 16 * tile + 2 * g, c = half * 8 + t;
                const unsigned above = *(const unsigned *)&shared.W[c][column];
                const unsigned below = *(const unsigned *)&shared.W[c + 4][column];
                multiply_add(d[0], a[half], {__uint_as_float(above << 16), __uint_as_float(below << 16)});
                multiply_add(d[1], a[half],
                             {__uint_as_float(above & 0xffff0000), __uint_as_float(below & 0xffff0000)});
            }
#pragma unroll
            for (int row = 0; row < 2; row++) {
                Four *place = (Four *)&A[g + row * 8][from + 16 * tile + 4 * t];
                const Four made = *place;
                float dz[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    dz[j] = d[j % 2][row * 2 + j / 2] * DERIVATIVE(made.of(j));
                    sums[tile * 4 + j] = row ? sums[tile * 4 + j] + dz[j] : dz[j];
                }
                *place = {to_bfloat16_pair(dz[0], dz[1]), to_bfloat16_pair(dz[2], dz[3])};
            }
        }
    }

    // Whole vectors of the rows that there are: what pads a row may become anything.
    __device__ void store(bfloat16 *to, int ld, const bfloat16 (*dZ)[PITCH], int rows) const
    {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int row = (i * WARP + lane) / SEGMENTS, column = (i * WARP + lane) % SEGMENTS * EIGHT;
            if (row < rows && column < columns)
                *(Eight *)(to + (offset)row * ld + first + column) = *(const Eight *)&dZ[row][first + column];
        }
    }
};

// Sums over the eight lanes with this one's t: lane g gets numbers g COUNT / 8 to (g + 1) COUNT / 8 of them. Each
// exchange halves what a lane still has to look after.
template <int DISTANCE, int COUNT>
__device__ inline void add_rows(float *result, const float (&values)[COUNT])
{
    if constexpr (DISTANCE < 4) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            result[i] += values[i];
    } else {
        const bool upper = threadIdx.x & DISTANCE;
        float halves[COUNT / 2];
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++) {
            const float keep = upper ? values[i + COUNT / 2] : values[i];
            const float give = upper ? values[i] : values[i + COUNT / 2];
            halves[i] = keep + __shfl_xor_sync(ALL_LANES, give, DISTANCE);
        }
        add_rows<DISTANCE / 2>(result, halves);
    }
}

// The gradient of the logits of a chunk, from all slices; the first 256 threads, a logit each. Returns the thread's
// loss and, by `gradient`, its gradient: 0 where there is no such row or class.
__device__ inline real head(Shared &shared, int rows, int classes, real bias, real scale, const int *labels,
                            real &gradient)
{
    const int row = threadIdx.x / LANES, c = threadIdx.x % LANES;
    const bool inside = row < rows && c < classes;
    real logit = bias;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++)
        logit += shared.logits[warp][row][c];
    const bool target = inside && c == labels[row];
    const LossAndGradient found = JOIN(head_, HEAD)(logit, inside, target, scale);
    gradient = inside ? found.gradient : 0;
    shared.G[row][c] = to_tf32(gradient);
    return target ? found.loss : 0;
}

// Adds up the first 256 threads' numbers over the rows, by class, and writes the first `count` sums. All threads take
// part, since they meet.
__device__ inline void sum_rows(Shared &shared, real value, real *sums, int count)
{
    __syncthreads();
    if (threadIdx.x < ROWS * LANES)
        shared.G[threadIdx.x / LANES][threadIdx.x % LANES] = value;
    __syncthreads();
    real sum = 0;
    if (threadIdx.x < LANES)
        for (int row = 0; row < ROWS; row++)
            sum += shared.G[row][threadIdx.x];
    if (threadIdx.x < count)
        sums[threadIdx.x] = sum;
}

// Blocks of 512 threads; a grid of one dimension and any size, best a block a multiprocessor. A block takes
// neighbouring rows, and leaves its sums in its row of partials, as fused_classifier does: sum_partials adds them up.
//
// Shared memory, given at the launch: a Shared.
extern "C" __global__ void __launch_bounds__(512, 1)
tensor_classifier(int rows, int classes, int hidden, real scale, const bfloat16 *A, int lda, const real *W,
                  const real *b, const int *labels, bfloat16 *dZ, int ldz, real *partials, int ld_partials)
{
    wait_for_previous_kernel();
    extern __shared__ __align__(16) char memory[];
    Shared &shared = *(Shared *)memory;

    const int share = rows / gridDim.x, more = rows - share * gridDim.x, block = blockIdx.x;
    const int begin = block * share + min(block, more), end = begin + share + (block < more);
    const Slice slice(hidden);
    AsyncCopies copies;
    for (int stage = 0; stage < STAGES; stage++) {
        const int row = begin + stage * ROWS;
        slice.bring(copies, shared.A[stage], A + (offset)row * lda, lda, end - row);
        copies.end_group();
    }
    load_weights(shared, W, classes, hidden);
    const bool has_logit = threadIdx.x < ROWS * LANES;
    const int c = threadIdx.x % LANES;
    const real bias = c < classes ? b[c] : 0;
    __syncthreads();

    float dW[SLICE / 32][4][4] = {}, db_hidden[SLICE / PART][KEPT] = {};
    real db = 0, loss = 0;
    for (int row = begin, stage = 0; row < end; row += ROWS, stage = (stage + 1) % STAGES) {
        const int count = min(end - row, ROWS);
        copies.wait<STAGES - 1>();
        __syncwarp();
        slice.logits(shared, shared.A[stage]);
        __syncthreads();
        if (has_logit) {
            real gradient;
            loss += head(shared, count, classes, bias, scale, labels + row, gradient);
            db += gradient;
        }
        __syncthreads();
        slice.add_weight_gradient(dW, shared, shared.A[stage]);
        __syncwarp();
#pragma unroll
        for (int part = 0; part < SLICE / PART; part++) {
            float sums[PART / 4];
            slice.make_gradient(sums, shared, shared.A[stage], slice.first + part * PART);
            add_rows<16>(db_hidden[part], sums);
        }
        __syncwarp();
        slice.store(dZ + (offset)row * ldz, ldz, shared.A[stage], count);
        __syncwarp();
        const int next = row + STAGES * ROWS;
        slice.bring(copies, shared.A[stage], A + (offset)next * lda, lda, end - next);
        copies.end_group();
    }
    copies.wait<0>();

    const int stride = (hidden + 3) / 4 * 4;
    real *sums = partials + (offset)block * ld_partials, *last = sums + (offset)(classes + 1) * stride;
#pragma unroll
    for (int i = 0; i < SLICE / 32; i++)
#pragma unroll
        for (int place = 0; place < 4; place++) {  // a vector of four columns; what is behind the last may be anything
            const int c = slice.g + place / 2 * 8, column = 32 * i + 8 * slice.t + place % 2 * 4;
            if (c < classes && column < slice.columns)
                *(float4 *)(sums + (offset)c * stride + slice.first + column) = {
                    dW[i][0][place], dW[i][1][place], dW[i][2][place], dW[i][3][place]};
        }
#pragma unroll
    for (int i = 0; i < SLICE / PART * KEPT; i++) {
        const int number = slice.g * KEPT + i % KEPT;
        const int column = i / KEPT * PART + number / 4 * 16 + slice.t * 4 + number % 4;
        if (column < slice.columns)
            sums[(offset)classes * stride + slice.first + column] = db_hidden[i / KEPT][i % KEPT];
    }
    sum_rows(shared, db, last, classes);
    const real row_loss = row_sum(loss);  // the lanes of a row: one has its loss
    sum_rows(shared, c == 0 ? row_loss : 0, last + classes, 1);
}
