// Third part of fused_step.cu: sums over the rows, of what the second part left of each.
#pragma once

const int TILE_UNITS = 32, THREAD_UNITS = 16;  // of a tile of dW1; of a thread's sums
const int GROUPS = WARPS / (TILE_UNITS / THREAD_UNITS);  // that share the rows
const int MOST_ACROSS = WARP;
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
        if (is_wide(step))
            held.ask(image, there);
    }

    __device__ void put(const Step &step, real *X) const
    {
        real *const x = X + threadIdx.x * step.across;
        if ((int)threadIdx.x >= step.rows)
            return;
        if (is_wide(step))
            held.put(step.across, x);
        else
            put_pixels(image, there, step.across, 0, 1, x);
    }

    __device__ static bool is_wide(const Step &step) { return step.wide && step.across % 4 == 0; }
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

// A tile of dW1 = dZ^T X; X is there. A lane has a feature, a warp THREAD_UNITS units and every GROUPS-th row.
__device__ inline void make_tile(const Step &step, int units, int tile, real *X, real *dW1)
{
    real *const dZ = X + up_to_four(step.rows * step.across), *const sums = dZ + step.rows * TILE_UNITS;
    fetch_dZ(step, units * TILE_UNITS, dZ);
    __syncthreads();

    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int first = warp % (TILE_UNITS / THREAD_UNITS) * THREAD_UNITS, group = warp / (TILE_UNITS / THREAD_UNITS);
    const int mine = min(lane, step.across - 1);
    real sum[THREAD_UNITS] = {};
#pragma unroll 2
    for (int row = group; row < step.rows; row += GROUPS) {
        const real x = X[row * step.across + mine];
        const Four *const d = (const Four *)(dZ + row * TILE_UNITS + first);
#pragma unroll
        for (int i = 0; i < THREAD_UNITS / 4; i++) {
            const Four four = d[i];
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum[4 * i + j] += four.of[j] * x;
        }
    }
#pragma unroll
    for (int i = 0; i < THREAD_UNITS; i++)
        sums[(group * TILE_UNITS + first + i) * WARP + lane] = sum[i];
    __syncthreads();

    const int feature = tile * step.across + lane;
    const bool inside = lane < step.across && feature < step.inputs;
#pragma unroll
    for (int i = 0; i < TILE_UNITS / WARPS; i++) {
        const int unit = warp + i * WARPS;
        real total = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            total += sums[(g * TILE_UNITS + unit) * WARP + lane];
        if (inside && units * TILE_UNITS + unit < step.hidden)
            dW1[(offset)(units * TILE_UNITS + unit) * step.inputs + feature] = total / step.pixel_scale;
    }
}

// The factors of sums over rows, in shared memory: G, rows x classes; A and dZ, rows x SUM_UNITS; losses; a one.
struct Factors {
    real *G, *A, *dZ, *losses, *one, *sums;
};

// A sum over rows: of the products of two columns, given by where they begin, and the distance of rows.
struct Sum {
    const real *left;
    int left_step;
    const real *right;
    int right_step;
};

// Number `i` of a task's sums: dW2, a class after the other, and db1, of SUM_UNITS units each; db2; the loss.
__device__ inline Sum sum_of(const Step &step, const Factors &in, int i)
{
    const int c = i / SUM_UNITS, unit = i % SUM_UNITS, other = i - (step.classes + 1) * SUM_UNITS;
    if (c < step.classes)
        return {in.G + c, step.classes, in.A + unit, SUM_UNITS};
    if (c == step.classes)
        return {in.dZ + unit, SUM_UNITS, in.one, 0};
    if (other < step.classes)
        return {in.G + other, step.classes, in.one, 0};
    return {in.losses, 1, in.one, 0};
}

__device__ inline Factors fetch_factors(const Step &step, int unit, real *shared)
{
    Factors in;
    in.A = shared;
    in.dZ = in.A + step.rows * SUM_UNITS;
    in.G = in.dZ + step.rows * SUM_UNITS;
    in.losses = in.G + up_to_four(step.rows * step.classes);
    in.one = in.losses + up_to_four(step.rows);
    in.sums = in.one + 4;
    const int halves = step.rows * 2, all = step.rows * step.classes, thread = threadIdx.x;
    Four heard[MOST_ROWS * 2 / THREADS * 2];
    const auto half = [&](int i) { return thread + i / 2 * THREADS; };  // a row's four units
    hear(heard, [&](int i) {
        const real *from = (i % 2 ? step.dZ(step.told) : step.A(step.told)) + half(i) / 2 * UNITS + unit + half(i) % 2 * 4;
        return half(i) < halves ? from : nullptr;
    });
#pragma unroll
    for (int i = 0; i < MOST_ROWS * 2 / THREADS * 2; i++)
        if (half(i) < halves)
            ((Four *)(i % 2 ? in.dZ : in.A))[half(i)] = heard[i];
    const int AT_ONCE = 10;
#pragma unroll 1
    for (int first = thread; first < all; first += AT_ONCE * THREADS) {
        Numbers<1> g[AT_ONCE];
        hear(g, [&](int i) { return first + i * THREADS < all ? step.G(step.told) + first + i * THREADS : nullptr; });
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * THREADS < all)
                in.G[first + i * THREADS] = g[i].of[0];
    }
    Numbers<1> loss[1];
    hear(loss, [&](int) { return thread < step.rows ? step.losses(step.told) + thread : nullptr; });
    if (thread < step.rows)
        in.losses[thread] = loss[0].of[0];
    if (threadIdx.x == 0)
        *in.one = 1;
    return in;
}

// dW2 and db1 of SUM_UNITS units; the first task also has db2 and the loss. A lane has some of these sums, a warp
// every WARPS-th row.
__device__ inline void sum_rows(const Step &step, int task, real *shared, real *db1, real *dW2, real *db2,
                                real *loss)
{
    const int of_units = (step.classes + 1) * SUM_UNITS, count = of_units + (task == 0 ? step.classes + 1 : 0);
    const int warp = threadIdx.x / WARP;
    const Factors in = fetch_factors(step, task * SUM_UNITS, shared);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x % WARP; i < count; i += WARP) {
        const Sum of = sum_of(step, in, i);
        real sum = 0;
#pragma unroll 8
        for (int row = warp; row < step.rows; row += WARPS)
            sum += of.left[row * of.left_step] * of.right[row * of.right_step];
        in.sums[warp * count + i] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        real total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            total += in.sums[w * count + i];
        const int c = i / SUM_UNITS, unit = task * SUM_UNITS + i % SUM_UNITS, other = i - of_units;
        if (other == step.classes)
            *loss = total;
        else if (other >= 0)
            db2[other] = total;
        else if (unit < step.hidden)
            *(c < step.classes ? dW2 + c * step.hidden + unit : db1 + unit) = total;
    }
}
