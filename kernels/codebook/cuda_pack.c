/* Indices and centroids in the order of cuda.cuh. */
#include "kernels/codebook/cuda.h"
#include "kernels/codebook/impl.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

#include <math.h>
#include <string.h>

static const struct kv_codebook *book_of(const struct kv_gpu_side *side)
{
    return side->store->params;
}

/* Whether a code of the device is two of the store, low bits first. */
static bool pairs(const struct kv_codebook *b)
{
    return b->d == 2 && b->bits == 4 && b->sub_books == 1 && b->n_sub % 2 == 0;
}

struct kv_gpu_codes kv_gpu_codebook_codes(const struct kv_gpu_side *side)
{
    const struct kv_codebook *b = book_of(side);
    struct kv_gpu_codes c = {.d = pairs(b) ? 4 : b->d,
                             .bits = pairs(b) ? 8 : b->bits,
                             .own = b->sub_books > 1};

#define STEP(D, DIMS, BITS, OWN, T_EXACT, S, W, T_INT8, ...)           \
    if (side->store->head_dim == D && c.d == DIMS && c.bits == BITS && \
        c.own == OWN)                                                  \
        c.step = side->path == KV_PATH_INT8 ? T_INT8 : T_EXACT;
    KV_CODEBOOKS(STEP)
#undef STEP
    return c;
}

int kv_gpu_codebook_check(const struct kv_gpu_side *side, struct kv_err *e)
{
    const struct kv_codebook *b = book_of(side);

    if (b->rope)
        return kv_fail(e, "attention on codebook indices: no CUDA kernel for "
                          "keys stored before RoPE");
    if (!kv_gpu_codebook_codes(side).step)
        return kv_fail(e,
                       "attention on codebook indices: no CUDA kernel for "
                       "head_dim %zu, sub-vectors of %zu, %u bits, tables %s",
                       side->store->head_dim, b->d, b->bits,
                       b->sub_books > 1 ? "for each sub-space" : "shared");
    return 0;
}

/* ---- tables -------------------------------------------------------------- */

/* Centroid `code` of table `sub` of a head in the device's codes: [d]. */
static void centroid(const struct kv_codebook *b, size_t head, size_t sub,
                     size_t code, float *x)
{
    const float *table =
        b->centers + kv_codebook_at(b, head, sub) * b->k * b->d;
    const size_t size = b->d * sizeof(*x);

    if (pairs(b)) {
        memcpy(x, table + code % 16 * b->d, size);
        memcpy(x + b->d, table + code / 16 * b->d, size);
    } else {
        memcpy(x, table + code * b->d, size);
    }
}

/* Writes one table in halves, or in bytes whose unit is scale [d]. */
static void fill(const struct kv_codebook *b, struct kv_gpu_codes c,
                 size_t head, size_t sub, size_t entry, float *scale,
                 uint8_t *to)
{
    const size_t k = (size_t)1 << c.bits;
    float x[8];

    for (size_t j = 0; scale && j < c.d; j++) {
        scale[j] = 0;
        for (size_t i = 0; i < k; i++) {
            centroid(b, head, sub, i, x);
            scale[j] = fmaxf(scale[j], fabsf(x[j]) / 127);
        }
    }
    for (size_t i = 0; i < k; i++, to += entry) {
        centroid(b, head, sub, i, x);
        for (size_t j = 0; j < c.d; j++)
            if (scale) {
                const float code = scale[j] > 0 ? rintf(x[j] / scale[j]) : 0;

                to[j] = (uint8_t)(int8_t)fmaxf(-127, fminf(127, code));
            } else {
                const uint16_t half = kv_f16_clamp(x[j]);

                memcpy(to + j * sizeof(half), &half, sizeof(half));
            }
    }
}

/* Makes the table: | entries [tables][k] | path int8: scales of the channels
 * [head_dim] f32 |, for each head or once. */
static void make_table(struct kv_gpu_side *side, struct kv_gpu_codes c)
{
    const struct kv_codebook *b = book_of(side);
    const bool int8 = side->path == KV_PATH_INT8;
    const size_t d = side->store->head_dim, k = (size_t)1 << c.bits;
    const size_t entry = KV_CODEBOOK_ENTRY(int8, c.own, c.d);
    const size_t tables = c.own ? b->sub_books : 1;
    const size_t scales = tables * k * entry;
    uint8_t *to;

    side->n_tables = b->head_books;
    side->table_bytes = scales + (int8 ? d * sizeof(float) : 0);
    to = side->table = kv_alloc(side->n_tables, side->table_bytes);
    memset(to, 0, side->n_tables * side->table_bytes);
    for (size_t h = 0; h < side->n_tables; h++, to += side->table_bytes) {
        float *scale = (float *)(void *)(to + scales);

        for (size_t i = 0; i < tables; i++)
            fill(b, c, h, i, entry, int8 ? scale + i * c.d : NULL,
                 to + i * k * entry);
        for (size_t i = c.d; int8 && !c.own && i < d; i++)
            scale[i] = scale[i - c.d];
    }
}

/* ---- tiles --------------------------------------------------------------- */

/* The position of a code in a step: its lane, and its index in the lane's
 * string. */
struct place {
    size_t lane, index;
};

static struct place place(bool values, struct kv_gpu_codes c, size_t head_dim,
                          size_t t, size_t channel)
{
    const size_t m = t / 16, row = t % 16, per = 8 / c.d;
    const size_t s = channel % 8 / c.d;

    if (values) { /* tokens 2c, 2c + 8, 2c + 1, 2c + 9 are fours */
        const size_t in = row / 8 + row % 2 * 2, u = channel / 64;

        return (struct place){.lane = channel % 64 / 8 * 4 + row % 8 / 2,
                              .index =
                                  ((u * (c.step / 16) + m) * 4 + in) * per + s};
    }
    return (struct place){
        .lane = row % 8 * 4 + channel % 32 / 8,
        .index =
            ((m * (head_dim / 32) + channel / 32) * 2 + row / 8) * per + s};
}

/* Puts a code into a step of strings of `bytes` for each lane; to: zeros. */
static void put(struct kv_gpu_codes c, struct place p, size_t bytes,
                unsigned code, uint8_t *to)
{
    const size_t piece = bytes % 16 ? 8 : 16;

    for (unsigned bit = 0; bit < c.bits;
         bit += 4) { /* no half crosses a byte */
        const size_t at = p.index * c.bits + bit, byte = at / 8;
        uint8_t *x = to + (byte / piece * 32 + p.lane) * piece + byte % piece;

        *x = (uint8_t)(*x | (code >> bit & 15) << at % 8);
    }
}

/* Packs 32 tokens, which are [first, first + 32) of the device's tile. */
static void pack_part(const struct kv_gpu_side *side, struct kv_gpu_codes c,
                      const uint16_t *code, struct kv_codebook_part part,
                      size_t first, uint8_t *to)
{
    const struct kv_store *s = side->store;
    const struct kv_codebook *b = book_of(side);
    const size_t bytes = c.step * s->head_dim / c.d * c.bits / 8 / 32;

    for (size_t i = 0; i < KV_TILE_PART; i++)
        for (size_t sub = 0; sub < b->n_sub; sub += c.d / b->d) {
            const size_t t = first + i;
            unsigned x = code[kv_codebook_in_part(part, sub, i)];

            if (pairs(b))
                x |= (unsigned)code[kv_codebook_in_part(part, sub + 1, i)]
                     << b->bits;
            put(c, place(s->values, c, s->head_dim, t % c.step, sub * b->d),
                bytes, x, to + t / c.step * 32 * bytes);
        }
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct kv_store *s = side->store;
    const struct kv_gpu_codes c = kv_gpu_codebook_codes(side);
    uint16_t code[KV_TILE_PART * (KV_GPU_MAX_DIM + 16)];

    for (size_t t = 0; t < KV_GPU_TILE; t += KV_TILE_PART) {
        const size_t token = i * KV_GPU_TILE + t;
        const uint8_t *tile = kv_store_tile(s, head, token / KV_TILE_TOKENS);
        const struct kv_codebook_part part = kv_store_get_codes(
            s, tile, token % KV_TILE_TOKENS / KV_TILE_PART, code);

        pack_part(side, c, code, part, t, to);
    }
}

bool kv_gpu_codebook_open(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;

    if (s->family != &kv_family_codebook)
        return false;

    const struct kv_gpu_codes c = kv_gpu_codebook_codes(side);

    if (!c.step || book_of(side)->rope) /* the launch names the reason */
        return true;
    side->tile_bytes = KV_GPU_TILE * s->head_dim / c.d * c.bits / 8;
    side->pack = pack;
    make_table(side, c);
    return true;
}
