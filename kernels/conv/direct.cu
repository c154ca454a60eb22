// Convolution as seven loops, a thread a result: the rung that everything else is compared with.
// constants: REAL=float|double
//
// Images A (samples, height, width, channels), filters W (filters, rows, columns, channels), results
// Z (samples, out_height, out_width, filters):
//   Z[n,y,x,f]  = sum over r, c, i of A[n, y stride + r - top, x stride + c - left, i] W[f,r,c,i]
//   dA[n,u,v,i] = sum over the windows (y,x) that have pixel (u,v), and f, of dZ[n,y,x,f] W[f,u-..,v-..,i]
//   dW[f,r,c,i] = sum over n, y, x of dZ[n,y,x,f] A[n, y stride + r - top, x stride + c - left, i]
// Pixels outside the image are 0. Each sum is added up in a fixed order.
//
// All: blocks and grid of one dimension. A thread takes results a whole grid apart.

#include "conv/window.cuh"

// Any number of threads, no shared memory. Neighbouring threads are neighbouring filters: they read the same
// pixels, and filters rows * columns * channels elements apart.
extern "C" __global__ void direct_forward(int samples, int height, int width, int channels, int rows,
                                          int columns, int stride, int top, int left, int out_height,
                                          int out_width, int filters, const real *A, const real *W, real *Z)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const offset size = samples * w.output(filters), step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const Place at(i, out_height, out_width, filters);
        const real *image = A + at.n * w.image(), *filter = W + (offset)at.channel * rows * columns * channels;
        real sum = 0;
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) {
                const int y = w.pixel_y(at.y, r), x = w.pixel_x(at.x, c);
                if (!w.inside(y, x))
                    continue;
                const real *pixel = image + ((offset)y * width + x) * channels;
                const real *weight = filter + (r * columns + c) * channels;
                for (int k = 0; k < channels; k++)
                    sum += pixel[k] * weight[k];
            }
        Z[i] = sum;
    }
}

// Any number of threads, no shared memory. Neighbouring threads are neighbouring channels of a pixel.
extern "C" __global__ void direct_input(int samples, int height, int width, int channels, int rows,
                                        int columns, int stride, int top, int left, int out_height,
                                        int out_width, int filters, const real *dZ, const real *W, real *dA)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const offset size = samples * w.image(), step = (offset)gridDim.x * blockDim.x;
    const int filter = rows * columns * channels;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const Place at(i, height, width, channels);
        const real *gradients = dZ + at.n * w.output(filters);
        real sum = 0;
        const int last_y = w.last_window(at.y, top, out_height), last_x = w.last_window(at.x, left, out_width);
        for (int y = w.first_window(at.y, top, rows); y <= last_y; y++)
            for (int x = w.first_window(at.x, left, columns); x <= last_x; x++) {
                const int r = at.y + top - y * stride, c = at.x + left - x * stride;
                const real *gradient = gradients + ((offset)y * out_width + x) * filters;
                const real *weight = W + (r * columns + c) * channels + at.channel;
                for (int f = 0; f < filters; f++)
                    sum += gradient[f] * weight[(offset)f * filter];
            }
        dA[i] = sum;
    }
}

// Blocks of 32 w threads, w a power of two up to 32; shared memory: a sum a thread. A block makes one weight:
// its threads share the samples' windows, each with a sum for a few of them at a time that it adds to its
// total, so that long sums round little; a tree adds up the totals.
extern "C" __global__ void __launch_bounds__(1024)
direct_filters(int samples, int height, int width, int channels, int rows, int columns, int stride, int top,
               int left, int out_height, int out_width, int filters, const real *A, const real *dZ, real *dW)
{
    wait_for_previous_kernel();
    __shared__ real totals[1024];
    const int AT_ONCE = 32;
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const int size = filters * rows * columns * channels, threads = blockDim.x;
    const offset windows = samples * w.output(1);

    for (int i = blockIdx.x; i < size; i += gridDim.x) {
        const int channel = i % channels, c = i / channels % columns, r = i / channels / columns % rows;
        const int filter = i / channels / columns / rows;
        real total = 0;
        for (offset first = threadIdx.x; first < windows; first += (offset)threads * AT_ONCE) {
            real sum = 0;
            for (int k = 0; k < AT_ONCE; k++) {
                const offset place = first + (offset)k * threads;
                if (place >= windows)
                    break;
                const Place at(place, out_height, out_width, 1);
                const int y = w.pixel_y(at.y, r), x = w.pixel_x(at.x, c);
                if (w.inside(y, x))
                    sum += dZ[place * filters + filter] *
                           A[at.n * w.image() + ((offset)y * width + x) * channels + channel];
            }
            total += sum;
        }
        totals[threadIdx.x] = total;
        __syncthreads();
        for (int half = threads / 2; half > 0; half /= 2) {
            if (threadIdx.x < half)
                totals[threadIdx.x] += totals[threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x == 0)
            dW[i] = totals[0];
        __syncthreads();
    }
}
