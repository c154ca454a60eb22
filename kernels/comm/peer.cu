// Gradients summed, parameters updated and spread over ranks that reach each other's memory: in one kernel, or
// in two, with a sum over nodes between them.
// constants: REAL=float|double MOST_RANKS=2|4|8 UPDATE=nn/updates/*.cuh|comm/sums_only.cuh
//
// The parameters are cut into a shard for each rank. Each rank sends its gradients of a shard to the shard's
// owner; the owner adds them up in the order of the ranks, updates, and sends the new parameters to all.
// Nobody waits for anybody but by looking for the numbers themselves (peer.cuh): 2 (p - 1) / p of the
// gradients' bytes out and in for each of p ranks, and two crossings of the link in all.

#include "comm/peer.cuh"
#include "comm/shard.cuh"

const int SLOTS = 3;

// Memory of each rank that the others write: for each of three slots, from each rank a shard of gradients, and
// a shard of parameters from each. A step takes one slot: what it sends finds its place cleared by the receiver
// in the step before last, and the sender has seen numbers of the last one since. As packed by pyrt/exchange/peer.py.
struct Peers : Ranks {
    real *mailbox[MOST_RANKS];
};

// The place in a mailbox of a vec4 of what `rank` sends: gradients (0) or parameters (1).
__device__ inline real *mail(const Peers &peers, int receiver, int slot, int what, int sender, int vec4)
{
    const offset row = (offset)(2 * slot + what) * peers.ranks + sender;
    return peers.mailbox[receiver] + (row * peers.shard + vec4) * WIDTH;
}

// Each rank begins with another one, so that not all send to the same.
__device__ inline int neighbour(const Peers &peers, int next)
{
    const int rank = peers.rank + next;
    return rank < peers.ranks ? rank : rank - peers.ranks;
}

// To the owner of each shard, this rank's gradients of it.
__device__ inline void send_gradients(const Peers &peers, int slot, int vec4, const Bucket &bucket,
                                      const real *gradients)
{
    Vec4 mine[MOST_RANKS];
#pragma unroll
    for (int i = 1; i < MOST_RANKS; i++)
        if (i < peers.ranks) {
            const Place place = place_of(bucket, neighbour(peers, i), vec4 - bucket.first);
            mine[i] = read(gradients + place.at, place.all);
        }
#pragma unroll
    for (int i = 1; i < MOST_RANKS; i++)
        if (i < peers.ranks)
            send(mail(peers, neighbour(peers, i), slot, 0, peers.rank, vec4), mine[i]);
}

// All ranks' gradients of this rank's shard, added up in the order of the ranks.
__device__ inline Vec4 sum_of_shard(const Peers &peers, int slot, int vec4, const Place &place,
                                    const real *gradients)
{
    const Vec4 mine = read(gradients + place.at, place.all);
    Vec4 g[MOST_RANKS];
    const real *here[MOST_RANKS];
#pragma unroll
    for (int rank = 0; rank < MOST_RANKS; rank++) {
        here[rank] = mail(peers, peers.rank, slot, 0, rank, vec4);
        g[rank] = mine;  // and what comes takes the others' places
    }
    receive(g, here, peers.ranks, peers.rank, peers.given_up);
#pragma unroll
    for (int rank = 1; rank < MOST_RANKS; rank++)
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            if (rank < peers.ranks)
                g[0].of[j] += g[rank].of[j];
    return g[0];
}

// What the sums make of this rank's shard of the parameters, to all.
__device__ inline void update_shard(const Peers &peers, int slot, int vec4, const Bucket &bucket,
                                    const Place &place, const Update &update, const Vec4 &before,
                                    const Vec4 &sum, real *gradients)
{
    const Vec4 x = updated(bucket, place, update, before, sum);
#pragma unroll
    for (int i = 1; i < MOST_RANKS; i++)
        if (i < peers.ranks)
            send(mail(peers, neighbour(peers, i), slot, 1, peers.rank, vec4), x);
    take(bucket, place, x, update, gradients);
}

// The other shards' parameters, from their owners.
__device__ inline void take_parameters(const Peers &peers, int slot, int vec4, const Bucket &bucket,
                                       const Update &update, real *gradients)
{
    Vec4 x[MOST_RANKS];
    const real *here[MOST_RANKS];
#pragma unroll
    for (int owner = 0; owner < MOST_RANKS; owner++)
        here[owner] = mail(peers, peers.rank, slot, 1, owner, vec4);
    receive(x, here, peers.ranks, peers.rank, peers.given_up);
#pragma unroll
    for (int owner = 0; owner < MOST_RANKS; owner++)
        if (owner < peers.ranks && owner != peers.rank)
            take(bucket, place_of(bucket, owner, vec4 - bucket.first), x[owner], update, gradients);
}

// What the step before has read: nothing is there any more. Done while this step's numbers are on their way.
__device__ inline void clear(const Peers &peers, int slot, int vec4)
{
    Vec4 nothing;
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        nothing.of[j] = missing(real());
    for (int i = 1; i < peers.ranks; i++)
        for (int what = 0; what < 2; what++)
            store(mail(peers, peers.rank, slot, what, neighbour(peers, i), vec4), nothing);
}

__device__ inline int slot_before(int slot) { return slot == 0 ? SLOTS - 1 : slot - 1; }

// This rank's gradients of all other shards to their owners; meanwhile the slot before is cleared.
__device__ inline void send_shards(const Peers &peers, const Bucket *buckets, int slot, const real *gradients)
{
    for_each_vec4(peers, buckets, [&](int vec4, const Bucket &bucket) {
        send_gradients(peers, slot, vec4, bucket, gradients);
        clear(peers, slot_before(slot), vec4);
    });
}

// The end of a step: all others' parameters, and the next slot.
__device__ inline void take_shards(const Peers &peers, const Bucket *buckets, int slot, const Update &update,
                                   real *gradients, int *slots)
{
    for_each_vec4(peers, buckets, [&](int vec4, const Bucket &bucket) {
        take_parameters(peers, slot, vec4, bucket, update, gradients);
    });
    __syncthreads();
    if (threadIdx.x == 0)
        slots[blockIdx.x] = slot + 1 < SLOTS ? slot + 1 : 0;
}

// All kernels: blocks of one dimension, of which all must run at once. `slots` has a number for each block, 0 at
// first; the last kernel of a step moves it on.

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
    sum_update_spread(const Peers *given_peers, const Bucket *given_buckets, const Update *given_update,
                      real *gradients, int *slots)
{
    start_beside_previous_kernel(false);
    __shared__ Plan<Peers> plan;
    const Bucket *buckets = fetch(plan, given_peers, given_buckets, given_update);
    const Peers &peers = plan.peers;
    const Update &update = plan.update;
    const int slot = slots[blockIdx.x];

    send_shards(peers, buckets, slot, gradients);
    for_each_vec4(peers, buckets, [&](int vec4, const Bucket &bucket) {
        const Place place = place_of(bucket, peers.rank, vec4 - bucket.first);
        const Vec4 before = update.before(place.parameters, place.at);
        const Vec4 sum = sum_of_shard(peers, slot, vec4, place, gradients);
        update_shard(peers, slot, vec4, bucket, place, update, before, sum, gradients);
    });
    take_shards(peers, buckets, slot, update, gradients, slots);
}

// The first half: sums of this rank's shard, in place of its gradients.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
    sum_shards(const Peers *given_peers, const Bucket *given_buckets, real *gradients, const int *slots)
{
    start_beside_previous_kernel(false);
    __shared__ Plan<Peers> plan;
    const Bucket *buckets = fetch<Peers>(plan, given_peers, given_buckets, nullptr);
    const Peers &peers = plan.peers;
    const int slot = slots[blockIdx.x];

    send_shards(peers, buckets, slot, gradients);
    for_each_vec4(peers, buckets, [&](int vec4, const Bucket &bucket) {
        const Place place = place_of(bucket, peers.rank, vec4 - bucket.first);
        write(gradients + place.at, place.all, sum_of_shard(peers, slot, vec4, place, gradients));
    });
}

// The second half, of what is there now.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
    update_spread(const Peers *given_peers, const Bucket *given_buckets, const Update *given_update,
                  real *gradients, int *slots)
{
    start_beside_previous_kernel(false);
    __shared__ Plan<Peers> plan;
    const Bucket *buckets = fetch(plan, given_peers, given_buckets, given_update);
    const Peers &peers = plan.peers;
    const Update &update = plan.update;
    const int slot = slots[blockIdx.x];

    for_each_vec4(peers, buckets, [&](int vec4, const Bucket &bucket) {
        const Place place = place_of(bucket, peers.rank, vec4 - bucket.first);
        const Vec4 before = update.before(place.parameters, place.at);
        const Vec4 sum = read(gradients + place.at, place.all);
        update_shard(peers, slot, vec4, bucket, place, update, before, sum, gradients);
    });
    take_shards(peers, buckets, slot, update, gradients, slots);
}
