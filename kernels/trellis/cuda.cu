#include "kernels/cuda/gpu.cuh"
#include "kernels/device_code.h"
#include "kernels/trellis/impl.h"

enum {
    THREADS = 128,
    TOKENS = 16,
    APART = TOKENS + 4,             // four at a time; spread over the banks
    STATES = KV_TRELLIS_STATES / 32 // a lane's states
};
static_assert(KV_TRELLIS_STATES % 32 == 0, "every lane has as many");
static_assert(KV_GPU_NOTE == 32, "a note is a byte of each lane");

// ---- coefficients ----------------------------------------------------------

// A block takes 16 tokens.  It loads x less its mean, [row][16]; then each
// thread computes a coefficient.  A product and its sum are rounded once, in
// the order of kv_vecops_times().
__global__ void __launch_bounds__(THREADS)
    kv_coefficients_kernel(struct kv_gpu_bitstreams s, unsigned row,
                           const uint16_t *x, size_t n, float *y)
{
    const size_t first = (size_t)blockIdx.x * TOKENS;
    const unsigned tokens = (unsigned)min(n - first, (size_t)TOKENS);
    float *const centered = reinterpret_cast<float *>(kv_shared());

    for (unsigned i = threadIdx.x; i < tokens * row / 2; i += THREADS) {
        const unsigned t = i / (row / 2), c = i % (row / 2) * 2;
        const uint32_t two = kv_load4(x + (first + t) * row + c);

        centered[c * APART + t] = kv_low_f16(two) - s.mean[c];
        centered[(c + 1) * APART + t] = kv_high_f16(two) - s.mean[c + 1];
    }
    kv_sync_block();
    for (unsigned j = threadIdx.x; j < s.n_coefs; j += THREADS) {
        const struct kv_gpu_coefficient c = s.coef[j];
        float sum[TOKENS] = {0};

        for (unsigned i = 0; i < row; i++) {
            const float f = s.forward[(size_t)i * row + c.index];

#pragma unroll
            for (unsigned t = 0; t < TOKENS; t++)
                sum[t] = fmaf(centered[i * APART + t], f, sum[t]);
        }
#pragma unroll
        for (unsigned t = 0; t < TOKENS; t++)
            if (t < tokens)
                y[(first + t) * s.n_coefs + c.place] = sum[t];
    }
}

// ---- the search ------------------------------------------------------------
//
// The search of kernels/trellis/c.c, a warp for each bitstream.  Lane l has
// states l + 32 i in registers, with the table's entries for them.  States that
// go on alike are one lane's, except for transitions of more than 4 bits, and
// the cost before a state takes one shuffle.  Several warps for a bitstream
// would meet at a barrier every transition.  The best states are noted in a
// byte per lane and transition, in global memory: shared memory has no room for
// as many bitstreams as there are registers for.

KV_DEVICE int kv_shuffle_int(int x, unsigned lane)
{
    return (int)kv_bits(kv_shuffle(kv_from_bits((uint32_t)x), lane));
}

KV_DEVICE int kv_shuffle_xor_int(int x, unsigned mask)
{
    return (int)kv_bits(kv_shuffle_xor(kv_from_bits((uint32_t)x), mask));
}

// Reduces over groups of states that the next BITS bits treat alike; group r is
// states r, r + groups, .. The least cost of group r, clamped to the maximum,
// goes to best[r / 32] of lane r % 32 (with fewer than 32 groups, of all lanes
// whose numbers end so).  The index of the group's state, the first on ties,
// takes BITS bits for each of the lane's groups.
template <int BITS> KV_DEVICE unsigned kv_keep_min(const int *cost, int *best)
{
    constexpr int MINE = BITS < 4 ? STATES >> BITS : 1;
    constexpr unsigned GROUPS = KV_TRELLIS_STATES >> BITS;
    unsigned which = 0;

#pragma unroll
    for (int r = 0; r < MINE; r++) {
        unsigned first = 0;

        best[r] = cost[r];
#pragma unroll
        for (int j = 1; j < STATES / MINE; j++)
            if (cost[r + j * MINE] < best[r]) {
                best[r] = cost[r + j * MINE];
                first = j;
            }
        which |= first << r * BITS;
    }
    if (GROUPS < 32)
        which = which * (32 / GROUPS) + kv_lane() / GROUPS;
#pragma unroll
    for (unsigned mask = GROUPS; mask < 32; mask *= 2) {
        const int c = kv_shuffle_xor_int(*best, mask);
        const unsigned w = (unsigned)kv_shuffle_xor_int((int)which, mask);

        if (c < *best || (c == *best && w < which)) {
            *best = c;
            which = w;
        }
    }
#pragma unroll
    for (int r = 0; r < MINE; r++)
        best[r] = min(best[r], (int)KV_TRELLIS_MAX_COST);
    return which;
}

// Subtracts the least cost of a warp's groups from the costs of all of them.
// best [N]: the costs of this lane's groups.
template <int N> KV_DEVICE void kv_subtract_min(int *best)
{
    int all = best[0];

#pragma unroll
    for (int r = 1; r < N; r++)
        all = min(all, best[r]);
#pragma unroll
    for (unsigned mask = 1; mask < 32; mask *= 2)
        all = min(all, kv_shuffle_xor_int(all, mask));
#pragma unroll
    for (int r = 0; r < N; r++)
        best[r] -= all;
}

// The cost of a value (kernels/trellis/impl.h).  x: its position plus SHIFTED,
// as the bits of a float so large that its last bit is 1; numbers are found in
// the same form.  SHIFT: shift or slope may have an effect (always true with
// several values, since a second copy of the code would have too few
// registers).
constexpr float BIG = 0x1.8p23f;
constexpr int SHIFTED = 0x4b400000;

template <bool SHIFT>
KV_DEVICE int kv_value_cost(int x, float number, int far, unsigned shift,
                            unsigned slope)
{
    int d = x - (int)kv_bits(number + BIG), more = 0;

    d = max(min(d, 0x7fff), -0x8000);
    if (SHIFT) {
        d = abs(d);
        more = max(d - far, 0);
        d = (d - more) << shift;
    }
    return ((d * d + 0x4000) >> 15) + (more >> slope);
}

KV_DEVICE int kv_position(float x, const kv_trellis_whole &whole)
{
    const float limit = (float)whole.max, place = x * whole.x;

    return kv_round(fminf(fmaxf(place, -limit), limit));
}

// The state of a search: the next transition's values, and the lane's note of
// it.
struct kv_searched {
    const float *x;
    const kv_trellis_whole *whole;
    uint8_t *note;
    unsigned transitions; // so far
};

// The cost of the best path to each of the lane's states, from the least costs
// of its groups.
template <int BITS, int VALUES, bool SHIFT>
KV_DEVICE void kv_find_costs(const float (*table)[STATES], const int *best,
                             const kv_trellis_whole *whole, const float *x,
                             int *cost)
{
    const unsigned shift = whole->shift, slope = whole->slope;
    const int far = shift || slope != KV_TRELLIS_NO_SLOPE
                        ? KV_TRELLIS_FAR(VALUES) >> shift
                        : 0x8000;

#pragma unroll
    for (int i = 0; i < STATES; i++)
        cost[i] = kv_shuffle_int(best[(32 * i >> BITS) / 32],
                                 ((kv_lane() >> BITS) + (32 * i >> BITS)) % 32);
    int place[VALUES];

#pragma unroll
    for (int v = 0; v < VALUES; v++)
        place[v] = kv_position(x[v], whole[v]) + SHIFTED;
#pragma unroll
    for (int i = 0; i < STATES; i++) {
        int sum = 0;

#pragma unroll
        for (int v = 0; v < VALUES; v++)
            sum += kv_value_cost<SHIFT>(place[v], table[v][i] * whole[v].number,
                                        far, shift, slope);
        cost[i] += 8 * min(sum, (int)KV_TRELLIS_TRANSITION_COST);
    }
}

// All transitions of a run.
template <int BITS, int VALUES>
KV_DEVICE void kv_search_run(const kv_gpu_transitions &run, const float *tables,
                             kv_searched *at, int *cost)
{
    static_assert((BITS < 4 ? (STATES >> BITS) * BITS : BITS) <= 8,
                  "which of its states each group has is a byte");
    constexpr int MINE = BITS < 4 ? STATES >> BITS : 1;
    float table[VALUES][STATES], x[VALUES];
    int best[STATES / 2];

#pragma unroll
    for (int v = 0; v < VALUES; v++) {
        x[v] = at->x[v];
#pragma unroll
        for (int i = 0; i < STATES; i++)
            table[v][i] =
                tables[run.table + v * KV_TRELLIS_STATES + 32 * i + kv_lane()];
    }
    for (unsigned k = 0; k < run.n; k++) {
        const float *const ahead = at->x + (k + 1 < run.n ? VALUES : 0);
        float next[VALUES];

#pragma unroll
        for (int v = 0; v < VALUES; v++) // they come while costs are compared
            next[v] = ahead[v];
        *at->note = (uint8_t)kv_keep_min<BITS>(cost, best);
        if (at->transitions && at->transitions % KV_TRELLIS_SUBTRACT == 0)
            kv_subtract_min<MINE>(best);
        if (VALUES > 1 || at->whole->shift ||
            at->whole->slope != KV_TRELLIS_NO_SLOPE)
            kv_find_costs<BITS, VALUES, true>(table, best, at->whole, x, cost);
        else
            kv_find_costs<BITS, VALUES, false>(table, best, at->whole, x, cost);
#pragma unroll
        for (int v = 0; v < VALUES; v++)
            x[v] = next[v];
        at->x += VALUES;
        at->whole += VALUES;
        at->note += KV_GPU_NOTE;
        at->transitions++;
    }
}

// Writes the bitstream of the path that ends in `state`, from its last byte on;
// note: the end of the lane's notes.  All lanes walk; each has the notes of its
// groups.
KV_DEVICE void kv_put_path(const kv_gpu_bitstreams &s, unsigned state,
                           const uint8_t *note, size_t bytes, uint8_t *to)
{
    constexpr unsigned AHEAD = 8; // transitions whose notes are loaded together
    unsigned in = (unsigned)(8 * bytes - s.n_bits), window = 0;

    to += bytes;
    for (unsigned run = s.n_runs; run-- > 0;) {
        const unsigned bits = s.transitions[run].bits, own = (1u << bits) - 1;

        for (unsigned left = s.transitions[run].n; left;) {
            const unsigned n = min(left, AHEAD);
            unsigned has[AHEAD];

#pragma unroll
            for (unsigned i = 0; i < AHEAD; i++)
                has[i] = i < n ? *(note - (i + 1) * KV_GPU_NOTE) : 0;
#pragma unroll
            for (unsigned i = 0; i < AHEAD; i++) {
                if (i >= n)
                    break;

                const unsigned group = state >> bits;
                const unsigned which =
                    (unsigned)kv_shuffle_int((int)has[i], group % 32);

                window |= (state & own) << in;
                in += bits;
                if (in >= 8) {
                    to--;
                    if (!kv_lane())
                        *to = (uint8_t)window;
                    window >>= 8;
                    in -= 8;
                }
                state = (which >> group / 32 * bits & own)
                            << (KV_TRELLIS_BITS - bits) |
                        group;
            }
            left -= n;
            note -= n * KV_GPU_NOTE;
        }
    }
    if (in && !kv_lane()) // a bitstream of no transitions
        *--to = 0;
}

// A block has one warp, so that few bitstreams spread over many
// multiprocessors.
__global__ void __launch_bounds__(32, KV_GPU_SEARCHES)
    kv_bitstreams_kernel(struct kv_gpu_bitstreams s, const float *x, size_t n,
                         size_t bytes, uint8_t *notes, uint8_t *to)
{
    notes += (size_t)blockIdx.x * s.n_transitions * KV_GPU_NOTE + kv_lane();
    for (size_t t = blockIdx.x; t < n; t += gridDim.x) {
        kv_searched at = {x + t * s.n_coefs, s.whole, notes, 0};
        int cost[STATES], best;

#pragma unroll
        for (int i = 0; i < STATES; i++)
            cost[i] = i || kv_lane() ? KV_TRELLIS_MAX_COST : 0;
        for (unsigned run = 0; run < s.n_runs; run++) {
            const kv_gpu_transitions transitions = s.transitions[run];

            switch (transitions.bits << 4 | transitions.values) {
#define KV_CASE(BITS, VALUES)                                          \
    case BITS << 4 | VALUES:                                           \
        kv_search_run<BITS, VALUES>(transitions, s.tables, &at, cost); \
        break;
                KV_GPU_TRANSITIONS(KV_CASE)
#undef KV_CASE
            }
        }
        kv_put_path(s, kv_keep_min<KV_TRELLIS_BITS>(cost, &best), at.note,
                    bytes, to + t * bytes);
    }
}

extern "C" int kv_gpu_encode_bitstreams(const struct kv_gpu_code *c,
                                        const struct kv_gpu_blocks *b, float *y,
                                        uint8_t *notes, size_t searches,
                                        struct kv_err *e)
{
    const cudaStream_t stream = (cudaStream_t)b->stream;
    const size_t row = c->n_heads * c->head_dim;
    const char *wrong = kv_launch(
        kv_coefficients_kernel, dim3((unsigned)((b->n + TOKENS - 1) / TOKENS)),
        dim3(THREADS), row * APART * sizeof(float), stream, c->bitstreams,
        (unsigned)row, b->x, b->n, y);

    if (!wrong)
        wrong =
            kv_launch(kv_bitstreams_kernel, dim3((unsigned)searches), dim3(32),
                      (size_t)0, stream, c->bitstreams, (const float *)y, b->n,
                      c->block_bytes, notes, b->bytes);
    return wrong ? kv_fail(e, "encoding strings: %s", wrong) : 0;
}

// ---- decoding --------------------------------------------------------------

// The state that ends with bit `end` of a bitstream, zeros before its
// beginning.
KV_DEVICE unsigned kv_state_at(const uint8_t *bitstream, unsigned end)
{
    const unsigned last = (end - 1) / 8;
    const unsigned high = last ? bitstream[last - 1] : 0;

    return (high << 8 | bitstream[last]) >> (8 * last + 8 - end) &
           (KV_TRELLIS_STATES - 1);
}

// A block takes 16 tokens.  It decodes coefficients, y [n_used][16]; then each
// thread computes a channel.  A product and its sum are rounded once, in the
// order of kv_vecops_times().
__global__ void __launch_bounds__(THREADS)
    kv_decode_bitstreams_kernel(struct kv_gpu_bitstreams s, unsigned row,
                                size_t token_bytes, const uint8_t *bytes,
                                size_t n, float *x)
{
    const size_t first = (size_t)blockIdx.x * TOKENS;
    const unsigned tokens = (unsigned)min(n - first, (size_t)TOKENS);
    float *const y = reinterpret_cast<float *>(kv_shared());

    for (unsigned i = threadIdx.x; i < s.n_used * TOKENS; i += THREADS)
        y[i] = 0;
    kv_sync_block();
    for (unsigned i = threadIdx.x; i < s.n_coefs * tokens; i += THREADS) {
        const struct kv_gpu_coefficient c = s.coef[i / tokens];
        const unsigned t = i % tokens;

        y[c.index * TOKENS + t] =
            c.scale *
            s.tables[c.table +
                     kv_state_at(bytes + (first + t) * token_bytes, c.end)];
    }
    kv_sync_block();
    for (unsigned i = threadIdx.x; i < row; i += THREADS) {
        float sum[TOKENS];

#pragma unroll
        for (unsigned t = 0; t < TOKENS; t++)
            sum[t] = s.mean[i];
        for (unsigned j = 0; j < s.n_used; j++) {
            const float g = s.inverse[(size_t)j * row + i];

#pragma unroll
            for (unsigned t = 0; t < TOKENS; t++)
                sum[t] = fmaf(y[j * TOKENS + t], g, sum[t]);
        }
#pragma unroll
        for (unsigned t = 0; t < TOKENS; t++)
            if (t < tokens)
                x[(first + t) * row + i] = sum[t];
    }
}

extern "C" int kv_gpu_decode_bitstreams(const struct kv_gpu_code *c,
                                        const uint8_t *bytes, size_t n,
                                        float *x, struct kv_err *e)
{
    const size_t row = c->n_heads * c->head_dim;
    const char *wrong =
        kv_launch(kv_decode_bitstreams_kernel,
                  dim3((unsigned)((n + TOKENS - 1) / TOKENS)), dim3(THREADS),
                  row * TOKENS * sizeof(float), (cudaStream_t)0, c->bitstreams,
                  (unsigned)row, c->block_bytes, bytes, n, x);

    return wrong ? kv_fail(e, "decoding strings: %s", wrong) : 0;
}
