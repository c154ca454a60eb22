// Convolution as a matrix product: the windows of images laid out as rows of a matrix P, and back.
// constants: REAL=float|double
//
// With A, W, Z as in direct.cu, and P (samples out_height out_width, rows columns channels):
//   Z = P W^T        dW = dZ^T P        dP = dZ W, and dA the sum of all that dP has of each pixel
// W and Z lie in memory as these matrices; P is rows * columns / stride^2 times as large as A.
//
// Both: blocks and grid of one dimension, any number of threads, no shared memory. A thread takes elements a
// whole grid apart.

#include "conv/window.cuh"

// Neighbouring threads write neighbours, and read neighbours while they are in one row of a window.
extern "C" __global__ void im2col(int samples, int height, int width, int channels, int rows, int columns,
                                  int stride, int top, int left, int out_height, int out_width, const real *A,
                                  real *P)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const int pixels = rows * columns * channels;
    const offset size = samples * w.output(1) * pixels, step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const Place window(i / pixels, out_height, out_width, 1);
        const int k = i % pixels;
        const int y = w.pixel_y(window.y, k / channels / columns), x = w.pixel_x(window.x, k / channels % columns);
        const real *image = A + window.n * w.image();
        P[i] = w.inside(y, x) ? image[((offset)y * width + x) * channels + k % channels] : 0;
    }
}

// Each pixel reads what the windows have of it: nobody writes where others do, so the order is fixed.
extern "C" __global__ void col2im(int samples, int height, int width, int channels, int rows, int columns,
                                  int stride, int top, int left, int out_height, int out_width,
                                  const real *dP, real *dA)
{
    wait_for_previous_kernel();
    const Window w = {height, width, channels, rows, columns, stride, top, left, out_height, out_width};
    const int pixels = rows * columns * channels;
    const offset size = samples * w.image(), step = (offset)gridDim.x * blockDim.x;
    for (offset i = blockIdx.x * (offset)blockDim.x + threadIdx.x; i < size; i += step) {
        const Place at(i, height, width, channels);
        const real *windows = dP + at.n * w.output(pixels);
        real sum = 0;
        const int last_y = w.last_window(at.y, top, out_height), last_x = w.last_window(at.x, left, out_width);
        for (int y = w.first_window(at.y, top, rows); y <= last_y; y++)
            for (int x = w.first_window(at.x, left, columns); x <= last_x; x++) {
                const int r = at.y + top - y * stride, c = at.x + left - x * stride;
                sum += windows[((offset)y * out_width + x) * pixels + (r * columns + c) * channels + at.channel];
            }
        dA[i] = sum;
    }
}
