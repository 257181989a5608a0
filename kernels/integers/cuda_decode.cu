#include "kernels/integers/cuda_groups.cuh"

// Codes 4 quad to 4 quad + n - 1, n at most 4, the first one low.  They begin
// at a byte or, of odd bits, which are 28 at most, in its middle: a word has
// room.
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

// Four codes a thread: of one token, or, where groups are channels, of one
// channel, next to that of the thread beside it.
template <class Q, bool BY_CHANNEL>
__global__ void __launch_bounds__(KV_GROUPS_THREADS)
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
    for (unsigned o = threadIdx.x; o < m.units * quads;
         o += KV_GROUPS_THREADS) {
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

// encode_groups.cu has one of its own of this name.
namespace
{
struct launched {
    const struct kv_gpu_code *code;
    const uint8_t *bytes;
    size_t n;
    float *x;
    const char *wrong;

    template <class Q, bool BY_CHANNEL> void run()
    {
        const kv_share s = kv_share_of(&code->groups);
        const size_t units = n * code->block_bytes / code->groups.unit_bytes;
        const size_t grid = kv_round_up(units, s.units) / s.units * s.slices;

        wrong = kv_launch(kv_decode_groups_kernel<Q, BY_CHANNEL>,
                          dim3((unsigned)grid), dim3(KV_GROUPS_THREADS),
                          (size_t)0, (cudaStream_t)0, code->groups, s, units,
                          (unsigned)code->n_heads, bytes, x);
    }
};
} // namespace

extern "C" int kv_gpu_decode_groups(const struct kv_gpu_code *code,
                                    const uint8_t *bytes, size_t n, float *x,
                                    struct kv_err *e)
{
    launched l = {code, bytes, n, x, NULL};

    if (!kv_with_groups(code->groups, l))
        l.wrong = "no quantizer's groups";
    return l.wrong ? kv_fail(e, "decoding groups: %s", l.wrong) : 0;
}
