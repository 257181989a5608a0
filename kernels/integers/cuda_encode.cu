#include "kernels/hack/hack.h"
#include "kernels/integers/cuda_groups.cuh"

enum { THREADS = KV_GROUPS_THREADS };

// Shared memory: values as halves; least and largest, of each group's parts;
// sums of codes; heads; packed codes.  Where each begins.
struct kv_room {
    size_t low, high, sum, head, code, end;
};

template <class Q> static __host__ __device__ kv_room room_of(const kv_share &s)
{
    const size_t parts = (size_t)s.groups * s.parts * sizeof(float);
    kv_room r;

    r.low = (s.values * sizeof(uint16_t) + 15) / 16 * 16;
    r.high = r.low + parts;
    r.sum = r.high + parts;
    r.head = r.sum + (Q::SUMS ? s.groups * sizeof(unsigned) : 0);
    r.code = r.head + s.groups * sizeof(Q);
    r.end = r.code + s.code_bytes;
    return r;
}

// Two values a word.
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

// Least and largest of each part of a group.  Neighbours look at neighbours:
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
        float least = __builtin_huge_valf(), most = -least;

        for (unsigned j = part; j < size; j += parts) {
            const float x = kv_low_f16(value[begin + j * m.apart()]);

            least = fminf(least, x);
            most = fmaxf(most, x);
        }
        low[part * groups + i] = least;
        high[part * groups + i] = most;
    }
}

// Both zeros are +0 in a head, whichever came first.
template <class Q, class M>
KV_DEVICE void kv_make_heads(const M &m, const kv_gpu_groups &g, unsigned parts,
                             const float *low, const float *high, Q *head,
                             uint8_t *bytes)
{
    const unsigned groups = m.units * m.each;

    for (unsigned i = threadIdx.x; i < groups; i += THREADS) {
        float least = low[i], most = high[i];

        for (unsigned part = 1; part < parts; part++) {
            least = fminf(least, low[part * groups + i]);
            most = fmaxf(most, high[part * groups + i]);
        }
        head[i].fit(least + 0.0f, most + 0.0f, g.bits);
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

// Where units stand, for random numbers.
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

// Eight codes a thread, which are `bits` bytes.  Neighbours take neighbouring
// channels where they can.
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
                kv_add_shared(sum + i, part);
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
    kv_groups_kernel(struct kv_gpu_groups g, kv_share share, size_t n_units,
                     kv_where_units where, const uint16_t *x, uint8_t *bytes)
{
    const kv_mine<BY_CHANNEL> m(g, share, n_units);
    const kv_room room = room_of<Q>(share);
    uint16_t *const value = reinterpret_cast<uint16_t *>(kv_shared());
    float *const low = reinterpret_cast<float *>(kv_shared() + room.low);
    float *const high = reinterpret_cast<float *>(kv_shared() + room.high);
    unsigned *const sum = reinterpret_cast<unsigned *>(kv_shared() + room.sum);
    Q *const head = reinterpret_cast<Q *>(kv_shared() + room.head);
    uint8_t *const packed = kv_shared() + room.code;
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

// Nobody else's: other files have their own of the same name.
namespace
{
struct measured {
    kv_share share;
    size_t bytes;

    template <class Q> void run()
    {
        bytes = room_of<Q>(share).end;
    }
};
} // namespace

extern "C" size_t kv_gpu_groups_shared(const struct kv_gpu_code *code)
{
    measured m = {kv_share_of(&code->groups), 0};

    kv_with_any_quantizer(code->groups.quantizer, m);
    return m.bytes;
}

namespace
{
struct launched {
    const struct kv_gpu_code *code;
    const struct kv_gpu_blocks *b;
    const char *wrong;

    template <class Q, bool BY_CHANNEL> void run()
    {
        const kv_share s = kv_share_of(&code->groups);
        const size_t units = b->n * code->block_bytes / code->groups.unit_bytes;
        const size_t grid = kv_round_up(units, s.units) / s.units * s.slices;
        const kv_where_units where = {(unsigned)code->n_heads, b->first,
                                      b->each ? b->each : b->n, b->seed};

        wrong =
            kv_launch(kv_groups_kernel<Q, BY_CHANNEL>, dim3((unsigned)grid),
                      dim3(THREADS), room_of<Q>(s).end, (cudaStream_t)b->stream,
                      code->groups, s, units, where, b->x, b->bytes);
    }
};
} // namespace

extern "C" int kv_gpu_encode_groups(const struct kv_gpu_code *code,
                                    const struct kv_gpu_blocks *b,
                                    struct kv_err *e)
{
    launched l = {code, b, NULL};

    if (!kv_with_groups(code->groups, l))
        l.wrong = "no quantizer's groups";
    return l.wrong ? kv_fail(e, "encoding groups: %s", l.wrong) : 0;
}
