// The products of a dense layer of gemm/layer.cu for single components, where the epilogue of a tile and the
// multiplication of the next one are at the same time. Arguments and constants are as there; K is not in parts.
// architectures: sm_90a
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=0 TRANSPOSE_B=0|1 COMPONENTS=11 ACTIVATION=sigmoid|tanh|relu
//
// Launch: see gemm/ping_pong.cuh. A tile of D leaves the sums of its columns in its row of `partials`.

#include "gemm/wgmma_tiles.cuh"
#include "gemm/matrix_tiles.cuh"
#include "gemm/layer.cuh"
#include "gemm/ping_pong.cuh"

template <int BM, int BN>
__device__ inline void layer_product(int K, const TensorMap *A, const TensorMap *B, int stages, bool starts_early,
                                     const Layer &layer)
{
    const TileOrder order = {tiles_over(layer.M, BM), tiles_over(layer.N, BN)};
    const int CHAINS = BM / 64;
    // Sums of columns, of two tiles of each warpgroup: the warps of one are never further apart, since a turn is the
    // other one's after all of them.
    const int MEETINGS = 4;
    __shared__ Barrier met[MEETINGS];
    if (threadIdx.x == 0)
        for (int i = 0; i < MEETINGS; i++)
            init_barrier(&met[i], WARPGROUP_WARPS);
    multiply_in_turns<BM, BN>(order, A, B, (K + DEPTH - 1) / DEPTH, stages, starts_early,
                              [&](TilePlace at, int index, real (&d)[CHAINS][BN / 2]) {
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++)
            make_and_store<BN>(layer, at.row * BM + chain * 64, at.column * BN, d[chain]);
        if constexpr (!TRANSPOSE_B)
            if (layer.column_sums) {
#pragma unroll
                for (int chain = 1; chain < CHAINS; chain++)
#pragma unroll
                    for (int i = 0; i < BN / 2; i++)
                        d[0][i] += d[chain][i];
                add_columns<BM, BN, WARPGROUP_WARPS>(layer, at.row, at.column, d[0], index, met);
            }
    });
}

extern "C" __global__ void __launch_bounds__(384, 1)
layer_ping_pong_128x128(int M, int N, int K, const TensorMap *A, const TensorMap *B, int stages, int starts_early,
                        real alpha, const real *bias, real *D, int ldd, bfloat16 *components, int components_ld,
                        int distance, const bfloat16 *made, int made_ld, int made_distance, real *partials,
                        real *column_sums, int *meetings)
{
    start_beside_previous_kernel(starts_early);
    const Layer layer = {{M, N, alpha, 0, nullptr, bias, D, 0, ldd}, components, components_ld, distance,
                         made, made_ld, made_distance, partials, column_sums, meetings};
    layer_product<128, 128>(K, A, B, stages, starts_early, layer);
}
