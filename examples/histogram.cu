// How often each value occurs among n bytes. Block of 256 threads, shared memory: 256 counts.
//
// A block counts its bytes in shared memory first, where atomics are fast, and adds its counts to those of all
// blocks once, at its end. The grid may be of any size: threads walk through the bytes with the stride of all.

extern "C" __global__ void histogram(int n, const unsigned char *bytes, unsigned *counts)
{
    __shared__ unsigned of_block[256];
    of_block[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&of_block[bytes[i]], 1u);
    __syncthreads();
    atomicAdd(&counts[threadIdx.x], of_block[threadIdx.x]);
}
