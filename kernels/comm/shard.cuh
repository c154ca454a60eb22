// The shards of ranks that reach each other's memory: which numbers are whose, and what becomes of them. For
// the kernels that sum, update and spread: peer.cu, where the numbers are the news, and peer_flags.cu.
#pragma once

#include "comm/patience.cuh"
#include "vec4.cuh"

// The constant UPDATE names a header with a struct Segment, which has the `start` of a bucket and the `size` of
// its parameters, and a struct Update: what it makes of sums of gradients. nn/update.cuh says how to write one;
// comm/sums_only.cuh has none to make.
#include UPDATE

// Of a block, of which there is one a multiprocessor: all must run at once. A thread may hold a vec4 from each
// rank, and eight of float64 take registers that only half as many have. As in pyrt/exchange/peer.py.
const int MOST_THREADS = MOST_RANKS * sizeof(real) > 32 ? 256 : 512;

// A bucket. As packed by pyrt/exchange/peer.py.
struct Bucket {
    Segment segment;
    int size;   // the segment, and behind it what is summed only
    int share;  // vec4s in a shard of it
    int first;  // where these begin in a shard of all buckets
};

// The ranks of a node, to this one. As packed by pyrt/exchange/peer.py.
struct Ranks {
    int rank, ranks;
    int shard;  // vec4s in a shard of all buckets
    int buckets;
    const int *given_up;  // in the host's memory: not 0 when a rank is gone
};

// A vec4 of a bucket: which of its numbers belong to the bucket, and where they lie.
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

__device__ inline Place place_of(const Bucket &bucket, int owner, int vec4)
{
    Place place;
    place.at = (bucket.segment.start / WIDTH + (offset)owner * bucket.share + vec4) * WIDTH;
    place.i = (int)min((offset)bucket.size, place.at - bucket.segment.start);
    place.all = part_of(place.i, 0, bucket.size);
    place.parameters = part_of(place.i, 0, bucket.segment.size);
    place.sums = part_of(place.i, bucket.segment.size, bucket.size);
    return place;
}

// What the sums make of a place of this rank's shard: parameters of their gradients, and sums that stay so.
__device__ inline Vec4 updated(const Bucket &bucket, const Place &place, const Update &update,
                               const Vec4 &before, Vec4 x)
{
    if (place.parameters.from == place.parameters.to)
        return x;
    const Vec4 p = update.updated(bucket.segment, place.i, place.parameters, place.at, x, before);
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        if (j < place.parameters.to)
            x.of[j] = p.of[j];
    return x;
}

// What a rank does with the new numbers of a place: parameters go to the update, sums in place of gradients.
__device__ inline void take(const Bucket &bucket, const Place &place, const Vec4 &x, const Update &update,
                            real *gradients)
{
    if (place.parameters.from < place.parameters.to)
        update.put(bucket.segment, place.i, place.parameters, place.at, x);
    if (place.sums.from == place.sums.to)
        return;
    write(gradients + place.at, place.sums, x);
    update.summed(place.sums, gradients + place.at);
}

// Of the bucket in which this vec4 of a shard lies.
__device__ inline const Bucket &bucket_of(const Bucket *buckets, int count, int vec4)
{
    int b = 0;
    while (b + 1 < count && vec4 >= buckets[b + 1].first)
        b++;
    return buckets[b];
}

// `work(vec4, bucket)` on each vec4 of a shard, by the same thread of the same block in every loop and kernel.
template <typename Work>
__device__ inline void for_each_vec4(const Ranks &ranks, const Bucket *buckets, Work work)
{
    const int step = gridDim.x * blockDim.x;
    for (int vec4 = blockIdx.x * blockDim.x + threadIdx.x; vec4 < ranks.shard; vec4 += step)
        work(vec4, bucket_of(buckets, ranks.buckets, vec4));
}

const int HELD = 16;

// What no kernel writes, in shared memory: it comes while the kernel before still runs. Of more buckets than
// these the list stays where it is. Peers: Ranks, and what a kernel needs of their memory.
template <typename Peers> struct Plan {
    Peers peers;
    Update update;
    Bucket held[HELD];
};

template <typename T> __device__ inline void fetch_words(T *here, const T *there, int count)
{
    const int words = count * (int)(sizeof(T) / sizeof(int));
    for (int i = threadIdx.x; i < words; i += blockDim.x)
        ((int *)here)[i] = ((const int *)there)[i];
}

// Null for the update of a kernel that has none to make.
template <typename Peers>
__device__ inline const Bucket *fetch(Plan<Peers> &plan, const Peers *peers, const Bucket *buckets,
                                      const Update *update)
{
    fetch_words(&plan.peers, peers, 1);
    if (update)
        fetch_words(&plan.update, update, 1);
    fetch_words(plan.held, buckets, min(peers->buckets, HELD));
    __syncthreads();
    wait_for_previous_kernel();
    return plan.peers.buckets <= HELD ? plan.held : buckets;
}
