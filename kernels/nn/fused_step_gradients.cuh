// Third part of fused_step.cu: sums over the rows, of what the second part left of each.
#pragma once

const int TILE_UNITS = 32, MOST_ACROSS = WARP;   // of a tile of dW1, at most so many features
const int THREAD_FEATURES = 4, THREAD_UNITS = 8;  // of a thread's sums: a warp has a tile
const int LANES_ACROSS = MOST_ACROSS / THREAD_FEATURES;
const int SUM_UNITS = 8;

__device__ inline int up_to_four(int count) { return (count + 3) / 4 * 4; }

// X of all rows, of the features of a tile of dW1, in the beginning of this part's shared memory: a thread a row,
// which is the image of this `number`.
struct TileImages {
    HeldPixels<MOST_ACROSS / 4> held;
    const pixel *image;
    int there;

    __device__ void ask(const Step &step, const Batch &batch, int tile, int number)
    {
        const int feature = tile * step.across;
        there = (int)threadIdx.x < step.rows ? min(step.inputs - feature, step.across) : 0;
        image = batch.image(step, number) + feature;
        if (step.wide)
            held.ask(image, there);
    }

    __device__ void put(const Step &step, real *X) const
    {
        real *const x = X + threadIdx.x * step.across;
        if ((int)threadIdx.x >= step.rows)
            return;
        if (step.wide)
            held.put(step.across, x);
        else
            put_pixels(image, there, step.across, 0, 1, x);
    }
};

// dZ of all rows, of TILE_UNITS units.
__device__ inline void fetch_dZ(const Step &step, int unit, real *dZ)
{
    const int VECTORS = TILE_UNITS / 4, AT_ONCE = MOST_ROWS * VECTORS / THREADS, APART = THREADS / VECTORS;
    const int first = threadIdx.x / VECTORS, column = threadIdx.x % VECTORS * 4;
    const real *const source = step.dZ(step.told) + first * UNITS + unit + column;
    Four heard[AT_ONCE];
    hear(heard, [&](int i) { return first + i * APART < step.rows ? source + i * APART * UNITS : nullptr; });
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        if (first + i * APART < step.rows)
            *(Four *)(dZ + (first + i * APART) * TILE_UNITS + column) = heard[i];
}

// The sums of dW1 = dZ^T X of every WARPS-th row. A lane loads 12 numbers for 32 products; features beyond `across` are
// those of the last lane that has some.
__device__ inline void multiply_rows(const Step &step, const real *X, const real *dZ,
                                     real (&sums)[THREAD_UNITS][THREAD_FEATURES])
{
    const int lane = threadIdx.x % WARP;
    const int feature = min(lane % LANES_ACROSS * THREAD_FEATURES, step.across - THREAD_FEATURES);
    const int unit = lane / LANES_ACROSS * THREAD_UNITS;
#pragma unroll 2
    for (int row = threadIdx.x / WARP; row < step.rows; row += WARPS) {
        const Four x = *(const Four *)(X + row * step.across + feature);
#pragma unroll
        for (int first = 0; first < THREAD_UNITS; first += 4) {
            const Four d = *(const Four *)(dZ + row * TILE_UNITS + unit + first);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < THREAD_FEATURES; j++)
                    sums[first + i][j] += d.of[i] * x.of[j];
        }
    }
}

// A tile of dW1; X is there. A thread adds up the warps' sums of a unit and four features.
__device__ inline void make_tile(const Step &step, int units, int tile, real *X, real *dW1)
{
    static_assert(TILE_UNITS * LANES_ACROSS == THREADS && WARP / LANES_ACROSS * THREAD_UNITS == TILE_UNITS, "lanes");
    real *const dZ = X + step.rows * step.across;
    Four *const sums = (Four *)(dZ + step.rows * TILE_UNITS);
    fetch_dZ(step, units * TILE_UNITS, dZ);
    __syncthreads();

    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    real mine[THREAD_UNITS][THREAD_FEATURES] = {};
    multiply_rows(step, X, dZ, mine);
    const int place = lane / LANES_ACROSS * THREAD_UNITS * LANES_ACROSS + lane % LANES_ACROSS;
    const int all = TILE_UNITS * LANES_ACROSS;  // four sums each, of a warp
#pragma unroll
    for (int i = 0; i < THREAD_UNITS; i++) {
        Four four;
#pragma unroll
        for (int j = 0; j < THREAD_FEATURES; j++)
            four.of[j] = mine[i][j];
        sums[warp * all + place + i * LANES_ACROSS] = four;
    }
    __syncthreads();

    Four total = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const Four four = sums[w * all + threadIdx.x];
#pragma unroll
        for (int j = 0; j < THREAD_FEATURES; j++)
            total.of[j] += four.of[j];
    }
    const int unit = units * TILE_UNITS + threadIdx.x / LANES_ACROSS;
    const int first = threadIdx.x % LANES_ACROSS * THREAD_FEATURES;
    const int there = min(step.across - first, step.inputs - tile * step.across - first);
    real *const out = dW1 + (offset)unit * step.inputs + tile * step.across + first;
    if (unit < step.hidden)
#pragma unroll
        for (int j = 0; j < THREAD_FEATURES; j++)
            if (j < there)
                out[j] = total.of[j] / step.pixel_scale;
}

// Where the factors of sums over rows lie in shared memory: A and dZ, rows x SUM_UNITS; G, rows x classes; losses; four
// ones; and behind them the warps' sums.
struct Factors {
    int A, dZ, G, losses, ones, sums;
};

const int FOURS = SUM_UNITS / 4;

// Sums over rows, of the products of a column and four neighbouring ones: where these begin, and the distance of rows.
struct FourSums {
    int left, left_step, right, right_step;
};

// Number `i` of a task's sums: of each class dW2, and db1, both of SUM_UNITS units; db2, and the loss, four times each.
__device__ inline FourSums sums_of(const Step &step, const Factors &at, int i)
{
    const int c = i / FOURS, four = i % FOURS * 4, other = i - (step.classes + 1) * FOURS;
    if (c < step.classes)
        return {at.G + c, step.classes, at.A + four, SUM_UNITS};
    if (c == step.classes)
        return {at.ones, 0, at.dZ + four, SUM_UNITS};
    if (other < step.classes)
        return {at.G + other, step.classes, at.ones, 0};
    return {at.losses, 1, at.ones, 0};
}

__device__ inline Factors factors_at(const Step &step)
{
    Factors at;
    at.A = 0;
    at.dZ = at.A + step.rows * SUM_UNITS;
    at.G = at.dZ + step.rows * SUM_UNITS;
    at.losses = at.G + step.rows * step.classes;
    at.ones = up_to_four(at.losses + step.rows);
    at.sums = at.ones + 4;
    return at;
}

__device__ inline void fetch_factors(const Step &step, int unit, const Factors &at, real *shared)
{
    const int halves = step.rows * 2, thread = threadIdx.x;
    Four heard[MOST_ROWS * 2 / THREADS * 2];
    const auto half = [&](int i) { return thread + i / 2 * THREADS; };  // a row's four units
    hear(heard, [&](int i) {
        const real *from = i % 2 ? step.dZ(step.told) : step.A(step.told);
        return half(i) < halves ? from + half(i) / 2 * UNITS + unit + half(i) % 2 * 4 : nullptr;
    });
#pragma unroll
    for (int i = 0; i < MOST_ROWS * 2 / THREADS * 2; i++)
        if (half(i) < halves)
            ((Four *)(shared + (i % 2 ? at.dZ : at.A)))[half(i)] = heard[i];
    const int all = step.rows * (step.classes + 1), AT_ONCE = 11;  // losses lie behind G
#pragma unroll 1
    for (int first = thread; first < all; first += AT_ONCE * THREADS) {
        Numbers<1> g[AT_ONCE];
        hear(g, [&](int i) { return first + i * THREADS < all ? step.G(step.told) + first + i * THREADS : nullptr; });
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * THREADS < all)
                shared[at.G + first + i * THREADS] = g[i].of[0];
    }
    if (thread < 4)
        shared[at.ones + thread] = 1;
}

// dW2 and db1 of SUM_UNITS units; the first task also has db2 and the loss. A lane has four of these sums, or eight or
// more, a warp every WARPS-th row.
__device__ inline void sum_rows(const Step &step, int task, real *shared, real *db1, real *dW2, real *db2,
                                real *loss)
{
    const int of_units = (step.classes + 1) * FOURS, count = of_units + (task == 0 ? step.classes + 1 : 0);
    const int warp = threadIdx.x / WARP;
    const Factors at = factors_at(step);
    Four *const sums = (Four *)(shared + at.sums);
    fetch_factors(step, task * SUM_UNITS, at, shared);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x % WARP; i < count; i += WARP) {
        const FourSums of = sums_of(step, at, i);
        Four sum = {};
#pragma unroll 8
        for (int row = warp; row < step.rows; row += WARPS) {
            const real left = shared[of.left + row * of.left_step];
            const Four right = *(const Four *)(shared + of.right + row * of.right_step);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum.of[j] += left * right.of[j];
        }
        sums[warp * count + i] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 4 * count; i += THREADS) {
        real total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            total += sums[w * count + i / 4].of[i % 4];
        const int c = i / SUM_UNITS, unit = task * SUM_UNITS + i % SUM_UNITS, other = i / 4 - of_units;
        if (other >= 0 && i % 4 > 0)
            continue;  // four times the same
        if (other == step.classes)
            *loss = total;
        else if (other >= 0)
            db2[other] = total;
        else if (unit < step.hidden)
            *(c < step.classes ? dW2 + c * step.hidden + unit : db1 + unit) = total;
    }
}
