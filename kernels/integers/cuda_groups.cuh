/* Integers in groups (coder.h): what of them a block of threads takes, to
 * encode or to decode. */
#ifndef KV_INTEGERS_CUDA_GROUPS_CUH
#define KV_INTEGERS_CUDA_GROUPS_CUH

#include "kernels/cuda/coder.h"
#include "kernels/integers/cuda_quantizers.cuh"

enum {
    KV_GROUPS_THREADS = 256,
    KV_GROUPS_VALUES = 4096,
    KV_MOST_CHANNELS = 64
};

// What a block of threads takes: whole units side by side or, where groups are
// channels, a slice of one unit's.  At most:
struct kv_share {
    unsigned units, channels;
    unsigned slices; // of a unit
    unsigned groups; // all units together
    unsigned parts;  // threads that look at one group
    size_t values, code_bytes;
};

static size_t kv_round_up(size_t n, size_t whole)
{
    return (n + whole - 1) / whole * whole;
}

static kv_share kv_share_of(const struct kv_gpu_groups *g)
{
    kv_share s = {1, 0, 1, 0, 1, 0, 0};

    if (g->by_channel) { // a multiple of eight, whose codes are whole bytes
        const size_t fit = 4 * KV_GROUPS_VALUES / g->len / 8 * 8;

        s.channels = max(8u, min((unsigned)KV_MOST_CHANNELS, (unsigned)fit));
        s.slices = (unsigned)(kv_round_up(g->unit, s.channels) / s.channels);
        s.groups = s.channels;
        s.values = s.channels * g->len;
    } else {
        s.units =
            (unsigned)(g->unit < KV_GROUPS_VALUES ? KV_GROUPS_VALUES / g->unit
                                                  : 1);
        s.groups = (unsigned)(s.units * g->n_groups);
        s.values = s.units * g->unit;
    }
    s.code_bytes = s.units * kv_round_up(s.values / s.units, 8) / 8 * g->bits;
    if (s.groups < KV_GROUPS_THREADS)
        s.parts = KV_GROUPS_THREADS / s.groups;
    return s;
}

// What this block of threads has.
template <bool BY_CHANNEL> struct kv_mine {
    size_t first;          // unit
    unsigned channel;      // the slice's first
    unsigned units, width; // values of a unit's row here
    unsigned each, string; // groups and codes of a unit here
    unsigned len, unit;

    __device__ kv_mine(const kv_gpu_groups &g, const kv_share &s,
                       size_t n_units)
    {
        len = (unsigned)g.len;
        unit = (unsigned)g.unit;
        first = (size_t)(blockIdx.x / s.slices) * s.units;
        units =
            n_units - first < s.units ? (unsigned)(n_units - first) : s.units;
        channel = blockIdx.x % s.slices * s.channels;
        width = unit;
        if (BY_CHANNEL)
            width = min(unit - channel, s.channels);
        each = BY_CHANNEL ? width : (unsigned)g.n_groups;
        string = BY_CHANNEL ? width * len : unit;
    }

    // Where group i begins among the values, and from one to the next.
    __device__ unsigned begin(unsigned i) const
    {
        return BY_CHANNEL ? i : i / each * unit + i % each * len;
    }
    __device__ unsigned apart() const
    {
        return BY_CHANNEL ? width : 1;
    }

    // The last group of a token may be shorter.
    __device__ unsigned size(unsigned i) const
    {
        return BY_CHANNEL ? len : min(len, unit - i % each * len);
    }

    // x of the first one; and, by channel, from a row to the next.
    __device__ size_t from(unsigned heads) const
    {
        return BY_CHANNEL
                   ? (first / heads * len * heads + first % heads) * unit +
                         channel
                   : first * unit;
    }
    __device__ size_t row(unsigned heads) const
    {
        return (size_t)heads * unit;
    }
    __device__ unsigned rows() const
    {
        return BY_CHANNEL ? len : units;
    }
};

// Calls f.run<Q, BY_CHANNEL>() of these groups.
template <class F> struct kv_by_axis {
    F &f;
    bool by_channel;

    template <class Q> void run()
    {
        if (by_channel)
            f.template run<Q, true>();
        else
            f.template run<Q, false>();
    }
};

template <class F> static bool kv_with_groups(const kv_gpu_groups &g, F &f)
{
    kv_by_axis<F> by = {f, g.by_channel};

    return kv_with_any_quantizer(g.quantizer, by);
}

#endif
