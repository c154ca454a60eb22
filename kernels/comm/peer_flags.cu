// What peer.cu does, with flags: sums, update and spread between two barriers of all ranks. It is there to be
// measured against peer.cu (bench/exchange.py).
// constants: REAL=float|double MOST_RANKS=2|4|8 UPDATE=nn/updates/*.cuh|comm/sums_only.cuh
//
// Nothing is sent. Once all gradients are there, each owner reads those of its shard from all ranks, adds them up
// in the order of the ranks, and updates. Once all new numbers are there, each rank reads them from their
// owners. These are the bytes of peer.cu. But a flag goes ahead of them, behind the slowest rank, and a read
// crosses the link there and back: six crossings where peer.cu has two.

#include "comm/shard.cuh"

const int BARRIERS = 2;  // gradients are there; new numbers are there

// Memory of each rank that the others read, and flags that they write. As packed by pyrt/exchange/peer.py.
struct Peers : Ranks {
    const real *gradients[MOST_RANKS];
    Vec4 *outbox[MOST_RANKS];  // the new numbers of its shard
    int *flags[MOST_RANKS];    // BARRIERS x blocks x ranks that come there; 0 at first
};

// What this thread, and those that it has met at a barrier, did before: whoever sees the flag sees it too.
__device__ inline void raise_flag(int *flag, int step)
{
#if defined(PYRT_EMULATED)
    emulated::store_release(flag, step);
#else
    asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(flag), "r"(step) : "memory");
#endif
}

__device__ inline int look_at_flag(const int *flag)
{
#if defined(PYRT_EMULATED)
    return emulated::load_acquire(flag);
#else
    int step;
    asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(step) : "l"(flag) : "memory");
    return step;
#endif
}

// The place of a flag on the rank that looks at it.
__device__ inline int flag_of(const Peers &peers, int barrier, int comes)
{
    return (barrier * gridDim.x + blockIdx.x) * peers.ranks + comes;
}

// Waits for the blocks of this block's number on all ranks. Where the host has given up, since one of them is
// gone, it is as if they had come; nothing of what follows is used.
//
// Nobody is further than this step: a rank that has left a barrier comes to the other one next, which it leaves
// once this rank has come there, and so has seen the flag of the first.
__device__ inline void meet(const Peers &peers, int barrier, int step)
{
    const int other = threadIdx.x;
    __syncthreads();
    if (other < peers.ranks && other != peers.rank) {
        raise_flag(peers.flags[other] + flag_of(peers, barrier, peers.rank), step);
        const int *flag = peers.flags[peers.rank] + flag_of(peers, barrier, other);
        for (int looks = 1; look_at_flag(flag) != step; looks++)
            if (looks % PATIENCE == 0 && has_given_up(peers.given_up))
                break;
    }
    __syncthreads();
}

// All ranks' gradients of a place in this rank's shard, added up in the order of the ranks.
__device__ inline Vec4 sum_of_shard(const Peers &peers, const Place &place)
{
    Vec4 g[MOST_RANKS];
#pragma unroll
    for (int rank = 0; rank < MOST_RANKS; rank++)
        if (rank < peers.ranks)
            g[rank] = read(peers.gradients[rank] + place.at, place.all);
#pragma unroll
    for (int rank = 1; rank < MOST_RANKS; rank++)
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            if (rank < peers.ranks)
                g[0].of[j] += g[rank].of[j];
    return g[0];
}

// The new numbers of a vec4 of all shards, from their owners.
__device__ inline void take_numbers(const Peers &peers, int vec4, const Bucket &bucket, const Update &update,
                                    real *gradients)
{
    Vec4 x[MOST_RANKS];
#pragma unroll
    for (int owner = 0; owner < MOST_RANKS; owner++)
        if (owner < peers.ranks)
            x[owner] = peers.outbox[owner][vec4];
#pragma unroll
    for (int owner = 0; owner < MOST_RANKS; owner++)
        if (owner < peers.ranks)
            take(bucket, place_of(bucket, owner, vec4 - bucket.first), x[owner], update, gradients);
}

// Blocks of one dimension, of which all must run at once: as many on each rank, so that a vec4 is the affair of
// one block number on all of them, and no block need wait for one of another number. `slots` has for each block
// the number of its last step, 0 at first.
//
// Nothing is overwritten that another rank may still read. Say it is step k:
// - Gradients are read between the barriers, by the block whose vec4 they are. Until that block has come to the
//   second barrier, this rank leaves them as they are: its block of the same number writes sums behind that
//   barrier, and the kernels behind this one, the next backward pass, wait until all its blocks have ended.
// - An outbox is read behind the second barrier. Its owner writes it again behind the first one of step k + 1, to
//   which the readers come once they have ended this kernel.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
    sum_update_spread(const Peers *given_peers, const Bucket *given_buckets, const Update *given_update,
                      real *gradients, int *slots)
{
    start_beside_previous_kernel(false);
    __shared__ Plan<Peers> plan;
    const Bucket *buckets = fetch(plan, given_peers, given_buckets, given_update);
    const Peers &peers = plan.peers;
    const Update &update = plan.update;
    const int step = slots[blockIdx.x] + 1;

    meet(peers, 0, step);
    for_each_vec4(peers, buckets, [&](int vec4, const Bucket &bucket) {
        const Place place = place_of(bucket, peers.rank, vec4 - bucket.first);
        const Vec4 before = update.before(place.parameters, place.at);
        const Vec4 sum = sum_of_shard(peers, place);
        peers.outbox[peers.rank][vec4] = updated(bucket, place, update, before, sum);
    });
    meet(peers, 1, step);
    for_each_vec4(peers, buckets,
                  [&](int vec4, const Bucket &bucket) { take_numbers(peers, vec4, bucket, update, gradients); });
    if (threadIdx.x == 0)
        slots[blockIdx.x] = step;  // all its threads have read it before they met
}
