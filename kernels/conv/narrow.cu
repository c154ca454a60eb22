// Convolution of images of few channels, as those of a first layer: too few to fill a tile of tensor cores, and as
// many bytes as sums. Everything that a block needs again is in shared memory or registers.
// constants: REAL=float FILTERS=8|16 WINDOWS=1|4 ACTIVATION=identity|sigmoid|tanh|relu
//
// With images X (samples, height, width, channels), filters V and their results Y (windows, filters), K numbers in
// a window, as direct.cu has them:
//   narrow_forward   Y = f(P V^T + bias). Also the gradient of images, of windows on dZ, with the filters turned
//                    around: `turned`, V is then W (channels of P, places, filters of Y)
//   narrow_filters   dV = dY^T P, as partial sums of the blocks, for column_sums to add up

#include "conv/window.cuh"
#include "nn/activations.cuh"

const int THREADS = 128;

// sums += a pixel times the weights of all filters of one number of the window.
__device__ inline void add_products(real (&sums)[FILTERS], real pixel, const float4 *weights)
{
#pragma unroll
    for (int f = 0; f < FILTERS; f += 4) {
        const float4 v = weights[f / 4];
        sums[f] += pixel * v.x;
        sums[f + 1] += pixel * v.y;
        sums[f + 2] += pixel * v.z;
        sums[f + 3] += pixel * v.w;
    }
}

// The constants FILTERS and WINDOWS are how many filters and windows a thread has; a block has the same filters.
//
// Block of THREADS; the grid's x counts blocks across the windows, THREADS * WINDOWS each, y groups of FILTERS.
// Dynamic shared memory: K * FILTERS numbers, the block's filters, a row for each k; static, a result a thread and filter. A thread makes FILTERS results
// of WINDOWS windows: what it reads serves that many products. Neighbouring threads have neighbouring windows.
extern "C" __global__ void __launch_bounds__(THREADS, WINDOWS * FILTERS <= 8 ? 8 : WINDOWS == 1 ? 5 : 2)
narrow_forward(int samples, int height, int width, int channels, int rows, int columns, int stride, int top, int left,
               int out_height, int out_width, int filters, int turned, const real *X, const real *V,
               const real *bias, real *Y)
{
    wait_for_previous_kernel();
    extern __shared__ __align__(16) real weights[];
    __shared__ real results[THREADS][FILTERS + 1];
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const int K = rows * columns * channels, places = rows * columns, first_filter = blockIdx.y * FILTERS;
    for (int i = threadIdx.x; i < K * FILTERS; i += THREADS) {
        const int k = i / FILTERS, f = first_filter + i % FILTERS;
        const int place = k / channels, channel = k - place * channels;
        real weight = 0;
        if (f < filters)
            weight = turned ? V[((offset)channel * places + places - 1 - place) * filters + f]
                            : V[(offset)f * K + k];
        weights[i] = weight;
    }
    __syncthreads();

    const int count = samples * out_height * out_width;
    const real *corner[WINDOWS];
    int y[WINDOWS], x[WINDOWS];
    real sums[WINDOWS][FILTERS] = {};
#pragma unroll
    for (int i = 0; i < WINDOWS; i++) {
        const int window = (blockIdx.x * WINDOWS + i) * THREADS + threadIdx.x;
        const Place at(min(window, count - 1), out_height, out_width, 1);
        y[i] = w.pixel_y(at.y, 0);
        x[i] = w.pixel_x(at.x, 0);
        corner[i] = X + at.n * w.image() + ((offset)y[i] * width + x[i]) * channels;
    }
    const float4 *next = (const float4 *)weights;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            const offset step = ((offset)r * width + c) * channels;
            bool inside[WINDOWS];
#pragma unroll
            for (int i = 0; i < WINDOWS; i++)
                inside[i] = w.inside(y[i] + r, x[i] + c);
            if (channels % 4 == 0) {  // then pixels begin at multiples of 16 bytes
                for (int k = 0; k < channels; k += 4, next += FILTERS) {
                    float4 pixel[WINDOWS];
#pragma unroll
                    for (int i = 0; i < WINDOWS; i++)
                        pixel[i] = inside[i] ? *(const float4 *)(corner[i] + step + k) : float4{0, 0, 0, 0};
#pragma unroll
                    for (int i = 0; i < WINDOWS; i++) {
                        add_products(sums[i], pixel[i].x, next);
                        add_products(sums[i], pixel[i].y, next + FILTERS / 4);
                        add_products(sums[i], pixel[i].z, next + FILTERS / 2);
                        add_products(sums[i], pixel[i].w, next + FILTERS * 3 / 4);
                    }
                }
            } else {
#pragma unroll 3
                for (int k = 0; k < channels; k++, next += FILTERS / 4) {
#pragma unroll
                    for (int i = 0; i < WINDOWS; i++)
                        add_products(sums[i], inside[i] ? corner[i][step + k] : 0, next);
                }
            }
        }
    // Results go through shared memory, so that neighbours write neighbours.
    const int here = min(FILTERS, filters - first_filter);
#pragma unroll
    for (int i = 0; i < WINDOWS; i++) {
        __syncthreads();
#pragma unroll
        for (int f = 0; f < FILTERS; f++) {
            const bool there = first_filter + f < filters;
            results[threadIdx.x][f] = ACTIVATE(sums[i][f] + (bias && there ? bias[first_filter + f] : 0));
        }
        __syncthreads();
        const int first = (blockIdx.x * WINDOWS + i) * THREADS, end = min(THREADS, count - first) * here;
        for (int j = threadIdx.x; j < end; j += THREADS) {
            const int row = here == FILTERS ? j / FILTERS : j / here, f = j - row * here;
            Y[(offset)(first + row) * filters + first_filter + f] = results[row][f];
        }
    }
}

const int SQUARE = 4;  // a thread makes the sums of SQUARE filters and SQUARE numbers of a window

// Where a window begins: its first pixel's place among all numbers of the images, and in its own image.
struct Corner {
    offset place;
    int y, x;
};

// Block of any number of threads, a multiple of 32 up to 256; of them `slices` groups, each of a thread for each
// SQUARE x SQUARE sums of dV, share the windows of a tile. Grid of one dimension: blocks share the windows, `tile` of
// them at once. Dynamic shared memory: a Corner for each window of a tile; for each the numbers of dY and of P, each
// rounded up to SQUARE; then used again to meet: SQUARE * SQUARE numbers for each thread of a slice. What a thread
// adds up of a tile is added to its total, so that long sums round little. Each block leaves its sums in its row of
// partials, filters * K long.
extern "C" __global__ void __launch_bounds__(256)
narrow_filters(int samples, int height, int width, int channels, int rows, int columns, int stride, int top, int left,
               int out_height, int out_width, int filters, int slices, int tile, const real *X, const real *dY,
               real *partials)
{
    wait_for_previous_kernel();
    extern __shared__ __align__(16) Corner corners[];
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const int K = rows * columns * channels;
    const int across = (K + SQUARE - 1) / SQUARE, down = (filters + SQUARE - 1) / SQUARE;
    const int ldp = across * SQUARE, ldg = down * SQUARE;
    real *shared = (real *)(corners + tile), *gradients = shared, *windows = shared + tile * ldg;
    const int squares = across * down, slice = threadIdx.x / squares, square = threadIdx.x % squares;
    const int first_f = square / across * SQUARE, first_k = square % across * SQUARE;
    const int count = samples * out_height * out_width;
    // For the gathering: a thread stays at its number of a window, and goes down the windows.
    const int span = min(ldp, (int)blockDim.x), first_row = threadIdx.x / span, row_step = blockDim.x / span;

    real totals[SQUARE][SQUARE] = {};
#pragma unroll 1
    for (offset first = (offset)blockIdx.x * tile; first < count; first += (offset)gridDim.x * tile) {
        const int here = min((offset)tile, count - first);
        __syncthreads();
        for (int row = threadIdx.x; row < here; row += blockDim.x) {
            const Place at((int)first + row, out_height, out_width, 1);
            const int y = w.pixel_y(at.y, 0), x = w.pixel_x(at.x, 0);
            corners[row] = {at.n * w.image() + ((offset)y * width + x) * channels, y, x};
        }
        __syncthreads();
        for (int i = threadIdx.x; i < here * ldg; i += blockDim.x) {
            const int row = i / ldg, f = i - row * ldg;
            gradients[i] = f < filters ? dY[(first + row) * filters + f] : 0;
        }
        if (first_row < row_step)
            for (int k = threadIdx.x % span; k < ldp; k += span) {
                const Number number(w, k);
                const int step = (number.row * width + number.column) * channels + number.channel;
#pragma unroll 4
                for (int row = first_row; row < here; row += row_step) {
                    const Corner corner = corners[row];
                    const bool there = k < K && w.inside(corner.y + number.row, corner.x + number.column);
                    windows[row * ldp + k] = there ? X[corner.place + step] : 0;
                }
            }
        __syncthreads();
        if (slice < slices) {
            real sums[SQUARE][SQUARE] = {};
#pragma unroll 2
            for (int row = slice; row < here; row += slices) {
                const float4 g = *(const float4 *)(gradients + row * ldg + first_f);
                const float4 p = *(const float4 *)(windows + row * ldp + first_k);
                const real gs[SQUARE] = {g.x, g.y, g.z, g.w}, ps[SQUARE] = {p.x, p.y, p.z, p.w};
#pragma unroll
                for (int i = 0; i < SQUARE; i++)
#pragma unroll
                    for (int j = 0; j < SQUARE; j++)
                        sums[i][j] += gs[i] * ps[j];
            }
#pragma unroll
            for (int i = 0; i < SQUARE; i++)
#pragma unroll
                for (int j = 0; j < SQUARE; j++)
                    totals[i][j] += sums[i][j];
        }
    }
    // The slices meet, one after the other.
    for (int one = slices - 1; one > 0; one--) {
        __syncthreads();
        if (slice == one)
#pragma unroll
            for (int i = 0; i < SQUARE * SQUARE; i++)
                shared[square * SQUARE * SQUARE + i] = totals[i / SQUARE][i % SQUARE];
        __syncthreads();
        if (slice == 0)
#pragma unroll
            for (int i = 0; i < SQUARE * SQUARE; i++)
                totals[i / SQUARE][i % SQUARE] += shared[square * SQUARE * SQUARE + i];
    }
    if (slice == 0)
#pragma unroll
        for (int i = 0; i < SQUARE; i++)
#pragma unroll
            for (int j = 0; j < SQUARE; j++)
                if (first_f + i < filters && first_k + j < K)
                    partials[(offset)blockIdx.x * filters * K + (first_f + i) * K + first_k + j] = totals[i][j];
}
