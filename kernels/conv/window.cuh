// The windows of a convolution or of pooling on images (samples, height, width, channels), row-major; as
// nn/model/window.py has them. A launch gives its ten numbers in the order of this struct.
#pragma once

#include "common.cuh"

struct Window {
    int height, width, channels;
    int rows, columns, stride;
    int top, left;  // pixels that the first window begins above and before the image
    int out_height, out_width;

    // Elements of a sample, and of what the windows on it make with so many channels.
    __device__ offset image() const { return (offset)height * width * channels; }
    __device__ offset output(int channels_out) const { return (offset)out_height * out_width * channels_out; }

    // Where the pixel at place (row, column) of window (y, x) is in the image; it may be outside.
    __device__ int pixel_y(int y, int row) const { return y * stride + row - top; }
    __device__ int pixel_x(int x, int column) const { return x * stride + column - left; }
    __device__ bool inside(int pixel_y, int pixel_x) const
    {
        return 0 <= pixel_y && pixel_y < height && 0 <= pixel_x && pixel_x < width;
    }

    // The windows that have a pixel are `first` to `last`: each at place pixel + before - window * stride.
    __device__ int first_window(int pixel, int before, int size) const
    {
        return max(0, (pixel + before - size + stride) / stride);
    }
    __device__ int last_window(int pixel, int before, int places) const
    {
        return min(places - 1, (pixel + before) / stride);
    }
};

// A place (n, y, x, channel) of a row-major array of so many rows, columns and channels, from an index of 32 bits, or
// of 64 where all samples need them: then the first division takes many instructions.
struct Place {
    int n, y, x, channel;

    template <class Index>
    __device__ Place(Index i, int rows, int columns, int channels)
    {
        const int size = rows * columns * channels;
        n = i / size;
        int rest = i - (offset)n * size;
        channel = rest % channels;
        rest /= channels;
        x = rest % columns;
        y = rest / columns;
    }
};

// Where number k of a window is in the image, from the window's first pixel on, and its place in the window.
struct Number {
    int row, column, channel;

    __device__ Number(const Window &w, int k)
    {
        channel = k % w.channels;
        const int place = k / w.channels;
        row = place / w.columns;
        column = place - row * w.columns;
    }
};
