// Gradients summed, parameters updated and spread over ranks that reach each other's memory: in one kernel, or
// in two, with a sum over nodes between them.
// constants: REAL=float|double MOST_RANKS=2|4|8
//
// The parameters are cut into a shard for each rank. Each rank sends its gradients of a shard to the shard's
// owner; the owner adds them up in the order of the ranks, descends, and sends the new parameters to all.
// Nobody waits for anybody but by looking for the numbers themselves (peer.cuh): 2 (p - 1) / p of the
// gradients' bytes out and in for each of p ranks, and two crossings of the link in all.

#include "peer.cuh"
#include "shard.cuh"

const int TURNS = 3;

// Memory of each rank that the others write: for each of three turns, from each rank a shard of gradients, and
// a shard of parameters from each. A step takes one turn: what it sends finds its place cleared by the receiver
// in the step before last, and the sender has seen numbers of the last one since. As packed by nn/launches.py.
struct Peers : Ranks {
    real *mailbox[MOST_RANKS];
};

// The place in a mailbox of a four of what `rank` sends: gradients (0) or parameters (1).
__device__ inline real *mail(const Peers &peers, int receiver, int turn, int what, int sender, int four)
{
    const offset row = (offset)(2 * turn + what) * peers.ranks + sender;
    return peers.mailbox[receiver] + (row * peers.shard + four) * WIDTH;
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
                                    const Four &before, const Four &sum)
{
    const Four x = updated(bucket, place, descent, arrays, before, sum);
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

__device__ inline int turn_before(int turn) { return turn == 0 ? TURNS - 1 : turn - 1; }

// This rank's gradients of all other shards to their owners; meanwhile the turn before is cleared.
__device__ inline void send_shards(const Peers &peers, const Bucket *buckets, int turn, const real *gradients)
{
    for_each_four(peers, buckets, [&](int four, const Bucket &bucket) {
        send_gradients(peers, turn, four, bucket, gradients);
        clear(peers, turn_before(turn), four);
    });
}

// The end of a step: all others' parameters, and the next turn.
__device__ inline void take_shards(const Peers &peers, const Bucket *buckets, int turn, const Arrays &arrays,
                                   int *turns)
{
    for_each_four(peers, buckets, [&](int four, const Bucket &bucket) {
        take_parameters(peers, turn, four, bucket, arrays);
    });
    __syncthreads();
    if (threadIdx.x == 0)
        turns[blockIdx.x] = turn + 1 < TURNS ? turn + 1 : 0;
}

// All kernels: blocks of one dimension, of which all must run at once. `turns` has a number for each block, 0 at
// first; the last kernel of a step moves it on.

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
    sum_update_spread(const Peers *given_peers, const Bucket *given_buckets, real rate, real momentum,
                      real decay, real *gradients, real *velocity, real *parameters, const LossRing *ring,
                      int *turns)
{
    begin_beside_kernel_before(false);
    __shared__ Plan<Peers> plan;
    const Bucket *buckets = fetch(plan, given_peers, given_buckets);
    const Peers &peers = plan.peers;
    const Descent descent = {rate, momentum, decay};
    const Arrays arrays = {gradients, velocity, parameters, ring};
    const int turn = turns[blockIdx.x];

    send_shards(peers, buckets, turn, gradients);
    for_each_four(peers, buckets, [&](int four, const Bucket &bucket) {
        const Place place = place_of(bucket, peers.rank, four - bucket.first);
        const Four before = read(parameters + place.at, place.parameters);
        const Four sum = sum_of_shard(peers, turn, four, place, gradients);
        update_shard(peers, turn, four, bucket, place, descent, arrays, before, sum);
    });
    take_shards(peers, buckets, turn, arrays, turns);
}

// The first half: sums of this rank's shard, in place of its gradients.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
    sum_shards(const Peers *given_peers, const Bucket *given_buckets, real *gradients, const int *turns)
{
    begin_beside_kernel_before(false);
    __shared__ Plan<Peers> plan;
    const Bucket *buckets = fetch(plan, given_peers, given_buckets);
    const Peers &peers = plan.peers;
    const int turn = turns[blockIdx.x];

    send_shards(peers, buckets, turn, gradients);
    for_each_four(peers, buckets, [&](int four, const Bucket &bucket) {
        const Place place = place_of(bucket, peers.rank, four - bucket.first);
        write(gradients + place.at, place.all, sum_of_shard(peers, turn, four, place, gradients));
    });
}

// The second half, of what is there now.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
    update_spread(const Peers *given_peers, const Bucket *given_buckets, real rate, real momentum, real decay,
                  real *gradients, real *velocity, real *parameters, const LossRing *ring, int *turns)
{
    begin_beside_kernel_before(false);
    __shared__ Plan<Peers> plan;
    const Bucket *buckets = fetch(plan, given_peers, given_buckets);
    const Peers &peers = plan.peers;
    const Descent descent = {rate, momentum, decay};
    const Arrays arrays = {gradients, velocity, parameters, ring};
    const int turn = turns[blockIdx.x];

    for_each_four(peers, buckets, [&](int four, const Bucket &bucket) {
        const Place place = place_of(bucket, peers.rank, four - bucket.first);
        const Four before = read(parameters + place.at, place.parameters);
        const Four sum = read(gradients + place.at, place.all);
        update_shard(peers, turn, four, bucket, place, descent, arrays, before, sum);
    });
    take_shards(peers, buckets, turn, arrays, turns);
}
