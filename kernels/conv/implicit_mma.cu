// Convolution as a product on the tensor cores of sm_80 and later whose matrix of windows (im2col.cu) is never built:
// the copies that bring its tiles to shared memory (cp.async) gather them from the images, with zeros outside.
// architectures: sm_80 sm_90a
// constants: REAL=float TRANSPOSE_A=0 TRANSPOSE_B=1 COMPONENTS=1|2 ACTIVATION=identity|sigmoid|tanh|relu
// constants: REAL=float TRANSPOSE_A=0|1 TRANSPOSE_B=0 COMPONENTS=1|2 ACTIVATION=identity
//
// How tiles are multiplied: gemm/mma_tiles.cuh. With P, W, Z as in im2col.cu:
// - TRANSPOSE_A=0 TRANSPOSE_B=1: Z = f(P W^T + bias), a row a window, a column a filter, k a number of the window.
// - TRANSPOSE_A=0 TRANSPOSE_B=0: dA = P' W', P' windows on dZ, a row a pixel of the images, a column a channel. k
//   is a place of the window and a filter; W' is W, of which rows are gathered too.
// - TRANSPOSE_A=1 TRANSPOSE_B=0: dW = dZ^T P, a row a filter, a column a number of the window, k a window.
//
// Channels lie side by side: where they are a multiple of four, 16 bytes of P are 16 bytes of an image, and one copy.
// Else each number is a copy by itself.

#include "conv/window.cuh"
#include "gemm/mma_tiles.cuh"

const int OUTSIDE = -(1 << 30);  // where windows are that there are not: no place of them is inside

// Images of which windows are taken.
struct Images {
    Window window;
    int samples;
    const real *data;

    __device__ int windows() const { return samples * window.out_height * window.out_width; }
    __device__ int numbers() const { return window.rows * window.columns * window.channels; }
    __device__ bool wide() const { return (size_t)data % 16 == 0 && window.channels % VECTOR == 0; }

    // The pixel (y, x) of sample n, counted from the first of all; and one of its channels.
    __device__ int pixel(int n, int y, int x) const { return (n * window.height + y) * window.width + x; }
    __device__ const real *channel(int pixel, int channel) const
    {
        return data + (offset)pixel * window.channels + channel;
    }
};

// Windows as lines of an operand, k along their numbers. A thread copies of the same windows in all tiles.
template <int LINES, int THREADS>
struct WindowLines {
    typedef Share<true, LINES, THREADS> Mine;

    Images images;
    bool wide;
    int corner[Mine::ROWS], y[Mine::ROWS], x[Mine::ROWS];  // the pixels where its windows begin

    __device__ WindowLines(const Images &images, int first_line) : images(images), wide(images.wide())
    {
        const Window &w = images.window;
#pragma unroll
        for (int i = 0; i < Mine::ROWS; i++) {
            const int line = first_line + Mine::row(i);
            const Place at(line, w.out_height, w.out_width, 1);
            y[i] = w.pixel_y(at.y, 0);
            x[i] = w.pixel_x(at.x, 0);
            corner[i] = images.pixel(at.n, y[i], x[i]);
            if (line >= images.windows())
                y[i] = OUTSIDE;
        }
    }

    // Starts this thread's copies of the tile from `first_k` on.
    __device__ void fetch(AsyncCopies &copies, real *tile, int first_k) const
    {
        const int k = first_k + Mine::column();
        if (wide) {
            fetch_numbers<VECTOR>(copies, tile, k);
        } else {
#pragma unroll
            for (int v = 0; v < VECTOR; v++)
                fetch_numbers<1>(copies, tile + v, k + v);
        }
    }

    template <int COUNT>
    __device__ void fetch_numbers(AsyncCopies &copies, real *tile, int k) const
    {
        const Number at(images.window, k);
        const int step = images.pixel(0, at.row, at.column);
        const bool there = k < images.numbers();
#pragma unroll
        for (int i = 0; i < Mine::ROWS; i++) {
            const bool inside = there && images.window.inside(y[i] + at.row, x[i] + at.column);
            copies.start<COUNT * sizeof(real)>(Mine::target(tile, i), images.channel(corner[i] + step, at.channel),
                                               inside ? COUNT : 0);
        }
    }
};

// Windows as k, numbers of the window as lines. A thread copies the same numbers of the windows of all tiles.
template <int LINES, int THREADS>
struct WindowRows {
    typedef Share<false, LINES, THREADS> Mine;

    Images images;
    bool wide;
    int line;
    Number at;  // of its first line

    __device__ WindowRows(const Images &images, int first_line)
        : images(images), wide(images.wide()), line(first_line + Mine::column()), at(images.window, line)
    {
    }

    __device__ void fetch(AsyncCopies &copies, real *tile, int first_k) const
    {
        if (wide) {
            fetch_numbers<VECTOR>(copies, tile, first_k, at, line < images.numbers());
        } else {
#pragma unroll
            for (int v = 0; v < VECTOR; v++)
                fetch_numbers<1>(copies, tile + v, first_k, Number(images.window, line + v),
                                 line + v < images.numbers());
        }
    }

    template <int COUNT>
    __device__ void fetch_numbers(AsyncCopies &copies, real *tile, int first_k, const Number &at, bool there) const
    {
        const Window &w = images.window;
#pragma unroll
        for (int i = 0; i < Mine::ROWS; i++) {
            const int k = first_k + Mine::row(i);
            const Place window(k, w.out_height, w.out_width, 1);
            const int y = w.pixel_y(window.y, at.row), x = w.pixel_x(window.x, at.column);
            const bool inside = there && k < images.windows() && w.inside(y, x);
            const real *source = images.channel(images.pixel(window.n, y, x), at.channel);
            copies.start<COUNT * sizeof(real)>(Mine::target(tile, i), source, inside ? COUNT : 0);
        }
    }
};

// ---------------------------------------------------------------------------------------------------------
// To the input.
//
// Window y has pixel u at its weight r = u + top - y stride. From one pixel to the one `stride` further on, windows
// move on by one, and r stays. So pixels of one phase, u mod stride, have every `stride`-th weight, and are a
// convolution of dZ with stride 1 and its weights backwards: u = phase + stride a has, at place j of `count`,
//     weight  first + stride (count - 1 - j),   first = (phase + top) mod stride,
//     window  a + j - before,                   before = count - 1 - (phase + top) / stride.
// Where the stride is larger than the window, some phases have no weight: their gradient is 0. No product is made
// for the stride's sake that is always zero.
// ---------------------------------------------------------------------------------------------------------

// One direction of a phase.
struct Phase {
    int phase, stride, first, count, before, pixels;

    __device__ Phase(int phase, int stride, int padding, int weights, int size)
        : phase(phase), stride(stride), first((phase + padding) % stride),
          count((max(weights - first, 0) + stride - 1) / stride),
          before(count - 1 - (phase + padding) / stride), pixels((size - phase + stride - 1) / stride)
    {
    }

    __device__ int weight(int place) const { return first + stride * (count - 1 - place); }
    __device__ int pixel(int a) const { return phase + stride * a; }
};

struct PixelsOfPhase {
    Window window;  // of the convolution
    int filters;
    Phase down, across;

    __device__ PixelsOfPhase(const Window &w, int filters, int number)
        : window(w), filters(filters),
          down(number / min(w.stride, w.width), w.stride, w.top, w.rows, w.height),
          across(number % min(w.stride, w.width), w.stride, w.left, w.columns, w.width)
    {
    }

    __device__ static int phases(const Window &w) { return min(w.stride, w.height) * min(w.stride, w.width); }

    // On the gradients of the outputs.
    __device__ Window windows() const
    {
        return {window.out_height, window.out_width, filters, down.count, across.count, 1, down.before,
                across.before, down.pixels, across.pixels};
    }

    // The row of dA that line m makes.
    __device__ int operator()(int m) const
    {
        const Place at(m, down.pixels, across.pixels, 1);
        return (at.n * window.height + down.pixel(at.y)) * window.width + across.pixel(at.x);
    }
};

// The filters that these pixels have, in the order of their windows: lines are channels.
template <int LINES, int THREADS>
struct FilterRows {
    typedef Share<false, LINES, THREADS> Mine;

    Window window, windows;  // of the convolution; of these pixels, on the gradients of the outputs
    const real *W;
    int last;     // the place of the weight that the first place of `windows` has
    int channel;  // the first that the thread copies
    bool wide;

    __device__ FilterRows(const PixelsOfPhase &pixels, const real *W, int first_line)
        : window(pixels.window), windows(pixels.windows()), W(W),
          last(pixels.down.weight(0) * window.columns + pixels.across.weight(0)),
          channel(first_line + Mine::column()), wide((size_t)W % 16 == 0 && window.channels % VECTOR == 0)
    {
    }

    __device__ void fetch(AsyncCopies &copies, real *tile, int first_k) const
    {
        const int K = windows.rows * windows.columns * windows.channels, places = window.rows * window.columns;
        const int inside = max(0, min(window.channels - channel, VECTOR));
#pragma unroll
        for (int i = 0; i < Mine::ROWS; i++) {
            const int k = first_k + Mine::row(i);
            const Number at(windows, k);
            const int place = last - (at.row * window.columns + at.column) * window.stride;
            const real *source = W + ((offset)at.channel * places + place) * window.channels + channel;
            real *target = Mine::target(tile, i);
            const int count = k < K ? inside : 0;
            if (wide) {
                copies.start<16>(target, source, count);
            } else {
#pragma unroll
                for (int v = 0; v < VECTOR; v++)
                    copies.start<4>(target + v, source + v, v < count);
            }
        }
    }
};

// ---------------------------------------------------------------------------------------------------------
// The three products. The grid's x counts tiles down D (to the input: of each phase as many), y across, z parts of
// K; with `partials` (gridDim.z x D) the sums of each part go there, for sum_parts.cu. Block, shared memory: as in
// gemm/mma_tiles.cuh.
//
// `gathered` is A, or to the input dZ; `matrix` is W, or to the filters dZ. The window is the convolution's.
// ---------------------------------------------------------------------------------------------------------

template <int BM, int BN, int WARP_M, int WARP_N>
__device__ inline void convolve(const Window &window, int samples, int filters, const real *gathered,
                                const real *matrix, real *partials, const real *bias, real *D)
{
    extern __shared__ __align__(16) real ring[];
    typedef Block<BM, BN, WARP_M, WARP_N> Tile;
    const int first_n = blockIdx.y * BN;
    auto result = [&](int M, int N) {
        partials += partials ? (offset)blockIdx.z * M * N : 0;
        return Result{M, N, 1, 0, nullptr, bias, D, N, N};
    };
    const auto same = [](int m) { return m; };
    if constexpr (TRANSPOSE_A) {
        const Images images = {window, samples, gathered};
        const int first_m = blockIdx.x * BM;
        const Result dW = result(filters, images.numbers());
        Tile block(ring, first_m, first_n, false);
        const Lines<false, BM, Tile::THREADS> gradients({matrix, filters, filters, images.windows()}, first_m);
        const WindowRows<BN, Tile::THREADS> windows(images, first_n);
        block.multiply_part(images.windows(), gradients, windows);
        block.store(dW.M, partials, dW, same);
    } else if constexpr (TRANSPOSE_B) {
        const Images images = {window, samples, gathered};
        const int first_m = blockIdx.x * BM, K = images.numbers();
        const Result Z = result(images.windows(), filters);
        Tile block(ring, first_m, first_n, false);
        const WindowLines<BM, Tile::THREADS> windows(images, first_m);
        const Lines<true, BN, Tile::THREADS> weights({matrix, K, filters, K}, first_n);
        block.multiply_part(K, windows, weights);
        block.store(Z.M, partials, Z, same);
    } else {
        const int tiles = gridDim.x / PixelsOfPhase::phases(window);
        const PixelsOfPhase pixels(window, filters, blockIdx.x / tiles);
        const Images gradients = {pixels.windows(), samples, gathered};
        const int first_m = blockIdx.x % tiles * BM;
        if (first_m >= gradients.windows())
            return;  // there are fewer pixels of this phase than of the first
        const Result dA = result(samples * window.height * window.width, window.channels);
        Tile block(ring, first_m, first_n, false);
        const WindowLines<BM, Tile::THREADS> windows(gradients, first_m);
        const FilterRows<BN, Tile::THREADS> weights(pixels, matrix, first_n);
        block.multiply_part(gradients.numbers(), windows, weights);
        block.store(gradients.windows(), partials, dA, pixels);
    }
}

extern "C" __global__ void __launch_bounds__(128)
gather_64x64(int samples, int height, int width, int channels, int rows, int columns, int stride, int top, int left,
             int out_height, int out_width, int filters, const real *gathered, const real *matrix, real *partials,
             const real *bias, real *D)
{
    wait_for_previous_kernel();
    convolve<64, 64, 32, 32>({height, width, channels, rows, columns, stride, top, left, out_height, out_width},
                             samples, filters, gathered, matrix, partials, bias, D);
}

extern "C" __global__ void __launch_bounds__(256)
gather_128x128(int samples, int height, int width, int channels, int rows, int columns, int stride, int top, int left,
               int out_height, int out_width, int filters, const real *gathered, const real *matrix, real *partials,
               const real *bias, real *D)
{
    wait_for_previous_kernel();
    convolve<128, 128, 64, 32>({height, width, channels, rows, columns, stride, top, left, out_height, out_width},
                               samples, filters, gathered, matrix, partials, bias, D);
}
