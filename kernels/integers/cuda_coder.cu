/* Integers in groups (kernels/device_code.h): encode() and decode() of the
 * schemes that have them, bit for bit. */
#include "kernels/hack/hack.h"
#include "kernels/integers/cuda_quantizers.cuh"
#include "kernels/tiles/tiles.h"

enum { THREADS = 256, VALUES = 4096, MAX_CHANNELS = 64 };

// A thread block works on several whole units or, if groups are tokens of a
// channel, on a slice of one unit's channels.  At most:
struct kv_share {
    unsigned units, channels;
    unsigned slices; // slices of a unit
    unsigned groups; // all units together
    unsigned parts;  // threads that look at one group
    size_t values, code_bytes;
};

static kv_share kv_share_of(const struct kv_gpu_groups *g)
{
    kv_share s = {1, 0, 1, 0, 1, 0, 0};

    if (g->by_channel) { // a multiple of eight, whose codes are whole bytes
        const size_t fit = 4 * VALUES / g->len / 8 * 8;

        s.channels = max(8u, min((unsigned)MAX_CHANNELS, (unsigned)fit));
        s.slices = (unsigned)(kv_round_up(g->unit, s.channels) / s.channels);
        s.groups = s.channels;
        s.values = s.channels * g->len;
    } else {
        s.units = (unsigned)(g->unit < VALUES ? VALUES / g->unit : 1);
        s.groups = (unsigned)(s.units * g->n_groups);
        s.values = s.units * g->unit;
    }
    s.code_bytes = s.units * kv_round_up(s.values / s.units, 8) / 8 * g->bits;
    if (s.groups < THREADS)
        s.parts = THREADS / s.groups;
    return s;
}

// The share of this thread block.
template <bool BY_CHANNEL> struct kv_mine {
    size_t first;          // unit
    unsigned channel;      // the slice's first
    unsigned units, width; // this block's values of a unit's row
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

    // The beginning of group i among the values, and the step from one value to
    // the next.
    __device__ unsigned begin(unsigned i) const
    {
        return BY_CHANNEL ? i : i / each * unit + i % each * len;
    }
    __device__ unsigned apart() const
    {
        return BY_CHANNEL ? width : 1;
    }

    // The size of group i; a token's last group may be shorter.
    __device__ unsigned size(unsigned i) const
    {
        return BY_CHANNEL ? len : min(len, unit - i % each * len);
    }

    // The offset of the share's first value in x, and, by channel, the distance
    // from one row to the next.
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

// Calls f.run<Q, BY_CHANNEL>() for groups along this axis.
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

// ---- encoding --------------------------------------------------------------

// The offsets in shared memory of: values as halves; the smallest and largest
// of each group's parts; sums of codes; heads; packed codes.
struct kv_workspace {
    size_t low, high, sum, head, code, end;
};

template <class Q>
static __host__ __device__ kv_workspace workspace_of(const kv_share &s)
{
    const size_t parts = (size_t)s.groups * s.parts * sizeof(float);
    kv_workspace r;

    r.low = (s.values * sizeof(uint16_t) + 15) / 16 * 16;
    r.high = r.low + parts;
    r.sum = r.high + parts;
    r.head = r.sum + (Q::SUMS ? s.groups * sizeof(unsigned) : 0);
    r.code = r.head + s.groups * sizeof(Q);
    r.end = r.code + s.code_bytes;
    return r;
}

// Loads values, two per word.
template <bool BY_CHANNEL>
KV_DEVICE void kv_take_values(const kv_mine<BY_CHANNEL> &m, unsigned heads,
                              const uint16_t *x, uint16_t *value)
{
    const unsigned words = m.width / 2;
    uint32_t *const to = reinterpret_cast<uint32_t *>(value);

    x += m.from(heads);
    for (unsigned i = threadIdx.x; i < m.rows() * words; i += THREADS)
        to[i] =
            kv_load4(BY_CHANNEL ? x + i / words * m.row(heads) + i % words * 2
                                : x + 2 * i);
}

// Smallest and largest of each part of a group.  Neighbours look at neighbours:
// at one row of all channels, or at one group.
template <bool BY_CHANNEL>
KV_DEVICE void kv_part_ranges(const kv_mine<BY_CHANNEL> &m, unsigned parts,
                              const uint16_t *value, float *low, float *high)
{
    const unsigned groups = m.units * m.each;

    for (unsigned s = threadIdx.x; s < groups * parts; s += THREADS) {
        const unsigned i = BY_CHANNEL ? s % groups : s / parts;
        const unsigned part = BY_CHANNEL ? s / groups : s % parts;
        const unsigned begin = m.begin(i), size = m.size(i);
        float min = __builtin_huge_valf(), max = -min;

        for (unsigned j = part; j < size; j += parts) {
            const float x = kv_low_f16(value[begin + j * m.apart()]);

            min = fminf(min, x);
            max = fmaxf(max, x);
        }
        low[part * groups + i] = min;
        high[part * groups + i] = max;
    }
}

// Makes the heads of all groups.  Both zeros are +0 in a head, whichever came
// first.
template <class Q, class M>
KV_DEVICE void kv_make_heads(const M &m, const kv_gpu_groups &g, unsigned parts,
                             const float *low, const float *high, Q *head,
                             uint8_t *bytes)
{
    const unsigned groups = m.units * m.each;

    for (unsigned i = threadIdx.x; i < groups; i += THREADS) {
        float min = low[i], max = high[i];

        for (unsigned part = 1; part < parts; part++) {
            min = fminf(min, low[part * groups + i]);
            max = fmaxf(max, high[part * groups + i]);
        }
        head[i].fit(min + 0.0f, max + 0.0f, g.bits);
        head[i].put(bytes + (m.first + i / m.each) * g.unit_bytes +
                        g.code_bytes,
                    m.channel + i % m.each, g.n_groups);
    }
}

// The random number of one value (hack's).
struct kv_draw {
    bool any;
    uint64_t key, counter;

    __device__ float operator()(void) const
    {
        return kv_random_unit(key, counter);
    }
};

// The positions of units, for random numbers.
struct kv_where_units {
    unsigned heads;
    size_t first; // token of the first block
    size_t each;  // blocks of a sequence
    uint64_t seed;
};

template <bool BY_CHANNEL>
KV_DEVICE kv_draw kv_draw_of(const kv_mine<BY_CHANNEL> &m,
                             const kv_gpu_groups &g, const kv_where_units &w,
                             unsigned u)
{
    const size_t unit = m.first + u;
    const size_t block = unit / w.heads % w.each;
    const size_t token = w.first + block * (BY_CHANNEL ? m.len : 1);

    return {g.stochastic,
            kv_hack_key(w.seed, g.values ? KV_HACK_V : KV_HACK_K, g.layer,
                        unit % w.heads, 0),
            kv_hack_counter(token, m.channel)};
}

// Each thread packs eight codes, which are `bits` bytes.  Neighbouring threads
// take neighbouring channels if possible.
template <class Q, bool BY_CHANNEL>
KV_DEVICE void kv_pack_codes(const kv_mine<BY_CHANNEL> &m,
                             const kv_gpu_groups &g, const kv_where_units &w,
                             const uint16_t *value, const Q *head,
                             unsigned *sum, uint8_t *packed)
{
    const unsigned octets = (m.string + 7) / 8;
    const bool whole = BY_CHANNEL && m.len % 8 == 0;

    for (unsigned o = threadIdx.x; o < m.units * octets; o += THREADS) {
        const unsigned q =
            whole ? o % m.width * (m.len / 8) + o / m.width : o % octets;
        const unsigned u = o / octets, end = min(8u, m.string - 8 * q);
        const kv_draw unit = kv_draw_of(m, g, w, u);
        unsigned i = u * m.each + 8 * q / m.len, j = 8 * q % m.len, part = 0;
        unsigned begin = m.begin(i), size = m.size(i);
        uint64_t word = 0;

        for (unsigned n = 0; n < end; n++) {
            const float x = kv_low_f16(value[begin + j * m.apart()]);
            const kv_draw draw = {unit.any, unit.key,
                                  unit.counter + (BY_CHANNEL
                                                      ? kv_hack_counter(j, i)
                                                      : 8 * q + n)};
            const unsigned code = head[i].code(x, g.bits, draw);
            const bool last = ++j == size;

            word |= (uint64_t)code << n * g.bits;
            part += code;
            if (Q::SUMS && (last || n + 1 == end)) {
                kv_add_to(sum + i, part);
                part = 0;
            }
            if (last && n + 1 < end) {
                begin = m.begin(++i);
                size = m.size(i);
                j = 0;
            }
        }
        for (unsigned n = 0; n < g.bits; n++)
            packed[(u * octets + q) * g.bits + n] = (uint8_t)(word >> 8 * n);
    }
}

template <class M>
KV_DEVICE void kv_put_sums(const M &m, const kv_gpu_groups &g,
                           const unsigned *sum, uint8_t *bytes)
{
    for (unsigned i = threadIdx.x; i < m.units * m.each; i += THREADS) {
        uint8_t *const to = bytes + (m.first + i / m.each) * g.unit_bytes +
                            g.code_bytes + g.n_groups * kv_hack::BYTES +
                            (m.channel + i % m.each) * g.sum_bytes;

        for (unsigned n = 0; n < g.sum_bytes; n++)
            to[n] = (uint8_t)(sum[i] >> 8 * n);
    }
}

template <class Q, bool BY_CHANNEL>
__global__ void __launch_bounds__(THREADS)
    kv_encode_groups_kernel(struct kv_gpu_groups g, kv_share share,
                            size_t n_units, kv_where_units where,
                            const uint16_t *x, uint8_t *bytes)
{
    const kv_mine<BY_CHANNEL> m(g, share, n_units);
    const kv_workspace workspace = workspace_of<Q>(share);
    uint16_t *const value = reinterpret_cast<uint16_t *>(kv_shared());
    float *const low = reinterpret_cast<float *>(kv_shared() + workspace.low);
    float *const high = reinterpret_cast<float *>(kv_shared() + workspace.high);
    unsigned *const sum =
        reinterpret_cast<unsigned *>(kv_shared() + workspace.sum);
    Q *const head = reinterpret_cast<Q *>(kv_shared() + workspace.head);
    uint8_t *const packed = kv_shared() + workspace.code;
    const unsigned from = (m.string + 7) / 8 * g.bits;
    const unsigned n = (m.string * g.bits + 7) / 8;

    kv_take_values(m, where.heads, x, value);
    kv_sync_block();
    kv_part_ranges(m, share.parts, value, low, high);
    for (unsigned i = threadIdx.x; Q::SUMS && i < share.groups; i += THREADS)
        sum[i] = 0;
    kv_sync_block();
    kv_make_heads(m, g, share.parts, low, high, head, bytes);
    kv_sync_block();
    kv_pack_codes(m, g, where, value, head, sum, packed);
    kv_sync_block();
    if (Q::SUMS)
        kv_put_sums(m, g, sum, bytes);
    bytes += m.first * g.unit_bytes + m.channel * m.len / 8 * g.bits;
    for (unsigned i = threadIdx.x; i < m.units * n; i += THREADS)
        bytes[i / n * g.unit_bytes + i % n] = packed[i / n * from + i % n];
}

// ---- decoding --------------------------------------------------------------

// Codes 4 quad to 4 quad + n - 1, n at most 4, the first one low.  They begin
// at a byte or, if bits is odd, in the middle of a byte.  In this case they
// take 28 bits at most, so a word has room for both.
KV_DEVICE uint32_t kv_quad(const uint8_t *codes, size_t quad, unsigned n,
                           unsigned bits)
{
    const size_t bit = quad * 4 * bits;
    const unsigned skip = bit % 8, bytes = (skip + n * bits + 7) / 8;
    uint32_t word = 0;

    for (unsigned i = 0; i < bytes; i++)
        word |= (uint32_t)codes[bit / 8 + i] << 8 * i;
    return word >> skip;
}

// Each thread unpacks four codes.  They belong to one token or, if a group is
// one channel, to one channel; neighbouring threads have neighbouring channels.
template <class Q, bool BY_CHANNEL>
__global__ void __launch_bounds__(THREADS)
    kv_decode_groups_kernel(struct kv_gpu_groups g, kv_share share,
                            size_t n_units, unsigned heads,
                            const uint8_t *bytes, float *x)
{
    const kv_mine<BY_CHANNEL> m(g, share, n_units);
    const unsigned quads = (m.string + 3) / 4;
    const bool whole = BY_CHANNEL && m.len % 4 == 0;
    const bool wide = !BY_CHANNEL && m.unit % 4 == 0; // 16 bytes a store
    const size_t apart = BY_CHANNEL ? m.row(heads) : 1;

    bytes += m.first * g.unit_bytes;
    x += m.from(heads);
    for (unsigned o = threadIdx.x; o < m.units * quads; o += THREADS) {
        const unsigned u = o / quads;
        const unsigned q =
            whole ? o % m.width * (m.len / 4) + o / m.width : o % quads;
        const unsigned n = min(4u, m.string - 4 * q);
        const uint8_t *const codes = bytes + u * g.unit_bytes;
        const uint8_t *const heads_at = codes + g.code_bytes;
        const uint32_t word =
            kv_quad(codes + m.channel * m.len / 8 * g.bits, q, n, g.bits);
        unsigned i = u * m.each + 4 * q / m.len, j = 4 * q % m.len;
        uint32_t value[4];
        Q head;

        head.take(heads_at, m.channel + i % m.each, g.n_groups);
#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
            if (k >= n)
                break;
            if (j == m.size(i)) {
                j = 0;
                head.take(heads_at, m.channel + ++i % m.each, g.n_groups);
            }
            value[k] = kv_bits(
                head.value(word >> k * g.bits & ((1u << g.bits) - 1), g.bits));
            if (!wide)
                x[m.begin(i) + j * apart] = kv_from_bits(value[k]);
            j++;
        }
        if (wide)
            kv_store16(x + (size_t)u * m.unit + 4 * q, value);
    }
}

// ---- launching -------------------------------------------------------------

// Private to this file: other files have their own of the same names.
namespace
{
struct measured {
    kv_share share;
    size_t bytes;

    template <class Q> void run()
    {
        bytes = workspace_of<Q>(share).end;
    }
};

// n blocks: encoded, or decoded to x.
struct launched {
    const struct kv_gpu_code *code;
    size_t n;
    const struct kv_gpu_blocks *encode;
    const uint8_t *bytes;
    float *x;
    const char *wrong;

    template <class Q, bool BY_CHANNEL> void run()
    {
        const kv_share s = kv_share_of(&code->groups);
        const size_t units = n * code->block_bytes / code->groups.unit_bytes;
        const dim3 grid(
            (unsigned)(kv_round_up(units, s.units) / s.units * s.slices));
        const unsigned heads = (unsigned)code->n_heads;
        const kv_gpu_blocks *const b = encode;

        if (b)
            wrong = kv_launch(
                kv_encode_groups_kernel<Q, BY_CHANNEL>, grid, dim3(THREADS),
                workspace_of<Q>(s).end, (cudaStream_t)b->stream, code->groups,
                s, units,
                kv_where_units{heads, b->first, b->each ? b->each : n, b->seed},
                b->x, b->bytes);
        else
            wrong = kv_launch(kv_decode_groups_kernel<Q, BY_CHANNEL>, grid,
                              dim3(THREADS), (size_t)0, (cudaStream_t)0,
                              code->groups, s, units, heads, bytes, x);
    }
};
} // namespace

extern "C" size_t kv_gpu_groups_shared(const struct kv_gpu_code *code)
{
    measured m = {kv_share_of(&code->groups), 0};

    kv_with_any_quantizer(code->groups.quantizer, m);
    return m.bytes;
}

extern "C" int kv_gpu_encode_groups(const struct kv_gpu_code *code,
                                    const struct kv_gpu_blocks *b,
                                    struct kv_err *e)
{
    launched l = {code, b->n, b, NULL, NULL, NULL};

    if (!kv_with_groups(code->groups, l))
        l.wrong = "no quantizer's groups";
    return l.wrong ? kv_fail(e, "encoding groups: %s", l.wrong) : 0;
}

extern "C" int kv_gpu_decode_groups(const struct kv_gpu_code *code,
                                    const uint8_t *bytes, size_t n, float *x,
                                    struct kv_err *e)
{
    launched l = {code, n, NULL, bytes, x, NULL};

    if (!kv_with_groups(code->groups, l))
        l.wrong = "no quantizer's groups";
    return l.wrong ? kv_fail(e, "decoding groups: %s", l.wrong) : 0;
}
