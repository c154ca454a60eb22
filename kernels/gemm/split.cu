// float32 matrices as sums of bf16 matrices, their components, for the products of wgmma.cu.
// constants: REAL=float

#include "common.cuh"
#include "bfloat16.cuh"

// Two matrices, or one, in one launch.
//
// Block 64 x 4, no shared memory; the grid's x counts blocks down the rows, y across the columns (a thread
// takes four neighbours), any number of each; z is the number of matrices. Components have a leading dimension that
// is a multiple of 4.
__device__ inline void split_matrix(int rows, int columns, const real *X, int ldx, int count,
                                    bfloat16 *components, int ld, int matrix)
{
    const bool wide = (size_t)X % 16 == 0 && ldx % 4 == 0;
    const int row_step = gridDim.x * blockDim.y, column_step = gridDim.y * blockDim.x * 4;
    for (offset row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += row_step)
        for (int column = (blockIdx.y * blockDim.x + threadIdx.x) * 4; column < columns;
             column += column_step) {
            const real *source = X + row * ldx + column;
            float4 x = {0, 0, 0, 0};
            if (wide && column + 4 <= columns) {
                x = *(const float4 *)source;
            } else {
                x.x = source[0];
                x.y = column + 1 < columns ? source[1] : 0;
                x.z = column + 2 < columns ? source[2] : 0;
                x.w = column + 3 < columns ? source[3] : 0;
            }
            split4(x, count, components + row * ld + column, matrix);
        }
}

// `matrix`: elements from one term to the next.
extern "C" __global__ void __launch_bounds__(256)
split_into_components(int rows_a, int columns_a, const real *A, int lda, int count_a, bfloat16 *components_a, int ld_a,
            int matrix_a, int rows_b, int columns_b, const real *B, int ldb, int count_b, bfloat16 *components_b,
            int ld_b, int matrix_b)
{
    wait_for_previous_kernel();
    if (blockIdx.z == 0)
        split_matrix(rows_a, columns_a, A, lda, count_a, components_a, ld_a, matrix_a);
    else
        split_matrix(rows_b, columns_b, B, ldb, count_b, components_b, ld_b, matrix_b);
}
