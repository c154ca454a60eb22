// The images of a training batch as the input of the network, each mirrored and moved at random
// (nn/input/augment.py).
// constants: REAL=float PIXEL=uint8|float32 NUMBER=float
// constants: REAL=double PIXEL=uint8|float32|float64 NUMBER=double
// constants: REAL=float PIXEL=uint8 NUMBER=bfloat16
//
// As gather_batch (pixels.cu), in a file of its own: runs without --augment compile nothing of it.

#include "nn/batch.cuh"
#include "nn/philox.cuh"
#include "nn/pixels.cuh"

struct Shape {
    int height, width, channels;
};

// Where a number lies in an image. Steps are added without a division: each part carries into the one before.
struct Place {
    int y, x, channel;

    __device__ Place(int column, Shape image)
        : y(column / (image.width * image.channels)), x(column / image.channels % image.width),
          channel(column % image.channels)
    {
    }

    __device__ void add(Place step, Shape image)
    {
        channel += step.channel;
        const bool to_x = channel >= image.channels;
        channel -= to_x ? image.channels : 0;
        x += step.x + to_x;
        const bool to_y = x >= image.width;
        x -= to_y ? image.width : 0;
        y += step.y + to_y;
    }
};

// How an image is changed: mirrored, then moved so many pixels down and right.
struct Change {
    bool flipped;
    int down, right;
};

// Words for a row of the training set in an epoch; `shift` pixels at most, 0: none.
__device__ inline Change draw(int row, int epoch, unsigned seed_low, unsigned seed_high, bool flip, int shift)
{
    const Words words = philox({{(unsigned)row, 0, (unsigned)epoch, 0xffffffff}}, seed_low, seed_high);
    const unsigned long long span = 2 * shift + 1;
    return {flip && words.of[0] < 0x80000000, (int)(words.of[1] * span >> 32) - shift,
            (int)(words.of[2] * span >> 32) - shift};
}

// The pixel that comes to a place; 0 where none does.
__device__ inline pixel moved(const pixel *pixels, Shape image, Change change, Place to)
{
    const int y = to.y - change.down, x = to.x - change.right;
    if ((unsigned)y >= (unsigned)image.height || (unsigned)x >= (unsigned)image.width)
        return 0;
    const int from = change.flipped ? image.width - 1 - x : x;
    return pixels[(y * image.width + from) * image.channels + to.channel];
}

// Stores neighbours together; alone where there is one.
__device__ inline void store_wide(const bfloat16 (&numbers)[4], bfloat16 *x)
{
    *(unsigned long long *)x = pack(numbers);
}
__device__ inline void store_wide(const real (&numbers)[1], real *x) { *x = numbers[0]; }

__device__ inline void store(const pixel (&pixels)[WIDTH], int count, bool wide, real scale, number *x)
{
    number numbers[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        convert(pixels[i], scale, numbers[i]);
    if (wide) {
        store_wide(numbers, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        if (i < count)
            x[i] = numbers[i];
}

// This thread's part of one row: WIDTH neighbours every `step` columns from `first` on. All pixels are asked for
// before the kernel before is waited for.
__device__ inline void convert_moved_row(Shape image, int first, int step, bool wide, real scale, Change change,
                                         const pixel *pixels, number *x)
{
    const int columns = image.height * image.width * image.channels;
    const Place one(1, image), further(step, image);
    Place at(first, image);
    for (int column = first; column < columns; column += AT_ONCE * step) {
        pixel held[AT_ONCE][WIDTH];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            Place to = at;
#pragma unroll
            for (int j = 0; j < WIDTH; j++) {
                held[i][j] = column + i * step + j < columns ? moved(pixels, image, change, to) : (pixel)0;
                to.add(one, image);
            }
            at.add(further, image);
        }
        wait_for_previous_kernel();
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int now = column + i * step;
            if (now < columns)
                store(held[i], columns - now, wide, scale, x + now);
        }
    }
}

// X[i] = images[j] / scale, changed as row numbers[*place + i] of the training set is in the epoch
// *step / batches; batch_labels[i] = labels[j], with j = order[*place + i]. When all blocks have read place and
// step, both move on: see gather_batch.
//
// Block 32 x 8, no shared memory; the grid's x counts blocks down the rows, y across the columns, any number of each.
extern "C" __global__ void gather_augmented(int rows, int height, int width, int channels, real scale,
                                            const pixel *images, const int *labels, const int *order,
                                            const int *numbers, int *place, int *arrived, int advance, int places,
                                            int *step, int batches, unsigned seed_low, unsigned seed_high,
                                            int flip, int shift, number *X, int ldx, int *batch_labels,
                                            int starts_early)
{
    start_beside_previous_kernel(starts_early);
    if (!starts_early)
        wait_for_previous_kernel();
    const Shape image = {height, width, channels};
    const int columns = height * width * channels;
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x * WIDTH;
    const int first_column = (blockIdx.y * blockDim.x + threadIdx.x) * WIDTH;
    const bool wide = columns % WIDTH == 0 && ldx % WIDTH == 0;
    const int *mine = order + *place, *names = numbers + *place;
    const int epoch = *step / batches;
    __syncthreads();
    const unsigned last = gridDim.x * gridDim.y - 1;
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        __threadfence();
        if (atomicInc((unsigned *)arrived, last) == last) {
            move_on(place, advance, places);
            *step += 1;
        }
    }
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += row_step) {
        const offset chosen = mine[row];
        const int label = first_column == 0 ? labels[chosen] : 0;
        const Change change = draw(names[row], epoch, seed_low, seed_high, flip, shift);
        convert_moved_row(image, first_column, column_step, wide, scale, change, images + chosen * columns,
                          X + row * ldx);
        if (first_column == 0)
            batch_labels[row] = label;
    }
}
