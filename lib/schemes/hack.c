/* HACK (Zhang et al. 2025): asymmetric integers; attention is computed on the
 * codes without dequantizing them (kernels/hack/hack.h, hack_attend.c).
 *
 * axes=paper: keys per token in parts of p channels, values per channel in
 * blocks of p tokens; the open block of values stays fp16 (requantization
 * elimination), or with rqe=no is kept as codes and requantized as it grows.
 *
 * axes=artifact, as in the authors' later code: keys per channel in blocks of p
 * tokens, values per token in groups of channels in blocks of p tokens; rounded
 * to nearest, the prompt in full precision.  The artifact also has four sinks:
 * "hack:b2p64s4,artifact".  Its group of channels is p or the head, whichever
 * is smaller, reduced in steps of 16 until it divides the head.  The open
 * blocks of both sides stay fp16; with rqe=no they are kept as codes, keys are
 * requantized with each token, and attention reads these blocks dequantized.
 * With rqe=no a prompt's tokens are appended one by one, as in the paper.  (The
 * artifact encodes a prompt's whole blocks at once, and requantizes only with
 * the tokens generated after the prompt.) */
#include "lib/schemes/hack.h"
#include "kernels/bitpack.h"
#include "kernels/device_code.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the planes of one KV head ------------------------------------------ */

static uint8_t *scales(const struct kv_hack *h, uint8_t *bytes)
{
    return bytes + h->code_bytes;
}

static uint8_t *minima(const struct kv_hack *h, uint8_t *bytes)
{
    return scales(h, bytes) + h->n_ranges * sizeof(uint16_t);
}

static uint8_t *sums(const struct kv_hack *h, uint8_t *bytes)
{
    return minima(h, bytes) + h->n_ranges * sizeof(uint16_t);
}

/* A scale or minimum in stored form, clamped to the range of values. */
static uint16_t narrow(const struct kv_hack *h, float x)
{
    const float max = 0x1p17f; /* above the distance of any two halves */

    return h->bf16 ? kv_f32_to_bf16(fminf(fmaxf(x, -max), max))
                   : kv_f16_clamp(x);
}

static float hack_widen(const struct kv_hack *h, uint16_t half)
{
    return h->bf16 ? kv_bf16_to_f32(half) : kv_f16_to_f32(half);
}

struct kv_hack_range kv_hack_get_range(const struct kv_hack *h,
                                       const uint8_t *bytes, size_t i)
{
    const uint8_t *at = bytes + h->code_bytes + i * sizeof(uint16_t);
    uint16_t scale, min;

    memcpy(&scale, at, sizeof(scale));
    memcpy(&min, at + h->n_ranges * sizeof(min), sizeof(min));
    return (struct kv_hack_range){.min = hack_widen(h, min),
                                  .scale = hack_widen(h, scale)};
}

/* Stores the range and returns its rounded values.  If bf16 moves the minimum,
 * the scale is changed to cover the range from there, as in the artifact.
 * (fp16 never moves a minimum, since cached values are halves.) */
struct kv_hack_range kv_hack_put_range(const struct kv_hack *h, uint8_t *bytes,
                                       size_t i, struct kv_hack_range r)
{
    const uint16_t min = narrow(h, r.min);
    const float top = (float)((1u << h->bits) - 1);
    const float moved = h->bf16 ? (r.min - hack_widen(h, min)) / top : 0;
    const uint16_t scale = narrow(h, fmaxf(r.scale + moved, 0));

    memcpy(scales(h, bytes) + i * sizeof(scale), &scale, sizeof(scale));
    memcpy(minima(h, bytes) + i * sizeof(min), &min, sizeof(min));
    return kv_hack_get_range(h, bytes, i);
}

/* Packs code [n_lines][len] and adds the sums of its parts. */
void kv_hack_put_codes(const struct kv_hack *h, const uint16_t *code,
                       uint8_t *bytes)
{
    uint8_t *to = sums(h, bytes);

    kv_pack(code, h->n_lines * h->len, h->bits, bytes);
    for (size_t i = 0; i < h->n_lines; i++)
        for (size_t part = 0; h->sums && part < h->n_parts; part++) {
            int32_t sum = 0;

            for (size_t z = 0; z < kv_hack_part_len(h, part); z++)
                sum += code[i * h->len + part * h->part + z];
            memcpy(to, &sum, h->sum_bytes); /* little-endian: the low bytes */
            to += h->sum_bytes;
        }
}

/* ---- encode and decode -------------------------------------------------- */

struct kv_hack_span kv_hack_span_of(const struct kv_hack *h, size_t i,
                                    size_t first)
{
    size_t line, z;
    struct kv_hack_span s;

    if (h->artifact) {
        const size_t left = h->n_lines - i % h->n_groups * h->group;

        line = i % h->n_groups * h->group;
        z = i / h->n_groups;
        s.step = h->len;
        s.n = left < h->group ? left : h->group;
    } else {
        line = i / h->n_parts;
        z = i % h->n_parts * h->part;
        s.step = 1;
        s.n = kv_hack_part_len(h, i % h->n_parts);
    }
    s.at = line * h->len + z;
    s.counter = h->side == KV_K ? kv_hack_counter(first + line, z)
                                : kv_hack_counter(first + z, line);
    s.next = h->artifact == (h->side == KV_K) ? KV_HACK_NEXT_TOKEN
                                              : KV_HACK_NEXT_CHANNEL;
    return s;
}

uint64_t kv_hack_stored_key(const struct kv_codec *c, uint64_t seed,
                            size_t head, size_t step)
{
    return kv_hack_key(seed, c->side == KV_K ? KV_HACK_K : KV_HACK_V, c->layer,
                       head, step);
}

/* Quantizes range i of one KV head; x, code: [n_lines][len]. */
void kv_hack_encode_range(const struct kv_hack *h, uint64_t key, size_t first,
                          size_t i, const float *x, uint16_t *code,
                          uint8_t *bytes)
{
    const struct kv_hack_span s = kv_hack_span_of(h, i, first);
    float value[KV_HACK_MAX_PART], u[KV_HACK_MAX_PART];
    uint8_t rounded[KV_HACK_MAX_PART];

    for (size_t j = 0; j < s.n; j++)
        value[j] = x[s.at + j * s.step];
    if (h->stochastic)
        kv_hack_table()->uniform(key, s.counter, s.next, s.n, u);
    kv_hack_table()->round(
        value, s.n,
        kv_hack_put_range(h, bytes, i,
                          kv_hack_table()->range(value, s.n, h->bits)),
        h->bits, h->stochastic ? u : NULL, rounded);
    for (size_t j = 0; j < s.n; j++)
        code[s.at + j * s.step] = rounded[j];
}

static void encode_head(const struct kv_hack *h, uint64_t key, size_t first,
                        const float *x, uint16_t *code, uint8_t *bytes)
{
    for (size_t i = 0; i < h->n_ranges; i++)
        kv_hack_encode_range(h, key, first, i, x, code, bytes);
    kv_hack_put_codes(h, code, bytes);
}

static void hack_encode(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct kv_hack *h = c->state;
    const size_t heads = c->shape.n_kv_heads, d = c->shape.head_dim;
    float *one = kv_alloc(h->n_lines * h->len, sizeof(*one));
    uint16_t *code = kv_alloc(h->n_lines * h->len, sizeof(*code));

    for (size_t b = 0; b < n_blocks; b++, x += c->block * heads * d)
        for (size_t i = 0; i < heads; i++, bytes += h->head_bytes) {
            for (size_t t = 0; t < c->block; t++)
                for (size_t j = 0; j < d; j++)
                    one[kv_hack_place(h, t, j)] = x[(t * heads + i) * d + j];
            encode_head(h, kv_hack_stored_key(c, w.seed, i, 0),
                        w.first + b * c->block, one, code, bytes);
        }
    free(code);
    free(one);
}

/* Decodes the first m tokens of one block to x [m][n_kv_heads][head_dim]. */
void kv_hack_decode_block(const struct kv_codec *c, const uint8_t *bytes,
                          size_t m, float *x)
{
    const struct kv_hack *h = c->state;
    const size_t heads = c->shape.n_kv_heads, d = c->shape.head_dim;
    uint16_t *code = kv_alloc(h->n_lines * h->len, sizeof(*code));
    float *one = kv_alloc(h->n_lines * h->len, sizeof(*one));

    for (size_t i = 0; i < heads; i++, bytes += h->head_bytes) {
        kv_unpack(bytes, h->n_lines * h->len, h->bits, code);
        for (size_t r = 0; r < h->n_ranges; r++) {
            const struct kv_hack_range range = kv_hack_get_range(h, bytes, r);
            const struct kv_hack_span s = kv_hack_span_of(h, r, 0);

            for (size_t j = 0; j < s.n; j++)
                one[s.at + j * s.step] =
                    range.min + range.scale * (float)code[s.at + j * s.step];
        }
        for (size_t t = 0; t < m; t++)
            for (size_t j = 0; j < d; j++)
                x[(t * heads + i) * d + j] = one[kv_hack_place(h, t, j)];
    }
    free(one);
    free(code);
}

static void hack_decode(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    for (size_t b = 0; b < n_blocks; b++, bytes += c->block_bytes)
        kv_hack_decode_block(c, bytes, c->block,
                             x + b * kv_codec_block_values(c));
}

/* ---- the scheme --------------------------------------------------------- */

enum { STOCHASTIC, NEAREST }; /* round */
enum { CODES, FULL };         /* prefill */

static const struct kv_param params[] = {
    {"b", NULL, 2, 1, KV_HACK_MAX_BITS, false, "bits per code of K and V"},
    {"p", NULL, 64, 2, KV_HACK_MAX_PART, false,
     "values per partition, a multiple of 16 (the paper's Pi)"},
    {"axes", "paper|artifact", 0, 0, 0, false,
     "artifact: K per channel, V per token; use with s4"},
    {"round", "stochastic|nearest", STOCHASTIC, 0, 0, false,
     "rounding of K, V, Q and P (section 5.2); artifact: nearest"},
    {"se", "no|yes", 1, 0, 0, false,
     "summation elimination: sums of codes are stored (section 5.3)"},
    {"rqe", "no|yes", 1, 0, 0, false,
     "requantization elimination: the open block of V is fp16 (section 5.3); "
     "artifact: K's too"},
    {"prefill", "codes|full", CODES, 0, 0, false,
     "what the prompt attends on: codes, or full precision; artifact: full"},
    {"qb", NULL, 8, 1, KV_HACK_MAX_BITS, false,
     "bits per code of Q (K-qb) and P (V-qb) (section 5.1)"},
    {"meta", "f16|bf16", 0, 0, 0, false,
     "scales and minima; bf16: artifact alone, its own default"},
    {0},
};

static bool is_artifact(const struct kv_spec *s, enum kv_side side)
{
    return kv_spec_is(s, side, "axes", "artifact");
}

/* With axes=artifact the defaults are those of the artifact's HackConfig. */
static double hack_fallback(const struct kv_spec *s, enum kv_side side,
                            const struct kv_param *p)
{
    if (is_artifact(s, side) && !strcmp(p->name, "round"))
        return NEAREST;
    if (is_artifact(s, side) && !strcmp(p->name, "prefill"))
        return FULL;
    return p->fallback;
}

/* axes=artifact: p or the whole head, reduced in steps of 16 until it divides
 * the head; 0 if no size does. */
static size_t channel_part(size_t p, size_t d)
{
    size_t part = p < d ? p : d;

    while (d % part) {
        if (part <= 16)
            return 0;
        part -= 16;
    }
    return part;
}

static int hack_check(struct kv_spec *s, const struct kv_shape *shape,
                      struct kv_err *e)
{
    const size_t d = shape->head_dim;

    /* keys per token: p is at most the head */
    if (!is_artifact(s, KV_K) && kv_spec_size(s, KV_K, "p") > d)
        kv_spec_set(s, KV_K, "p", (double)d);
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        const size_t p = kv_spec_size(s, side, "p");
        const bool by_token = side == KV_K && !is_artifact(s, side);

        if (p % 16 && !(by_token && p == d))
            return kv_fail(e, "%c-p%zu: a partition is a multiple of 16%s",
                           kv_side_name(side), p,
                           by_token ? ", or the whole head" : "");
        if (!is_artifact(s, side) && kv_spec_is(s, side, "meta", "bf16"))
            return kv_fail(e, "meta=bf16 wants axes=artifact: the paper's "
                              "scales and minima are fp16");
        if (is_artifact(s, side) && !channel_part(p, d))
            return kv_fail(e,
                           "%c-p%zu: no multiple of 16 up to %zu divides "
                           "head_dim %zu, and axes=artifact cuts it into such",
                           kv_side_name(side), p, p, d);
        if (!by_token && kv_spec_is(s, side, "rqe", "no") &&
            kv_spec_size(s, side, "r"))
            return kv_fail(e, "rqe=no wants r0: the newest %s are codes",
                           side == KV_K ? "keys" : "values");
    }
    return 0;
}

/* The sum of n codes takes bits + ceil(log2 n) bits, stored in whole words
 * (section 6): 1, 2 or 4 bytes. */
static size_t sum_bytes(unsigned bits, size_t n)
{
    while (n > 1) {
        bits++;
        n = (n + 1) / 2;
    }
    return bits <= 8 ? 1 : bits <= 16 ? 2 : 4;
}

static struct kv_hack layout(const struct kv_spec *s, enum kv_side side,
                             size_t d)
{
    const size_t p = kv_spec_size(s, side, "p");
    const bool artifact = is_artifact(s, side);
    struct kv_hack h = {
        .side = side,
        .artifact = artifact,
        .stochastic = kv_spec_is(s, side, "round", "stochastic"),
        .sums = kv_spec_is(s, side, "se", "yes"),
        .bf16 = kv_spec_is(s, side, "meta", "bf16"),
        .bits = (unsigned)kv_spec_size(s, side, "b"),
        .q_bits = (unsigned)kv_spec_size(s, side, "qb"),
    };

    if (side == KV_K) {
        h.n_lines = artifact ? p : 1;
        h.len = d;
        h.part = artifact ? channel_part(p, d) : p < d ? p : d;
        h.group = p;
    } else {
        h.n_lines = d;
        h.len = p;
        h.part = p;
        h.group = artifact ? channel_part(p, d) : d;
    }
    h.n_parts = (h.len + h.part - 1) / h.part;
    h.n_groups = (h.n_lines + h.group - 1) / h.group;
    h.n_ranges = artifact ? h.len * h.n_groups : h.n_lines * h.n_parts;
    h.sum_bytes = h.sums ? sum_bytes(h.bits, h.part) : 0;
    h.code_bytes = kv_pack_bytes(h.n_lines * h.len, h.bits);
    h.head_bytes = h.code_bytes + 2 * h.n_ranges * sizeof(uint16_t) +
                   h.n_lines * h.n_parts * h.sum_bytes;
    return h;
}

static double hack_nominal(const struct kv_spec *s, enum kv_side side,
                           const struct kv_shape *shape)
{
    const struct kv_hack h = layout(s, side, shape->head_dim);

    return h.bits + (double)(8 * (h.head_bytes - h.code_bytes)) /
                        (double)(h.n_lines * h.len);
}

static int open_hack(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    struct kv_hack *h = kv_alloc(1, sizeof(*h));

    (void)calib;
    (void)e;
    *h = layout(&c->spec, c->side, c->shape.head_dim);
    c->block = c->side == KV_K ? h->n_lines : h->len;
    c->block_bytes = c->shape.n_kv_heads * h->head_bytes;
    if (c->block > 1 && kv_spec_is(&c->spec, c->side, "rqe", "no"))
        c->history = &kv_hack_open_block;
    c->prefill_on_codes = kv_spec_is(&c->spec, c->side, "prefill", "codes");
    c->state = h;
    h->tile = (struct kv_tile_hack){
        .codes = {.bits = h->bits, .offset = KV_OFFSET_LOW},
        .q_bits = h->q_bits,
        .part = h->part,
        .stochastic = h->stochastic,
        .layer = c->layer};
    h->tiled = !h->artifact && !c->history &&
               kv_integers_init(&h->tile.codes, c->side == KV_V,
                                c->shape.head_dim, c->side == KV_V, h->part);
    return 0;
}

/* For axes=paper: a range is a part of a token (keys), or a channel of the
 * block (values). */
static bool hack_device(const struct kv_codec *c, struct kv_gpu_code *to)
{
    const struct kv_hack *h = c->state;

    to->coding = KV_GPU_GROUPS;
    to->groups = (struct kv_gpu_groups){.quantizer = KV_GPU_HACK,
                                        .bits = h->bits,
                                        .by_channel = c->side == KV_V,
                                        .len = h->part,
                                        .unit = c->shape.head_dim,
                                        .n_groups = h->n_ranges,
                                        .code_bytes = h->code_bytes,
                                        .unit_bytes = h->head_bytes,
                                        .sum_bytes = h->sum_bytes,
                                        .q_bits = h->q_bits,
                                        .layer = c->layer,
                                        .stochastic = h->stochastic,
                                        .values = c->side == KV_V};
    return !h->artifact && !c->history;
}

/* ---- tiles --------------------------------------------------------------- */

static bool hack_store(const struct kv_codec *c, struct kv_store *s)
{
    const struct kv_hack *h = c->state;

    if (h->tiled)
        kv_store_hack(s, &h->tile);
    return h->tiled;
}

/* Writes token t of the tile, the i-th token of its run, from token `at` of a
 * block of codes [n_lines][len]. */
static void put_token(const struct kv_hack *h, const struct kv_store *s,
                      const uint8_t *bytes, const uint16_t *code, size_t i,
                      size_t t, size_t at, uint8_t *tile)
{
    uint16_t row[KV_MAX_HEAD_DIM];

    for (size_t ch = 0; ch < s->head_dim; ch++) {
        const size_t line = h->side == KV_K ? 0 : ch;
        const size_t z = h->side == KV_K ? ch : at;
        const size_t range = line * h->n_parts + z / h->part;
        uint16_t scale;

        row[ch] = code[line * h->len + z];
        memcpy(&scale, bytes + h->code_bytes + range * sizeof(scale),
               sizeof(scale));
        kv_store_put_group(s, i, t, ch, scale,
                           kv_hack_get_range(h, bytes, range).min, tile);
    }
    kv_store_put_codes(s, t, row, tile);
}

static void hack_tile(const struct kv_codec *c, const struct kv_store *s,
                      const uint8_t *blocks, size_t first, size_t n,
                      size_t head, uint8_t *to)
{
    const struct kv_hack *h = c->state;
    uint16_t *code = kv_alloc(h->n_lines * h->len, sizeof(*code));
    size_t unpacked = SIZE_MAX;

    for (size_t t = 0; t < n; t++) {
        const size_t block = (first + t) / c->block;
        const uint8_t *bytes =
            blocks + block * c->block_bytes + head * h->head_bytes;

        if (block != unpacked)
            kv_unpack(bytes, h->n_lines * h->len, h->bits, code);
        unpacked = block;
        put_token(h, s, bytes, code, first / KV_TILE_TOKENS, t,
                  (first + t) % c->block, to);
    }
    free(code);
}

const struct kv_scheme kv_scheme_hack = {
    .name = "hack",
    .brief = "HACK: min/max integers, attention computed on the codes",
    .params = params,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .fallback = hack_fallback,
    .check = hack_check,
    .nominal = hack_nominal,
    .open = open_hack,
    .encode = hack_encode,
    .decode = hack_decode,
    .device = hack_device,
    .store = hack_store,
    .tile = hack_tile,
    .attend = kv_hack_attend,
};
