// Matrices that move between ranks which reach each other's memory: gathered, transposed from rows to columns,
// or summed. Each rank writes its messages into the others' mailboxes, and waits for nothing but the numbers
// themselves (peer.cuh); the host has no part in it.
// constants: REAL=float|double MOST_RANKS=2|4|8
//
// All kernels: a grid of one dimension, the same for all moves, of which all blocks must run at once, and fewer
// than there are multiprocessors, so that products run beside it; blocks of one dimension, up to 512 threads;
// shared memory for the plan. A thread takes a four of each rank's message at a time: so that its loads from
// all ranks are under way together, and a four that one move reads and writes in place stays with one thread.

#include "peer.cuh"
#include "strips.cuh"

const int TURNS = 3;

// One message from each rank to each other one. As packed by pyrt/moves/peer.py.
struct Stage {
    Strip sent[MOST_RANKS];      // to each rank, of the source; placed in that rank's mailbox
    Strip received[MOST_RANKS];  // from each rank, of the target; placed in this rank's
    int longest_sent, longest_received;  // in fours, at least one
};

// A move. Each rank's mailbox has room for `capacity` fours in each of three turns; move number n takes turn n
// mod 3, of which this one fills the first `filled` fours.
//
// What was read must be empty again before it is written again. In move n, once its numbers are on their way, a
// rank clears what it was sent in move n-1, so that outside of two turns a mailbox is always empty, whatever the
// sizes. Say rank A writes to rank B in move n. What lay in this turn, of move n-3, B cleared in its kernel of
// move n-2. Before A's kernel of move n writes, A's kernel of move n-1 has ended, and so has received a number of
// move n-1 from B; B sent that after its kernel of move n-2 had ended. So the place is empty, and nobody had to
// say so. And B is in move n-1 or later, in which it clears other turns than this one. For this each rank must
// send every other rank something in every move: where a message is empty, a four of zeros.
struct Plan {
    real *mailbox[MOST_RANKS];
    const int *given_up;  // in the host's memory: not 0 when a rank is gone
    int rank, ranks;
    int capacity, filled;
    Stage stages[2];  // the second one of a sum to all ranks alone
};

// What the last move has left, for each block its own, 0 at first: graphs replay moves without the host.
struct Past {
    int turn;    // of the next move
    int filled;  // of the turn before it
};

__device__ inline real *mail(const Plan &plan, int receiver, int turn, int four)
{
    return plan.mailbox[receiver] + ((offset)turn * plan.capacity + four) * WIDTH;
}

// The place in this rank's mailbox of a four of a message; behind its end its last one, which comes as well. An
// empty message has one, too.
__device__ inline const real *inbox(const Plan &plan, const Strip &message, int turn, int four)
{
    return mail(plan, plan.rank, turn, message.place + min(four, max(fours_of(message), 1) - 1));
}

// Each rank begins with another one, so that not all send to the same.
__device__ inline int neighbour(const Plan &plan, int next)
{
    const int rank = plan.rank + next;
    return rank < plan.ranks ? rank : rank - plan.ranks;
}

struct Fours {
    int first, step;
};

__device__ inline Fours mine()
{
    return {(int)(blockIdx.x * blockDim.x + threadIdx.x), (int)(gridDim.x * blockDim.x)};
}

// To each other rank its message.
__device__ inline void send_messages(const Plan &plan, const Stage &stage, int turn)
{
    const Fours fours = mine();
    for (int four = fours.first; four < stage.longest_sent; four += fours.step) {
        Four x[MOST_RANKS];
#pragma unroll
        for (int i = 1; i < MOST_RANKS; i++)
            if (i < plan.ranks)
                x[i] = take_out(stage.sent[neighbour(plan, i)], four);
#pragma unroll
        for (int i = 1; i < MOST_RANKS; i++)
            if (i < plan.ranks) {
                const int other = neighbour(plan, i);
                const Strip &message = stage.sent[other];
                if (four < max(fours_of(message), 1))
                    send(mail(plan, other, turn, message.place + four), x[i]);
            }
    }
}

// What the move before has read: nothing is there any more.
__device__ inline void clear(const Plan &plan, const Past &past)
{
    Four nothing;
#pragma unroll
    for (int j = 0; j < WIDTH; j++)
        nothing.of[j] = missing(real());
    const int turn_before = past.turn == 0 ? TURNS - 1 : past.turn - 1;
    const Fours fours = mine();
    for (int four = fours.first; four < past.filled; four += fours.step)
        store(mail(plan, plan.rank, turn_before, four), nothing);
}

// This rank's own message, which goes through no mailbox, but has the same bits as if it did.
__device__ inline void keep_own(const Plan &plan, const Stage &stage)
{
    const Strip &from = stage.sent[plan.rank], &to = stage.received[plan.rank];
    const Fours fours = mine();
    for (int four = fours.first; four < fours_of(from); four += fours.step)
        put_in(to, four, never_missing(take_out(from, four)));
}

// From each other rank its message.
__device__ inline void take_messages(const Plan &plan, const Stage &stage, int turn)
{
    const Fours fours = mine();
    for (int four = fours.first; four < stage.longest_received; four += fours.step) {
        Four x[MOST_RANKS];
        const real *here[MOST_RANKS];
#pragma unroll
        for (int rank = 0; rank < MOST_RANKS; rank++)
            here[rank] = inbox(plan, stage.received[rank], turn, four);
        receive(x, here, plan.ranks, plan.rank, plan.given_up);
#pragma unroll
        for (int rank = 0; rank < MOST_RANKS; rank++)
            if (rank < plan.ranks && rank != plan.rank)
                put_in(stage.received[rank], four, x[rank]);
    }
}

// All ranks' fours of this rank's part, added up in the order of the ranks.
__device__ inline Four sum_of(const Plan &plan, int turn, int four)
{
    const Stage &stage = plan.stages[0];
    const Four own = take_out(stage.sent[plan.rank], four);
    Four x[MOST_RANKS];
    const real *here[MOST_RANKS];
#pragma unroll
    for (int rank = 0; rank < MOST_RANKS; rank++) {
        here[rank] = inbox(plan, stage.received[rank], turn, four);
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
    wait_for_kernel_before();
}

__device__ inline void end_turn(const Plan &plan, Past *past, int turn)
{
    __syncthreads();
    if (threadIdx.x == 0)
        past[blockIdx.x] = {turn + 1 < TURNS ? turn + 1 : 0, plan.filled};
}

// A part from each rank to each: send, then take what comes.
extern "C" __global__ void move_parts(const Plan *given, Past *given_past)
{
    begin_beside_kernel_before(false);
    __shared__ Plan plan;
    fetch(plan, given);
    const Past past = given_past[blockIdx.x];

    send_messages(plan, plan.stages[0], past.turn);
    clear(plan, past);
    keep_own(plan, plan.stages[0]);
    take_messages(plan, plan.stages[0], past.turn);
    end_turn(plan, given_past, past.turn);
}

// The sum of this rank's part of all ranks' matrices: each four as soon as all of its numbers are there.
extern "C" __global__ void sum_to_parts(const Plan *given, Past *given_past)
{
    begin_beside_kernel_before(false);
    __shared__ Plan plan;
    fetch(plan, given);
    const Past past = given_past[blockIdx.x];
    const Stage &stage = plan.stages[0];
    const Fours fours = mine();

    send_messages(plan, stage, past.turn);
    clear(plan, past);
    for (int four = fours.first; four < stage.longest_received; four += fours.step)
        put_in(stage.received[plan.rank], four, sum_of(plan, past.turn, four));
    end_turn(plan, given_past, past.turn);
}

// The sum of all ranks' matrices on all of them: each rank sums its part, and sends each four of the sum on as
// soon as it has it, so that the second crossing of the link overlaps with the first one.
extern "C" __global__ void sum_to_all(const Plan *given, Past *given_past)
{
    begin_beside_kernel_before(false);
    __shared__ Plan plan;
    fetch(plan, given);
    const Past past = given_past[blockIdx.x];
    const Stage &parts = plan.stages[0], &sums = plan.stages[1];
    const Fours fours = mine();

    send_messages(plan, parts, past.turn);
    clear(plan, past);
    for (int four = fours.first; four < parts.longest_received; four += fours.step) {
        const Four x = sum_of(plan, past.turn, four);
        for (int i = 1; i < plan.ranks; i++) {
            const int other = neighbour(plan, i);
            send(mail(plan, other, past.turn, sums.sent[other].place + four), x);
        }
        put_in(parts.received[plan.rank], four, x);
    }
    take_messages(plan, sums, past.turn);
    end_turn(plan, given_past, past.turn);
}
