// Second part of fused_step.cu: a row from X W1^T to its loss and dZ, by a warp. A lane has LANE_UNITS neighbouring
// units, and a class.
#pragma once

const int CLASSES_AT_ONCE = 10;
const int CHUNKS_AT_ONCE = UNITS == 128 ? 7 : 16;  // as registers allow

// The parameters that rows need, in shared memory: W2, with zeros to whole CLASSES_AT_ONCE and UNITS; b1; b2.
struct Ends {
    real *W2;

    __device__ static int rows(int classes)
    {
        return (classes + CLASSES_AT_ONCE - 1) / CLASSES_AT_ONCE * CLASSES_AT_ONCE;
    }
    __device__ real *b1(int classes) const { return W2 + rows(classes) * UNITS; }
    __device__ real *b2(int classes) const { return b1(classes) + UNITS; }
    __device__ real *end(int classes) const { return b2(classes) + WARP; }
};

// Starts copies of them to shared memory.
__device__ inline void ask_for_ends(const Step &step, const Ends &ends, const real *b1, const real *W2, const real *b2,
                                    AsyncCopies &copies)
{
    const auto copy = [&](real *to, const real *from, int at, bool inside) {
        copies.start<4>(to, from + (inside ? at : 0), inside);
    };
    const int all = Ends::rows(step.classes) * UNITS, thread = threadIdx.x;
    for (int i = thread; i < all; i += THREADS) {
        const int c = i / UNITS, unit = i % UNITS;
        copy(ends.W2 + i, W2, c * step.hidden + unit, c < step.classes && unit < step.hidden);
    }
    if (thread < UNITS)
        copy(ends.b1(step.classes) + thread, b1, thread, thread < step.hidden);
    if (thread < WARP)
        copy(ends.b2(step.classes) + thread, b2, thread, thread < step.classes);
    copies.end_group();
}

// A of this lane's units: the sums of all chunks in their order, several of them on their way at once. Nobody else
// reads them.
__device__ inline LaneUnits activations(const Step &step, int row, const LaneUnits &bias)
{
    real *const mine = step.sums + row * UNITS + threadIdx.x % WARP * LANE_UNITS;
    const int distance = step.rows * UNITS;  // from one chunk's to the next one's
    LaneUnits a = {};
#pragma unroll 1
    for (int first = 0; first < step.chunks; first += CHUNKS_AT_ONCE) {
        LaneUnits heard[CHUNKS_AT_ONCE];
        hear(heard, [&](int i) { return first + i < step.chunks ? mine + (first + i) * distance : nullptr; });
#pragma unroll
        for (int i = 0; i < CHUNKS_AT_ONCE; i++)
#pragma unroll
            for (int j = 0; j < LANE_UNITS; j++)
                a.of[j] += heard[i].of[j];
    }
#pragma unroll
    for (int j = 0; j < LANE_UNITS; j++)
        a.of[j] = ACTIVATE(a.of[j] / step.pixel_scale + bias.of[j]);
    return a;
}

// Clears the places of a row: its sums, and all else that the launch before told of it.
__device__ inline void forget_row(const Step &step, int row)
{
    const int lane = threadIdx.x % WARP, units = row * UNITS + lane * LANE_UNITS;
#pragma unroll 4
    for (int i = 0; i < step.chunks; i++)
        forget<LANE_UNITS>(step.sums + i * step.rows * UNITS + units);
    forget<LANE_UNITS>(step.A(step.old) + units);
    forget<LANE_UNITS>(step.dZ(step.old) + units);
    if (lane < step.classes)
        forget<1>(step.G(step.old) + row * step.classes + lane);
    if (lane == 0)
        forget<1>(step.losses(step.old) + row);
}

// The logit of this lane's class, without its bias.
__device__ inline real logit_of(const Step &step, const Ends &ends, const LaneUnits &a)
{
    const int lane = threadIdx.x % WARP;
    real logit = 0;
#pragma unroll 1
    for (int first = 0; first < step.classes; first += CLASSES_AT_ONCE) {
        real sums[CLASSES_AT_ONCE];
#pragma unroll
        for (int c = 0; c < CLASSES_AT_ONCE; c++) {
            const LaneUnits w = ((const LaneUnits *)(ends.W2 + (first + c) * UNITS))[lane];
            sums[c] = 0;
#pragma unroll
            for (int j = 0; j < LANE_UNITS; j++)
                sums[c] += a.of[j] * w.of[j];
        }
#pragma unroll
        for (int distance = WARP / 2; distance > 0; distance /= 2)
#pragma unroll
            for (int c = 0; c < CLASSES_AT_ONCE; c++)
                sums[c] += __shfl_xor_sync(ALL_LANES, sums[c], distance);
#pragma unroll
        for (int c = 0; c < CLASSES_AT_ONCE; c++)
            logit = lane == first + c ? sums[c] : logit;
    }
    return logit;
}

// G W2 of this lane's units; it has G of its class.
__device__ inline LaneUnits back_through_W2(const Step &step, const Ends &ends, real g)
{
    const int lane = threadIdx.x % WARP;
    LaneUnits d = {};
#pragma unroll 1
    for (int first = 0; first < step.classes; first += CLASSES_AT_ONCE)
#pragma unroll
        for (int c = 0; c < CLASSES_AT_ONCE; c++) {
            const real of_class = __shfl_sync(ALL_LANES, g, (first + c) % WARP);
            const LaneUnits w = ((const LaneUnits *)(ends.W2 + (first + c) * UNITS))[lane];
#pragma unroll
            for (int j = 0; j < LANE_UNITS; j++)
                d.of[j] += of_class * w.of[j];
        }
    return d;
}

__device__ inline void pass_row(const Step &step, const Ends &ends, int row, int label)
{
    const int lane = threadIdx.x % WARP;
    const bool inside = lane < step.classes, target = lane == label;
    const LaneUnits bias = ((const LaneUnits *)ends.b1(step.classes))[lane];
    const LaneUnits a = activations(step, row, bias);
    const real logit = logit_of(step, ends, a) + ends.b2(step.classes)[lane];
    const LossAndGradient result = JOIN(head_, HEAD)(logit, inside, target, step.scale);
    LaneUnits d = back_through_W2(step, ends, inside ? result.gradient : 0);
#pragma unroll
    for (int j = 0; j < LANE_UNITS; j++)
        d.of[j] *= DERIVATIVE(a.of[j]);

    const int units = row * UNITS + lane * LANE_UNITS;
    tell(step.dZ(step.told) + units, d);
    tell(step.A(step.told) + units, a);
    if (inside)
        tell<1>(step.G(step.told) + row * step.classes + lane, {result.gradient});
    if (target)
        tell<1>(step.losses(step.told) + row, {result.loss});
    forget_row(step, row);
}
