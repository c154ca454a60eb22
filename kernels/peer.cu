// Gradients summed, parameters updated and spread over ranks that reach each other's memory: in one kernel, or
// in two, with a sum over nodes between them.
// constants: REAL=float|double MOST_RANKS=2|4|8
//
// The parameters are cut into a shard for each rank. Each rank sends its gradients of a shard to the shard's
// owner; the owner adds them up in the order of the ranks, descends, and sends the new parameters to all.
// Nobody waits for anybody but by looking for the numbers themselves (peer.cuh): 2 (p - 1) / p of the
// gradients' bytes out and in for each of p ranks, and two crossings of the link in all.

#include "peer.cuh"

const int TURNS = 3;

// A bucket. As packed by nn/launches.py.
struct Bucket {
    Stretch stretch;
    int size;   // the stretch, and behind it what is summed only
    int share;  // fours in a shard of it
    int first;  // where these begin in a shard of all buckets
};

// Memory of each rank that the others write: for each of three turns, from each rank a shard of gradients, and
// a shard of parameters from each. A step takes one turn: what it sends finds its place cleared by the receiver
// in the step before last, and the sender has seen numbers of the last one since. As packed by nn/launches.py.
struct Peers {
    real *mailbox[MOST_RANKS];
    int rank, ranks;
    int shard;  // fours in a shard of all buckets
    int buckets;
    const int *given_up;  // in the host's memory: not 0 when a rank is gone
};

// The place in a mailbox of a four of what `rank` sends: gradients (0) or parameters (1).
__device__ inline real *mail(const Peers &peers, int receiver, int turn, int what, int sender, int four)
{
    const offset row = (offset)(2 * turn + what) * peers.ranks + sender;
    return peers.mailbox[receiver] + (row * peers.shard + four) * WIDTH;
}

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

// Each rank begins with another one, so that not all send to the same.
__device__ inline int neighbour(const Peers &peers, int next)
{
    const int rank = peers.rank + next;
    return rank < peers.ranks ? rank : rank - peers.ranks;
}

// To the owner of each shard, this rank's gradients of it.
__device__ inline void send_gradients(const Peers &peers, int turn, int four, const Bucket &bucket,
                                      const real *gradients)
{
    Four mine[MOST_RANKS];
#pragma unroll
    for (int i = 1; i < MOST_RANKS; i++)
        if (i < peers.ranks) {
            const Place place = place_of(bucket, neighbour(peers, i), four - bucket.first);
            mine[i] = read(gradients + place.at, place.all);
        }
#pragma unroll
    for (int i = 1; i < MOST_RANKS; i++)
        if (i < peers.ranks)
            send(mail(peers, neighbour(peers, i), turn, 0, peers.rank, four), mine[i]);
}

// All ranks' gradients of this rank's shard, added up in the order of the ranks.
__device__ inline Four sum_of_shard(const Peers &peers, int turn, int four, const Place &place,
                                    const real *gradients)
{
    const Four mine = read(gradients + place.at, place.all);
    Four g[MOST_RANKS];
    const real *here[MOST_RANKS];
#pragma unroll
    for (int rank = 0; rank < MOST_RANKS; rank++) {
        here[rank] = mail(peers, peers.rank, turn, 0, rank, four);
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
__device__ inline void update_shard(const Peers &peers, int turn, int four, const Bucket &bucket,
                                    const Place &place, const Descent &descent, const Arrays &arrays,
                                    const Four &before, Four x)
{
    if (place.parameters.from < place.parameters.to) {
        const Four p = descend(descent, bucket.stretch, place.i, place.parameters, x, before,
                               arrays.velocity ? arrays.velocity + place.at : nullptr);
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            if (j < place.parameters.to)
                x.of[j] = p.of[j];
    }
#pragma unroll
    for (int i = 1; i < MOST_RANKS; i++)
        if (i < peers.ranks)
            send(mail(peers, neighbour(peers, i), turn, 1, peers.rank, four), x);
    take(bucket, place, x, arrays);
}

// The other shards' parameters, from their owners.
__device__ inline void take_parameters(const Peers &peers, int turn, int four, const Bucket &bucket,
                                       const Arrays &arrays)
{
    Four x[MOST_RANKS];
    const real *here[MOST_RANKS];
#pragma unroll
    for (int owner = 0; owner < MOST_RANKS; owner++)
        here[owner] = mail(peers, peers.rank, turn, 1, owner, four);
    receive(x, here, peers.ranks, peers.rank, peers.given_up);
#pragma unroll
    for (int owner = 0; owner < MOST_RANKS; owner++)
        if (owner < peers.ranks && owner != peers.rank)
            take(bucket, place_of(bucket, owner, four - bucket.first), x[owner], arrays);
}

// What the step before has read: nothing is there any more. Done while this step's numbers are on their way.
__device__ inline void clear(const Peers &peers, int turn, int four)
{
    Four nothing;
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        nothing.of[j] = missing(real());
    for (int i = 1; i < peers.ranks; i++)
        for (int what = 0; what < 2; what++)
            store(mail(peers, peers.rank, turn, what, neighbour(peers, i), four), nothing);
}

// All kernels: blocks of one dimension, of which all must run at once. `turns` has a number for each block, 0 at
// first; the last kernel of a step moves it on.

const int HELD = 16;

// What no kernel writes, in shared memory: it comes while the kernel before still runs. Of more buckets than
// these the list stays where it is.
struct Plan {
    Peers peers;
    Bucket held[HELD];
};

__device__ inline const Bucket *fetch(Plan &plan, const Peers *peers, const Bucket *buckets)
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

__device__ inline void end_turn(int *turns, int turn)
{
    __syncthreads();
    if (threadIdx.x == 0)
        turns[blockIdx.x] = turn + 1 < TURNS ? turn + 1 : 0;
}

__device__ inline int turn_before(int turn) { return turn == 0 ? TURNS - 1 : turn - 1; }

extern "C" __global__ void sum_update_spread(const Peers *given_peers, const Bucket *given_buckets, real rate,
                                             real momentum, real decay, real *gradients, real *velocity,
                                             real *parameters, const LossRing *ring, int *turns)
{
    begin_beside_kernel_before(false);
    __shared__ Plan plan;
    const Bucket *buckets = fetch(plan, given_peers, given_buckets);
    const Peers &peers = plan.peers;
    const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    const Descent descent = {rate, momentum, decay};
    const Arrays arrays = {gradients, velocity, parameters, ring};
    const int turn = turns[blockIdx.x];

    for (int four = first; four < peers.shard; four += step) {
        send_gradients(peers, turn, four, bucket_of(buckets, peers.buckets, four), gradients);
        clear(peers, turn_before(turn), four);
    }
    for (int four = first; four < peers.shard; four += step) {
        const Bucket &bucket = bucket_of(buckets, peers.buckets, four);
        const Place place = place_of(bucket, peers.rank, four - bucket.first);
        const Four before = read(parameters + place.at, place.parameters);
        const Four sum = sum_of_shard(peers, turn, four, place, gradients);
        update_shard(peers, turn, four, bucket, place, descent, arrays, before, sum);
    }
    for (int four = first; four < peers.shard; four += step)
        take_parameters(peers, turn, four, bucket_of(buckets, peers.buckets, four), arrays);
    end_turn(turns, turn);
}

// The first half: sums of this rank's shard, in place of its gradients.
extern "C" __global__ void sum_shards(const Peers *given_peers, const Bucket *given_buckets, real *gradients,
                                      const int *turns)
{
    begin_beside_kernel_before(false);
    __shared__ Plan plan;
    const Bucket *buckets = fetch(plan, given_peers, given_buckets);
    const Peers &peers = plan.peers;
    const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    const int turn = turns[blockIdx.x];

    for (int four = first; four < peers.shard; four += step) {
        send_gradients(peers, turn, four, bucket_of(buckets, peers.buckets, four), gradients);
        clear(peers, turn_before(turn), four);
    }
    for (int four = first; four < peers.shard; four += step) {
        const Bucket &bucket = bucket_of(buckets, peers.buckets, four);
        const Place place = place_of(bucket, peers.rank, four - bucket.first);
        write(gradients + place.at, place.all, sum_of_shard(peers, turn, four, place, gradients));
    }
}

// The second half, of what is there now.
extern "C" __global__ void update_spread(const Peers *given_peers, const Bucket *given_buckets, real rate,
                                         real momentum, real decay, real *gradients, real *velocity,
                                         real *parameters, const LossRing *ring, int *turns)
{
    begin_beside_kernel_before(false);
    __shared__ Plan plan;
    const Bucket *buckets = fetch(plan, given_peers, given_buckets);
    const Peers &peers = plan.peers;
    const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    const Descent descent = {rate, momentum, decay};
    const Arrays arrays = {gradients, velocity, parameters, ring};
    const int turn = turns[blockIdx.x];

    for (int four = first; four < peers.shard; four += step) {
        const Bucket &bucket = bucket_of(buckets, peers.buckets, four);
        const Place place = place_of(bucket, peers.rank, four - bucket.first);
        const Four before = read(parameters + place.at, place.parameters);
        const Four sum = read(gradients + place.at, place.all);
        update_shard(peers, turn, four, bucket, place, descent, arrays, before, sum);
    }
    for (int four = first; four < peers.shard; four += step)
        take_parameters(peers, turn, four, bucket_of(buckets, peers.buckets, four), arrays);
    end_turn(turns, turn);
}
