// Tiles of two matrices of components, which the tensor memory accelerator copies; included behind wgmma_tiles.cuh.
// A matrix is op(X), of row-major X: X transposed where TRANSPOSE_A, or TRANSPOSE_B, says so.
#pragma once

// Bytes along k of a tile: half as many where three buffers would not fit, or hardly.
template <int GROUPS, int BN>
const int MATRIX_WIDTH = COMPONENTS_A + COMPONENTS_B > 3 && GROUPS >= 2 && BN == 128 ? 64 : 128;

// Starts the copy of all components of a tile, into a row for each line or, where the operand is transposed, for
// each k.
template <bool TRANSPOSED>
__device__ inline void fetch(number *tile, const TensorMap *map, int line, int k, Barrier *barrier)
{
    if (TRANSPOSED)
        copy_box(tile, map, 0, k, line / 64, barrier);
    else
        copy_box(tile, map, k * (sizeof(number) / 2), line, 0, barrier);
}

// Tiles of two matrices, from row m of op(A) and column n of op(B) on.
template <int BYTES>
struct MatrixTiles {
    static const int WIDTH = BYTES, DEPTH = WIDTH / sizeof(number);
    const TensorMap *A, *B;
    int m, n;

    __device__ void prefetch() const
    {
        prefetch_map(A);
        prefetch_map(B);
    }

    template <int BM, int BN>
    __device__ void fetch(number *a, number *b, int tile, Barrier *barrier) const
    {
        ::fetch<TRANSPOSE_A>(a, A, m, tile * DEPTH, barrier);
        ::fetch<!TRANSPOSE_B>(b, B, n, tile * DEPTH, barrier);
    }
};
