/* Codes of HACK in the order of hack_codes.h. */
#include "kernels/cuda/families.h"
#include "kernels/hack/cuda_codes.h"
#include "kernels/hack/hack.h"
#include "kernels/hack/layout.h"
#include "lib/base/half.h"

#include <string.h>

static const struct kv_tile_hack *params_of(const struct kv_store *s)
{
    return s->params;
}

static size_t step_tokens(const struct kv_tile_hack *h)
{
    return h->part > 64 ? h->part : 64;
}

/* Bytes of codes, and of ranges, of a step. */
static size_t code_bytes(const struct kv_store *s)
{
    const struct kv_tile_hack *h = params_of(s);

    return step_tokens(h) * s->head_dim * h->bits / 8;
}

/* Ranges of one plane. */
static size_t n_ranges(const struct kv_store *s)
{
    const struct kv_tile_hack *h = params_of(s);

    return step_tokens(h) * s->head_dim / h->part;
}

static size_t step_bytes(const struct kv_store *s)
{
    return code_bytes(s) + 3 * sizeof(uint16_t) * n_ranges(s);
}

/* Of 16 rows, r and r + 8 stand together. */
static size_t paired(size_t i)
{
    return i / 16 * 16 + i % 8 * 2 + i % 16 / 8;
}

/* Row r of 16 and column k of 32 of a fragment of byte codes, whose columns
 * 4c .. 4c + 3 are columns 4c .. of the matrix, or (permuted) the tokens that
 * transposed weights come in. */
struct place {
    size_t lane, reg, byte;
};

static struct place place_of(size_t r, size_t k, bool permuted)
{
    const size_t half = k / 16, in = k % 16;
    size_t c = in / 4, byte = in % 4;

    if (permuted) {
        c = in % 8 / 2;
        byte = in % 2 * 2 + in / 8;
    }
    return (struct place){r % 8 * 4 + c, half * 2 + r / 8, byte};
}

static void put_code(const struct kv_store *s, size_t t, size_t c,
                     unsigned code, uint8_t *step)
{
    const struct kv_tile_hack *h = params_of(s);
    const size_t d = s->head_dim, each = h->bits / 2, regs = 8 / h->bits;
    const size_t fragment =
        s->values ? t / 32 * (d / 16) + c / 16 : t / 16 * (d / 32) + c / 32;
    const struct place p = s->values ? place_of(c % 16, t % 32, true)
                                     : place_of(t % 16, c % 32, false);
    const size_t word = fragment * each + p.reg / regs;
    uint8_t *at = step + (word / 4 * 32 + p.lane) * 16 + word % 4 * 4 + p.byte;

    *at |= (uint8_t)(code << h->bits * (p.reg % regs));
}

/* Adds to the sum of the range, and puts its scale and minimum. */
static void put_range(const struct kv_store *s, size_t t, size_t c,
                      unsigned code, uint16_t scale, uint16_t min,
                      uint8_t *step)
{
    const struct kv_tile_hack *h = params_of(s);
    const size_t d = s->head_dim, along = s->values ? d : step_tokens(h);
    const size_t block = s->values ? t / h->part : c / h->part;
    uint8_t *plane = step + code_bytes(s) + block * 3 * along * 2 +
                     paired(s->values ? c : t) * 2;
    uint16_t half;

    memcpy(plane, &scale, sizeof(scale));
    memcpy(plane + 2 * along, &min, sizeof(min));
    memcpy(&half, plane + 4 * along, sizeof(half));
    half = kv_f32_to_f16(kv_f16_to_f32(half) + (float)code);
    memcpy(plane + 4 * along, &half, sizeof(half));
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct kv_store *s = side->store;
    const size_t step = step_tokens(params_of(s));

    for (size_t t = 0; t < KV_GPU_TILE; t++) {
        const size_t token = i * KV_GPU_TILE + t, in = token % KV_TILE_TOKENS;
        uint8_t *tile = kv_store_tile(s, head, token / KV_TILE_TOKENS);
        const uint8_t *code = kv_store_hack_codes(s, tile, in);

        for (size_t c = 0; c < s->head_dim; c++) {
            uint8_t *at = to + t / step * step_bytes(s);
            uint16_t scale, min;

            kv_store_get_range(s, tile, kv_store_hack_range(s, in, c), &scale,
                               &min);
            put_code(s, t % step, c, code[c], at);
            put_range(s, t % step, c, code[c], scale, min, at);
        }
    }
}

bool kv_gpu_hack_open(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const struct kv_tile_hack *h = s->params;

    if (s->family != &kv_family_homomorphic || (h->bits != 2 && h->bits != 4) ||
        (h->part != 32 && h->part != 64 && h->part != 128))
        return false;
    side->path = KV_PATH_INT8;
    side->tile_bytes = KV_GPU_TILE / step_tokens(h) * step_bytes(s);
    side->pack = pack;
    return true;
}

struct kv_gpu_hack kv_gpu_hack_params(const struct kv_gpu_side *side,
                                      uint64_t seed)
{
    const struct kv_tile_hack *h = side->store->params;
    const enum kv_hack_stream stream =
        side->store->values ? KV_HACK_P : KV_HACK_Q;

    return (struct kv_gpu_hack){
        .top = (float)((1u << h->q_bits) - 1),
        .key = kv_mix(kv_mix(seed, stream), h->layer),
    };
}
