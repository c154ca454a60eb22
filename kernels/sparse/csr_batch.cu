// Y = f(X W' + b) with a sparse W that shares its weights, for many samples: the ladder goes on.
// constants: REAL=float COLUMN=index16|index32 ACTIVATION=identity|sigmoid|tanh|relu SAMPLES=8|16|32
//
// X (samples, inputs), Y (samples, units), without gaps; W: see csr.cuh; `bias` (units) may be null. Each weight is
// used once a sample, and each use needs a number of X: what counts is how fast those come. Sums have an order that
// only W and the launch decide.

#include "csr.cuh"

// X' (inputs, samples) of X (samples, inputs), by tiles of 32 x 32 in shared memory.
//
// Block 32 x 8, grid x: tiles over the inputs, y: tiles over the samples; shared memory: 4.2 KB.
extern "C" __global__ void transpose_inputs(int samples, int inputs, const real *X, real *transposed)
{
    wait_for_previous_kernel();
    __shared__ real tile[WARP][WARP + 1];
    const int input = blockIdx.x * WARP, sample = blockIdx.y * WARP, lane = threadIdx.x;
    for (int i = threadIdx.y; i < WARP; i += blockDim.y)
        if (sample + i < samples && input + lane < inputs)
            tile[i][lane] = X[(offset)(sample + i) * inputs + input + lane];
    __syncthreads();
    for (int i = threadIdx.y; i < WARP; i += blockDim.y)
        if (sample + lane < samples && input + i < inputs)
            transposed[(offset)(input + i) * samples + sample + lane] = tile[lane][i];
}

// Samples along lanes: a warp takes a row and 32 samples, so that all lanes need the same entry, and neighbouring
// numbers of X'.
//
// Block 32 x any, grid x: blocks over the rows, a warp each, y: 32 samples each; shared memory: 1 KB.
extern "C" __global__ void csr_lanes(int samples, int units, const int *starts, const int *unit_of,
                                     const COLUMN *columns, const code *codes, const real *codebook,
                                     const real *transposed, const real *bias, real *Y)
{
    wait_for_previous_kernel();
    __shared__ real book[CODES];
    copy_codebook(book, codebook);
    __syncthreads();
    const int r = blockIdx.x * blockDim.y + threadIdx.y, sample = blockIdx.y * WARP + threadIdx.x;
    if (r >= units || sample >= samples)
        return;
    real sum = 0;
#pragma unroll 8
    for (int i = starts[r]; i < starts[r + 1]; i++)
        sum += book[codes[i]] * transposed[(offset)columns[i] * samples + sample];
    Y[(offset)sample * units + unit_of[r]] = output(sum, bias, unit_of[r]);
}

const int WARPS = 16;  // of a block of csr_tile

const int WIDE = 4;                  // samples that a lane takes
const int GROUP = SAMPLES / WIDE;    // lanes that take an entry together
const int AT_ONCE = WARP / GROUP;    // entries that a warp takes at once
const int PITCH = SAMPLES + WIDE;    // numbers from one column of a tile to the next: without bank conflicts
const int HALF = WARP / 2, QUARTER = WARP / 4;

struct alignas(16) Wide {
    real of[WIDE];
};

// Two entries whose weights are looked up, and whose columns are places in the tile.
struct Entry {
    int place;
    real weight;
};
struct alignas(16) Pair {
    Entry of[2];
};

// Column and code of an entry as they were read.
struct Unread {
    int column, number;
};

// A lane's entry of those from `at` to `last`; behind them nobody looks at it.
__device__ inline Unread read_entry(const COLUMN *columns, const code *codes, int at, int last)
{
    const int i = at + threadIdx.x % WARP;
    if (i >= last)
        return {0, 0};
    return {columns[i], codes[i]};
}

// Copies the samples' columns first, first + 1, ... to the tile, `width` of them; what X does not have is 0. A warp
// takes 16 columns of 2 samples: two lines of global memory, and no more than two lanes meet in a bank.
__device__ inline void fill_tile(real *tile, const real *X, int samples, int inputs, int first, int width)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int COLUMNS = 16, LINES = WARP / COLUMNS, GROUPS = SAMPLES / LINES;
    const int pieces = (width + COLUMNS - 1) / COLUMNS * GROUPS, sample = blockIdx.z * SAMPLES;
    Copies copies;
    for (int piece = warp; piece < pieces; piece += WARPS) {
        const int column = piece / GROUPS * COLUMNS + lane % COLUMNS, s = piece % GROUPS * LINES + lane / COLUMNS;
        const bool there = first + column < inputs && sample + s < samples;
        const real *from = there ? X + ((offset)(sample + s) * inputs + first + column) : X;
        if (column < width)
            copies.start<4>(tile + column * PITCH + s, from, there);
    }
    copies.end_group();
    copies.wait<0>();
}

__device__ inline void add(Wide &sum, Entry entry, const real *numbers)
{
    const Wide x = *(const Wide *)(numbers + entry.place);
#pragma unroll
    for (int j = 0; j < WIDE; j++)
        sum.of[j] += entry.weight * x.of[j];
}

// Adds up what groups of lanes have of the same samples; each lane keeps one sample's sum: `sample_of`. In the first
// two exchanges a lane gives half of what it has away and gets the other half.
__device__ inline real sum_of_groups(const Wide &sums)
{
    const int lane = threadIdx.x % WARP;
    const bool upper = lane & HALF, odd = lane & QUARTER;
    const real *of = sums.of;
    real first = (upper ? of[2] : of[0]) + __shfl_xor_sync(ALL_LANES, upper ? of[0] : of[2], HALF);
    real second = (upper ? of[3] : of[1]) + __shfl_xor_sync(ALL_LANES, upper ? of[1] : of[3], HALF);
    real sum = (odd ? second : first) + __shfl_xor_sync(ALL_LANES, odd ? first : second, QUARTER);
    for (int distance = QUARTER / 2; distance >= GROUP; distance /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    return sum;
}

__device__ inline int sample_of(int lane)
{
    return lane % GROUP * WIDE + (lane & HALF ? 2 : 0) + (lane & QUARTER ? 1 : 0);
}

// A tile of X, `width` columns of SAMPLES samples, in shared memory: it is read once, and then each entry's numbers
// come from there. So W is cut into tiles of columns. Entries cuts[t * units + r] to cuts[(t + 1) * units + r] of row
// r lie in tile t; `sums` (gridDim.z, tiles, units, SAMPLES) gets a sum for each tile, which csr_add_tiles adds up.
// Warps put entries in shared memory, from where all lanes of a group read them, while the next ones are on their way.
//
// Block 512, one a multiprocessor, since it takes all shared memory; grid x: tiles; y: any, each takes
// every gridDim.y-th row, so that long and short ones are shared out alike; z: SAMPLES samples each. Shared memory: width * PITCH
// numbers, and 5 KB.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
csr_tile(int samples, int inputs, int units, int width, const int *cuts, const COLUMN *columns, const code *codes,
         const real *codebook, const real *X, real *sums)
{
    wait_for_previous_kernel();
    extern __shared__ __align__(16) real tile[];
    __shared__ real book[CODES];
    __shared__ Pair staged[WARPS][WARP / 2];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = blockIdx.x * width;
    copy_codebook(book, codebook);
    fill_tile(tile, X, samples, inputs, first, width);
    __syncthreads();

    const int count = (units - (int)blockIdx.y + gridDim.y - 1) / gridDim.y;  // rows of this block
    const int *cut = cuts + (offset)blockIdx.x * units;
    real *mine = sums + ((offset)blockIdx.z * gridDim.x + blockIdx.x) * units * SAMPLES;
    const real *numbers = tile + lane % GROUP * WIDE;
    for (int block = warp; block < count; block += WARPS * WARP) {
        // Each lane has the cuts of one of the warp's next rows.
        const int row = blockIdx.y + gridDim.y * min(block + lane * WARPS, count - 1);
        const int from = cut[row], to = cut[units + row], rows = min(WARP, (count - block + WARPS - 1) / WARPS);
        int at = __shfl_sync(ALL_LANES, from, 0), last = __shfl_sync(ALL_LANES, to, 0);
        Unread read = read_entry(columns, codes, at, last);
        for (int k = 0; k < rows; k++) {
            const int next = __shfl_sync(ALL_LANES, from, (k + 1) % WARP);
            const int next_last = k + 1 < rows ? __shfl_sync(ALL_LANES, to, (k + 1) % WARP) : 0;
            Wide sum = {};
            do {
                const int entries = min(WARP, last - at);
                staged[warp][lane / 2].of[lane % 2] = {(read.column - first) * PITCH, book[read.number]};
                __syncwarp();
                at += WARP;
                read = at < last ? read_entry(columns, codes, at, last) : read_entry(columns, codes, next, next_last);
#pragma unroll 2
                for (int i = lane / GROUP; 2 * i < entries; i += AT_ONCE) {
                    const Pair pair = staged[warp][i];
                    add(sum, pair.of[0], numbers);
                    if (2 * i + 1 < entries)
                        add(sum, pair.of[1], numbers);
                }
                __syncwarp();
            } while (at < last);
            const real total = sum_of_groups(sum);
            if (lane % QUARTER < GROUP)
                mine[((offset)blockIdx.y + gridDim.y * (block + k * WARPS)) * SAMPLES + sample_of(lane)] = total;
            at = next;
            last = next_last;
        }
    }
}

// Y of the sums of tiles, added up from the first tile on.
//
// Block of one dimension; grid of one dimension, a thread for each sum of a tile, and y: SAMPLES samples each; no
// shared memory.
extern "C" __global__ void csr_add_tiles(int samples, int units, int tiles, const real *sums, const int *unit_of,
                                         const real *bias, real *Y)
{
    wait_for_previous_kernel();
    const offset size = (offset)units * SAMPLES, i = (offset)blockIdx.x * blockDim.x + threadIdx.x;
    const int sample = blockIdx.y * SAMPLES + i % SAMPLES;
    if (i >= size || sample >= samples)
        return;
    const real *mine = sums + blockIdx.y * tiles * size + i;
    real sum = 0;
#pragma unroll 8
    for (int t = 0; t < tiles; t++)
        sum += mine[t * size];
    const int unit = unit_of[i / SAMPLES];
    Y[(offset)sample * units + unit] = output(sum, bias, unit);
}
