// The shards of ranks that reach each other's memory: which numbers are whose, and what becomes of them. For
// the kernels that sum, update and spread: peer.cu, where the numbers are the news, and peer_flags.cu.
#pragma once

#include "patience.cuh"
#include "sgd.cuh"

// Of a block, of which there is one a multiprocessor: all must run at once. A thread may hold a four from each
// rank, and eight of float64 take registers that only half as many have. As in pyrt/exchange/peer.py.
const int MOST_THREADS = MOST_RANKS * sizeof(real) > 32 ? 256 : 512;

// A bucket. As packed by nn/launches.py.
struct Bucket {
    Stretch stretch;
    int size;   // the stretch, and behind it what is summed only
    int share;  // fours in a shard of it
    int first;  // where these begin in a shard of all buckets
};

// The ranks of a node, to this one. As packed by nn/launches.py.
struct Ranks {
    int rank, ranks;
    int shard;  // fours in a shard of all buckets
    int buckets;
    const int *given_up;  // in the host's memory: not 0 when a rank is gone
};

// A four of a bucket: which of its numbers belong to the bucket, and where they lie.
struct Place {
    offset at;  // in the flat arrays, a multiple of four
    int i;      // the first one's number in the bucket, perhaps below 0
    Part all, parameters, sums;
};

__device__ inline Part part_of(int i, int from, int to)
{
    const int first = max(from - i, 0), last = min(to - i, WIDTH);
    return {first, max(first, last), first == 0 && last == WIDTH};
}

__device__ inline Place place_of(const Bucket &bucket, int owner, int four)
{
    Place place;
    place.at = (bucket.stretch.start / WIDTH + (offset)owner * bucket.share + four) * WIDTH;
    place.i = (int)min((offset)bucket.size, place.at - bucket.stretch.start);
    place.all = part_of(place.i, 0, bucket.size);
    place.parameters = part_of(place.i, 0, bucket.stretch.size);
    place.sums = part_of(place.i, bucket.stretch.size, bucket.size);
    return place;
}

struct Arrays {
    real *gradients, *velocity, *parameters;
    const LossRing *ring;
};

// What the sums make of a place of this rank's shard: parameters of their gradients, and sums that stay so.
__device__ inline Four updated(const Bucket &bucket, const Place &place, const Descent &descent,
                               const Arrays &arrays, const Four &before, Four x)
{
    if (place.parameters.from == place.parameters.to)
        return x;
    const Four p = descend(descent, bucket.stretch, place.i, place.parameters, x, before,
                           arrays.velocity ? arrays.velocity + place.at : nullptr);
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j < place.parameters.to)
            x.of[j] = p.of[j];
    return x;
}

// What a rank does with the new numbers of a place: parameters with their terms; sums in place of gradients.
__device__ inline void take(const Bucket &bucket, const Place &place, const Four &x, const Arrays &arrays)
{
    if (place.parameters.from < place.parameters.to)
        put(bucket.stretch, place.i, place.parameters, x, arrays.parameters + place.at);
    if (place.sums.from == place.sums.to)
        return;
    write(arrays.gradients + place.at, place.sums, x);
    if (!arrays.ring)
        return;
    const offset loss = arrays.ring->loss - arrays.gradients - place.at;
    if (loss >= place.sums.from && loss < place.sums.to)
        keep_loss(*arrays.ring);
}

// Of the bucket in which this four of a shard lies.
__device__ inline const Bucket &bucket_of(const Bucket *buckets, int count, int four)
{
    int b = 0;
    while (b + 1 < count && four >= buckets[b + 1].first)
        b++;
    return buckets[b];
}

// `work(four, bucket)` on each four of a shard, by the same thread of the same block in every loop and kernel.
template <typename Work>
__device__ inline void for_each_four(const Ranks &ranks, const Bucket *buckets, Work work)
{
    const int step = gridDim.x * blockDim.x;
    for (int four = blockIdx.x * blockDim.x + threadIdx.x; four < ranks.shard; four += step)
        work(four, bucket_of(buckets, ranks.buckets, four));
}

const int HELD = 16;

// What no kernel writes, in shared memory: it comes while the kernel before still runs. Of more buckets than
// these the list stays where it is. Peers: Ranks, and what a kernel needs of their memory.
template <typename Peers> struct Plan {
    Peers peers;
    Bucket held[HELD];
};

template <typename Peers>
__device__ inline const Bucket *fetch(Plan<Peers> &plan, const Peers *peers, const Bucket *buckets)
{
    const int count = min(peers->buckets, HELD);
    const int words = sizeof(Peers) / sizeof(int), bucket_words = count * (int)(sizeof(Bucket) / sizeof(int));
    for (int i = threadIdx.x; i < words; i += blockDim.x)
        ((int *)&plan.peers)[i] = ((const int *)peers)[i];
    for (int i = threadIdx.x; i < bucket_words; i += blockDim.x)
        ((int *)plan.held)[i] = ((const int *)buckets)[i];
    __syncthreads();
    wait_for_kernel_before();
    return plan.peers.buckets <= HELD ? plan.held : buckets;
}
