// One step of heat that spreads over a plate: each inner point moves towards the mean of its four neighbours.
// Block 32 x 8: a warp reads neighbours in a row. The rim stays as it is.

extern "C" __global__ void spread_heat(int rows, int columns, float rate, const float *now, float *next)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= columns || y >= rows)
        return;
    const int i = y * columns + x;
    const bool on_rim = x == 0 || y == 0 || x == columns - 1 || y == rows - 1;
    const float change = on_rim ? 0 : now[i - 1] + now[i + 1] + now[i - columns] + now[i + columns] - 4 * now[i];
    next[i] = now[i] + rate * change;
}
