// Matrices that move between ranks which reach each other's memory: gathered, transposed from rows to columns,
// or summed. Each rank writes its messages into the others' mailboxes, and waits for nothing but the numbers
// themselves (peer.cuh); the host has no part in it.
// constants: REAL=float|double MOST_RANKS=2|4|8
//
// All kernels: a grid of one dimension, the same for all moves, of which all blocks must run at once, and fewer
// than there are multiprocessors, so that products run beside it; blocks of one dimension, up to 512 threads;
// shared memory for the plan. A thread takes a vec4 of each rank's message at a time: so that its loads from
// all ranks are under way together, and a vec4 that one move reads and writes in place stays with one thread.

#include "comm/peer.cuh"
#include "comm/slices.cuh"

const int SLOTS = 3;

// One message from each rank to each other one. As packed by pyrt/redistribute/peer.py.
struct Stage {
    Slice sent[MOST_RANKS];      // to each rank, of the source; placed in that rank's mailbox
    Slice received[MOST_RANKS];  // from each rank, of the target; placed in this rank's
    int longest_sent, longest_received;  // in vec4s, at least one
};

// A move. Each rank's mailbox has room for `capacity` vec4s in each of three slots; move number n takes slot n
// mod 3, of which this one fills the first `filled` vec4s.
//
// What was read must be empty again before it is written again. In move n, once its numbers are on their way, a
// rank clears what it was sent in move n-1, so that outside of two slots a mailbox is always empty, whatever the
// sizes. Say rank A writes to rank B in move n. What lay in this slot, of move n-3, B cleared in its kernel of
// move n-2. Before A's kernel of move n writes, A's kernel of move n-1 has ended, and so has received a number of
// move n-1 from B; B sent that after its kernel of move n-2 had ended. So the place is empty, and nobody had to
// say so. And B is in move n-1 or later, in which it clears other slots than this one. For this each rank must
// send every other rank something in every move: where a message is empty, a vec4 of zeros.
struct Plan {
    real *mailbox[MOST_RANKS];
    const int *given_up;  // in the host's memory: not 0 when a rank is gone
    int rank, ranks;
    int capacity, filled;
    Stage stages[2];  // the second one of a sum to all ranks alone
};

// What the last move has left, for each block its own, 0 at first: graphs replay moves without the host.
struct LastMove {
    int slot;    // of the next move
    int filled;  // of the slot before it
};

__device__ inline real *mail(const Plan &plan, int receiver, int slot, int vec4)
{
    return plan.mailbox[receiver] + ((offset)slot * plan.capacity + vec4) * WIDTH;
}

// The place in this rank's mailbox of a vec4 of a message; behind its end its last one, which comes as well. An
// empty message has one, too.
__device__ inline const real *inbox(const Plan &plan, const Slice &message, int slot, int vec4)
{
    return mail(plan, plan.rank, slot, message.place + min(vec4, max(vec4s_of(message), 1) - 1));
}

// Each rank begins with another one, so that not all send to the same.
__device__ inline int neighbour(const Plan &plan, int next)
{
    const int rank = plan.rank + next;
    return rank < plan.ranks ? rank : rank - plan.ranks;
}

struct Vec4s {
    int first, step;
};

__device__ inline Vec4s mine()
{
    return {(int)(blockIdx.x * blockDim.x + threadIdx.x), (int)(gridDim.x * blockDim.x)};
}

// To each other rank its message.
__device__ inline void send_messages(const Plan &plan, const Stage &stage, int slot)
{
    const Vec4s vec4s = mine();
    for (int vec4 = vec4s.first; vec4 < stage.longest_sent; vec4 += vec4s.step) {
        Vec4 x[MOST_RANKS];
#pragma unroll
        for (int i = 1; i < MOST_RANKS; i++)
            if (i < plan.ranks)
                x[i] = take_out(stage.sent[neighbour(plan, i)], vec4);
#pragma unroll
        for (int i = 1; i < MOST_RANKS; i++)
            if (i < plan.ranks) {
                const int other = neighbour(plan, i);
                const Slice &message = stage.sent[other];
                if (vec4 < max(vec4s_of(message), 1))
                    send(mail(plan, other, slot, message.place + vec4), x[i]);
            }
    }
}

// What the move before has read: nothing is there any more.
__device__ inline void clear(const Plan &plan, const LastMove &past)
{
    Vec4 nothing;
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        nothing.of[j] = missing(real());
    const int slot_before = past.slot == 0 ? SLOTS - 1 : past.slot - 1;
    const Vec4s vec4s = mine();
    for (int vec4 = vec4s.first; vec4 < past.filled; vec4 += vec4s.step)
        store(mail(plan, plan.rank, slot_before, vec4), nothing);
}

// This rank's own message, which goes through no mailbox, but has the same bits as if it did.
__device__ inline void keep_own(const Plan &plan, const Stage &stage)
{
    const Slice &from = stage.sent[plan.rank], &to = stage.received[plan.rank];
    const Vec4s vec4s = mine();
    for (int vec4 = vec4s.first; vec4 < vec4s_of(from); vec4 += vec4s.step)
        put_in(to, vec4, never_missing(take_out(from, vec4)));
}

// From each other rank its message.
__device__ inline void take_messages(const Plan &plan, const Stage &stage, int slot)
{
    const Vec4s vec4s = mine();
    for (int vec4 = vec4s.first; vec4 < stage.longest_received; vec4 += vec4s.step) {
        Vec4 x[MOST_RANKS];
        const real *here[MOST_RANKS];
#pragma unroll
        for (int rank = 0; rank < MOST_RANKS; rank++)
            here[rank] = inbox(plan, stage.received[rank], slot, vec4);
        receive(x, here, plan.ranks, plan.rank, plan.given_up);
#pragma unroll
        for (int rank = 0; rank < MOST_RANKS; rank++)
            if (rank < plan.ranks && rank != plan.rank)
                put_in(stage.received[rank], vec4, x[rank]);
    }
}

// All ranks' vec4s of this rank's part, added up in the order of the ranks.
__device__ inline Vec4 sum_of(const Plan &plan, int slot, int vec4)
{
    const Stage &stage = plan.stages[0];
    const Vec4 own = take_out(stage.sent[plan.rank], vec4);
    Vec4 x[MOST_RANKS];
    const real *here[MOST_RANKS];
#pragma unroll
    for (int rank = 0; rank < MOST_RANKS; rank++) {
        here[rank] = inbox(plan, stage.received[rank], slot, vec4);
        x[rank] = own;  // and what comes takes the others' places
    }
    receive(x, here, plan.ranks, plan.rank, plan.given_up);
#pragma unroll
    for (int rank = 1; rank < MOST_RANKS; rank++)
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            if (rank < plan.ranks)
                x[0].of[j] += x[rank].of[j];
    return never_missing(x[0]);
}

// The plan in shared memory: no kernel writes it, so it comes while the kernel before still runs.
__device__ inline void fetch(Plan &plan, const Plan *given)
{
    for (int i = threadIdx.x; i < (int)(sizeof(Plan) / sizeof(int)); i += blockDim.x)
        ((int *)&plan)[i] = ((const int *)given)[i];
    __syncthreads();
    wait_for_previous_kernel();
}

__device__ inline void end_turn(const Plan &plan, LastMove *past, int slot)
{
    __syncthreads();
    if (threadIdx.x == 0)
        past[blockIdx.x] = {slot + 1 < SLOTS ? slot + 1 : 0, plan.filled};
}

// A part from each rank to each: send, then take what comes.
extern "C" __global__ void move_parts(const Plan *given, LastMove *given_past)
{
    start_beside_previous_kernel(false);
    __shared__ Plan plan;
    fetch(plan, given);
    const LastMove past = given_past[blockIdx.x];

    send_messages(plan, plan.stages[0], past.slot);
    clear(plan, past);
    keep_own(plan, plan.stages[0]);
    take_messages(plan, plan.stages[0], past.slot);
    end_turn(plan, given_past, past.slot);
}

// The sum of this rank's part of all ranks' matrices: each vec4 as soon as all of its numbers are there.
extern "C" __global__ void sum_to_parts(const Plan *given, LastMove *given_past)
{
    start_beside_previous_kernel(false);
    __shared__ Plan plan;
    fetch(plan, given);
    const LastMove past = given_past[blockIdx.x];
    const Stage &stage = plan.stages[0];
    const Vec4s vec4s = mine();

    send_messages(plan, stage, past.slot);
    clear(plan, past);
    for (int vec4 = vec4s.first; vec4 < stage.longest_received; vec4 += vec4s.step)
        put_in(stage.received[plan.rank], vec4, sum_of(plan, past.slot, vec4));
    end_turn(plan, given_past, past.slot);
}

// The sum of all ranks' matrices on all of them: each rank sums its part, and sends each vec4 of the sum on as
// soon as it has it, so that the second crossing of the link overlaps with the first one.
extern "C" __global__ void sum_to_all(const Plan *given, LastMove *given_past)
{
    start_beside_previous_kernel(false);
    __shared__ Plan plan;
    fetch(plan, given);
    const LastMove past = given_past[blockIdx.x];
    const Stage &parts = plan.stages[0], &sums = plan.stages[1];
    const Vec4s vec4s = mine();

    send_messages(plan, parts, past.slot);
    clear(plan, past);
    for (int vec4 = vec4s.first; vec4 < parts.longest_received; vec4 += vec4s.step) {
        const Vec4 x = sum_of(plan, past.slot, vec4);
        for (int i = 1; i < plan.ranks; i++) {
            const int other = neighbour(plan, i);
            send(mail(plan, other, past.slot, sums.sent[other].place + vec4), x);
        }
        put_in(parts.received[plan.rank], vec4, x);
    }
    take_messages(plan, sums, past.slot);
    end_turn(plan, given_past, past.slot);
}
