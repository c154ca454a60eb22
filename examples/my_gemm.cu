// A matrix product of one's own, timed and checked against the project's ladder and cuBLAS:
//
//     python -m bench.gemm --file examples/my_gemm.cu --kernel my_gemm --shape 512,512,512
//
// D = A B, row-major: A (M, K), B (K, N). A block of 16 x 16 threads makes a tile of 16 x 16 of D from tiles of A
// and B in shared memory, each of which it reads once from global memory for all its threads. Other blocks and
// tiles are given by --block and --tile. Change it, and see what you win.

const int TILE = 16;

extern "C" __global__ void my_gemm(int M, int N, int K, const float *A, const float *B, float *D)
{
    __shared__ float a[TILE][TILE];
    __shared__ float b[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;

    float sum = 0;
    for (int first = 0; first < K; first += TILE) {
        a[y][x] = row < M && first + x < K ? A[(size_t)row * K + first + x] : 0;
        b[y][x] = column < N && first + y < K ? B[(size_t)(first + y) * N + column] : 0;
        __syncthreads();
        for (int k = 0; k < TILE; k++)
            sum += a[y][k] * b[k][x];
        __syncthreads();  // nobody refills a tile that others still read
    }
    if (row < M && column < N)
        D[(size_t)row * N + column] = sum;
}
