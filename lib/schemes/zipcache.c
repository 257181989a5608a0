/* ZipCache (arXiv 2405.14256): salient tokens get b bits, the others l.
 *
 * Saliency is the normalised attention of probe tokens (lib/saliency.h); keys
 * and values use one saliency.  The `salient` per cent of a block's tokens with
 * the highest saliency are salient; the published code has 60 per cent, since
 * its ratio of other tokens is 0.4.  Each KV head has its own salient tokens,
 * as in that code (mask=head), or all heads share the tokens with the highest
 * mean saliency (mask=layer).  m: the number of masks of a block.
 *
 * Our reading: a block of n tokens is scored by its own probes over its own
 * keys, so a block as long as the prompt corresponds to the paper's prefill,
 * and n = 100 to its decoding, except that both ignore tokens before the block.
 * The probes are the newest `recent` per cent, rounded up, and `random` per
 * cent of the others: these are cut into as many equal runs, and one token is
 * drawn from each run, at the same position in every layer (published code:
 * drawn with replacement).  The published code divides a token's sum by the
 * number of all tokens that see it; here it is divided by the number of probes
 * that see it.
 *
 * Keys are quantized per channel, the salient tokens of a block one group and
 * the others another.  Values are channel-separable token-wise: channel j of
 * the block is divided by c_j = sqrt(max |x_j|), then each token is a group
 * over all KV heads.  With mask=head a group is, as in the published code, the
 * i-th token of every head's part.  Here a part is in the order of tokens; in
 * that code the other tokens are in the order of their scores, which the mask
 * does not keep.  A group has a scale and a minimum, as in kivi.c.
 *
 * One block, row = n_kv_heads * head_dim:
 *
 *   | salient: m x n x 1 bit | c: row x f16, values only | part | part |
 *
 * the part of the salient tokens first, then the part of the others:
 *
 *   | codes, group by group, b or l bits | heads, 4 bytes a group |
 *
 * bits padded to whole bytes.  Bits a value, where f is the salient share:
 *
 *   f b + (1 - f) l + m / row, + 64 / n (keys), + 32 / row + 16 / n (values)
 *
 * The paper counts all bits except the mask: 3.21 bits, its 4.98-fold
 * compression, for n and row 4096. */
#include "kernels/bitpack.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SALIENT, OTHERS, PARTS };

struct zipcache {
    size_t row, d, n_masks;
    size_t n_recent, n_random; /* probes of a block */
    size_t n[PARTS];           /* tokens */
    unsigned bits[PARTS];
};

/* ---- probes and salient tokens ----------------------------------------- */

/* Random probe j is one of the old tokens [start(j), start(j + 1)). */
static size_t run_start(size_t j, size_t n_random, size_t n_old)
{
    return (j * n_old + n_random - 1) / n_random;
}

static bool probe(const struct kv_codec *c, struct kv_where w, size_t i)
{
    const struct zipcache *z = c->state;
    const size_t n_old = c->block - z->n_recent;

    if (i >= n_old)
        return true;
    if (!z->n_random)
        return false;

    const size_t j = i * z->n_random / n_old;
    const size_t start = run_start(j, z->n_random, n_old);
    const size_t end = run_start(j + 1, z->n_random, n_old);

    return i == start + kv_random(kv_mix(w.seed, w.first), j) % (end - start);
}

struct scored {
    double saliency;
    size_t token;
};

/* Sorts the most salient tokens first; on ties the older first. */
static int zipcache_compare(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;

    if (x->saliency != y->saliency)
        return x->saliency > y->saliency ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* Marks a block's tokens with the highest scores; salient: [block], 1 or 0. */
static void zipcache_choose(const struct kv_codec *c, struct scored *s,
                            uint16_t *salient)
{
    const struct zipcache *z = c->state;

    qsort(s, c->block, sizeof(*s), zipcache_compare);
    for (size_t i = 0; i < c->block; i++)
        salient[s[i].token] = i < z->n[SALIENT];
}

/* Makes the masks salient [n_masks][block] from saliency
 * [n_kv_heads][block]. */
static void make_masks(const struct kv_codec *c, const float *saliency,
                       uint16_t *salient)
{
    const struct zipcache *z = c->state;
    const size_t together = c->shape.n_kv_heads / z->n_masks;
    struct scored *s = kv_alloc(c->block, sizeof(*s));

    for (size_t m = 0; m < z->n_masks; m++) {
        for (size_t i = 0; i < c->block; i++) {
            s[i] = (struct scored){0, i};
            for (size_t h = 0; h < together; h++)
                s[i].saliency +=
                    (double)saliency[(m * together + h) * c->block + i];
        }
        zipcache_choose(c, s, salient + m * c->block);
    }
    free(s);
}

/* Sets token [n_masks][block]: the salient tokens in order, then the others;
 * each token once, whatever the marks are. */
static void sort_out(const struct kv_codec *c, const uint16_t *salient,
                     size_t *token)
{
    const struct zipcache *z = c->state;
    size_t n = 0;

    for (size_t m = 0; m < z->n_masks; m++, salient += c->block)
        for (uint16_t mark = 2; mark-- > 0;)
            for (size_t i = 0; i < c->block; i++)
                if (salient[i] == mark)
                    token[n++] = i;
}

/* ---- one part: groups of codes and their heads ------------------------- */

static size_t n_groups(const struct kv_codec *c, int part)
{
    const struct zipcache *z = c->state;

    return c->side == KV_V ? z->n[part] : z->n[part] ? z->row : 0;
}

static size_t zipcache_code_bytes(const struct kv_codec *c, int part)
{
    const struct zipcache *z = c->state;

    return kv_pack_bytes(z->n[part] * z->row, z->bits[part]);
}

static size_t part_bytes(const struct kv_codec *c, int part)
{
    return zipcache_code_bytes(c, part) +
           n_groups(c, part) * kv_kivi_quantizer.head_bytes;
}

/* The index of value j of group g in x [block][row]; token: the part's tokens
 * by the first mask, then by each next mask, `block` entries apart. */
static size_t zipcache_place(const struct kv_codec *c, const size_t *token,
                             size_t g, size_t j)
{
    const struct zipcache *z = c->state;
    const size_t channel = c->side == KV_V ? j : g;
    const size_t i = c->side == KV_V ? g : j;
    const size_t mask = z->n_masks > 1 ? channel / z->d : 0;

    return token[mask * c->block + i] * z->row + channel;
}

static size_t group_len(const struct kv_codec *c, int part)
{
    const struct zipcache *z = c->state;

    return c->side == KV_V ? z->row : z->n[part];
}

static void encode_part(const struct kv_codec *c, int part, const size_t *token,
                        const float *x, uint8_t *bytes)
{
    const struct zipcache *z = c->state;
    const size_t groups = n_groups(c, part), len = group_len(c, part);
    uint16_t *code = kv_alloc(groups * len, sizeof(*code));
    float *group = kv_alloc(len, sizeof(*group));
    uint8_t *head = bytes + zipcache_code_bytes(c, part);

    for (size_t g = 0; g < groups; g++) {
        for (size_t j = 0; j < len; j++)
            group[j] = x[zipcache_place(c, token, g, j)];
        kv_kivi_quantizer.encode(group, len, z->bits[part],
                                 head + g * kv_kivi_quantizer.head_bytes,
                                 code + g * len);
    }
    kv_pack(code, groups * len, z->bits[part], bytes);
    free(group);
    free(code);
}

static void decode_part(const struct kv_codec *c, int part, const size_t *token,
                        const uint8_t *bytes, float *x)
{
    const struct zipcache *z = c->state;
    const size_t groups = n_groups(c, part), len = group_len(c, part);
    uint16_t *code = kv_alloc(groups * len, sizeof(*code));
    float *group = kv_alloc(len, sizeof(*group));
    const uint8_t *head = bytes + zipcache_code_bytes(c, part);

    kv_unpack(bytes, groups * len, z->bits[part], code);
    for (size_t g = 0; g < groups; g++) {
        kv_kivi_quantizer.decode(code + g * len, len, z->bits[part],
                                 head + g * kv_kivi_quantizer.head_bytes,
                                 group);
        for (size_t j = 0; j < len; j++)
            x[zipcache_place(c, token, g, j)] = group[j];
    }
    free(group);
    free(code);
}

/* ---- the channels of values -------------------------------------------- */

/* Computes c_j, as stored, for each channel of x [block][row]. */
static void channel_sizes(const struct kv_codec *c, const float *x,
                          uint16_t *size)
{
    const size_t row = ((const struct zipcache *)c->state)->row;

    for (size_t j = 0; j < row; j++) {
        float max = 0;

        for (size_t t = 0; t < c->block; t++)
            max = fmaxf(max, fabsf(x[t * row + j]));
        size[j] = kv_f16_clamp(sqrtf(max));
    }
}

/* out = x / size; a channel of zeros stays. */
static void zipcache_divide(const struct kv_codec *c, const float *x,
                            const uint16_t *size, float *out)
{
    const size_t row = ((const struct zipcache *)c->state)->row;

    for (size_t i = 0; i < c->block * row; i++)
        out[i] = size[i % row] ? x[i] / kv_f16_to_f32(size[i % row]) : 0;
}

static void zipcache_multiply(const struct kv_codec *c, const uint16_t *size,
                              float *x)
{
    const size_t row = ((const struct zipcache *)c->state)->row;

    for (size_t i = 0; i < c->block * row; i++)
        x[i] *= kv_f16_to_f32(size[i % row]);
}

/* ---- blocks ------------------------------------------------------------ */

static void zipcache_encode(const struct kv_codec *c, struct kv_where w,
                            const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct zipcache *z = c->state;
    const size_t values = kv_codec_block_values(c);
    const size_t size_bytes = z->row * sizeof(uint16_t);
    const size_t marks = z->n_masks * c->block;
    uint16_t *salient = kv_alloc(marks, sizeof(*salient));
    uint16_t *size = kv_alloc(z->row, sizeof(*size));
    size_t *token = kv_alloc(marks, sizeof(*token));
    float *divided = kv_alloc(values, sizeof(*divided));

    for (size_t b = 0; b < n_blocks; b++, x += values) {
        const float *in = x;

        make_masks(c, w.saliency + b * c->shape.n_kv_heads * c->block, salient);
        sort_out(c, salient, token);
        kv_pack(salient, marks, 1, bytes);
        bytes += kv_pack_bytes(marks, 1);
        if (c->side == KV_V) {
            channel_sizes(c, x, size);
            zipcache_divide(c, x, size, divided);
            in = divided;
            memcpy(bytes, size, size_bytes);
            bytes += size_bytes;
        }
        encode_part(c, SALIENT, token, in, bytes);
        bytes += part_bytes(c, SALIENT);
        encode_part(c, OTHERS, token + z->n[SALIENT], in, bytes);
        bytes += part_bytes(c, OTHERS);
    }
    free(divided);
    free(token);
    free(size);
    free(salient);
}

static void zipcache_decode(const struct kv_codec *c, const uint8_t *bytes,
                            size_t n_blocks, float *x)
{
    const struct zipcache *z = c->state;
    const size_t size_bytes = z->row * sizeof(uint16_t);
    const size_t marks = z->n_masks * c->block;
    uint16_t *salient = kv_alloc(marks, sizeof(*salient));
    uint16_t *size = kv_alloc(z->row, sizeof(*size));
    size_t *token = kv_alloc(marks, sizeof(*token));

    for (size_t b = 0; b < n_blocks; b++, x += kv_codec_block_values(c)) {
        kv_unpack(bytes, marks, 1, salient);
        sort_out(c, salient, token);
        bytes += kv_pack_bytes(marks, 1);
        if (c->side == KV_V) {
            memcpy(size, bytes, size_bytes);
            bytes += size_bytes;
        }
        decode_part(c, SALIENT, token, bytes, x);
        bytes += part_bytes(c, SALIENT);
        decode_part(c, OTHERS, token + z->n[SALIENT], bytes, x);
        bytes += part_bytes(c, OTHERS);
        if (c->side == KV_V)
            zipcache_multiply(c, size, x);
    }
    free(token);
    free(size);
    free(salient);
}

/* ---- the scheme -------------------------------------------------------- */

static const struct kv_param params[] = {
    {"b", NULL, 4, 1, 8, false, "bits per code of salient tokens"},
    {"l", NULL, 2, 1, 8, false, "bits per code of the others"},
    {"n", NULL, 256, 4, 65536, false, "tokens of a block, scored together"},
    {"salient", NULL, 60, 0, 100, false, "salient tokens, per cent"},
    {"mask", "head|layer", 0, 0, 0, false,
     "each KV head has its own salient tokens, or all have the same"},
    {"recent", NULL, 5, 0, 100, false, "probes: the newest, per cent"},
    {"random", NULL, 5, 0, 100, false, "probes: of the others, per cent"},
    {0},
};

static size_t hundredths(const struct kv_spec *s, enum kv_side side,
                         const char *name)
{
    return kv_spec_size(s, side, "n") * kv_spec_size(s, side, name);
}

/* The number of salient tokens; the number of the others is rounded down, as in
 * the published code. */
static size_t n_salient(const struct kv_spec *s, enum kv_side side)
{
    const size_t n = kv_spec_size(s, side, "n");

    return n - n * (100 - kv_spec_size(s, side, "salient")) / 100;
}

/* Fails if K and V differ in a parameter of the saliency, which serves both. */
static int zipcache_check(struct kv_spec *s, const struct kv_shape *shape,
                          struct kv_err *e)
{
    const char *const same[] = {"n", "s", "r", "recent", "random"};

    (void)shape;
    for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++) {
        const size_t k = kv_spec_size(s, KV_K, same[i]);
        const size_t v = kv_spec_size(s, KV_V, same[i]);

        if (k != v)
            return kv_fail(e,
                           "%s must be the same for K and V, not %zu and %zu: "
                           "they share their salient tokens' scores",
                           same[i], k, v);
    }
    if (kv_spec_size(s, KV_K, "recent") + kv_spec_size(s, KV_K, "random") > 100)
        return kv_fail(e, "recent=%zu and random=%zu are more than 100 %%",
                       kv_spec_size(s, KV_K, "recent"),
                       kv_spec_size(s, KV_K, "random"));
    return 0;
}

/* Counts codes, scales, minima and c, but not the mask, as the paper's
 * compression ratios do. */
static double zipcache_nominal(const struct kv_spec *s, enum kv_side side,
                               const struct kv_shape *shape)
{
    const double n = kv_spec_get(s, side, "n");
    const double row = (double)(shape->n_kv_heads * shape->head_dim);
    const double high = (double)n_salient(s, side);
    const double codes = (high * kv_spec_get(s, side, "b") +
                          (n - high) * kv_spec_get(s, side, "l")) /
                         n;

    if (side == KV_V)
        return codes + 32 / row + 16 / n;
    return codes + 32 * ((high > 0) + (high < n)) / n;
}

static int open_zipcache(struct kv_codec *c, const struct kv_calib *calib,
                         struct kv_err *e)
{
    struct zipcache *z = kv_alloc(1, sizeof(*z));
    const size_t recent = hundredths(&c->spec, c->side, "recent");

    (void)calib;
    (void)e;
    c->state = z;
    c->block = kv_spec_size(&c->spec, c->side, "n");
    z->d = c->shape.head_dim;
    z->row = c->shape.n_kv_heads * z->d;
    z->n_masks =
        kv_spec_is(&c->spec, c->side, "mask", "head") ? c->shape.n_kv_heads : 1;
    z->n_recent = (recent + 99) / 100;
    z->n_random = hundredths(&c->spec, c->side, "random") / 100;
    z->n[SALIENT] = n_salient(&c->spec, c->side);
    z->n[OTHERS] = c->block - z->n[SALIENT];
    z->bits[SALIENT] = (unsigned)kv_spec_size(&c->spec, c->side, "b");
    z->bits[OTHERS] = (unsigned)kv_spec_size(&c->spec, c->side, "l");
    c->block_bytes = kv_pack_bytes(z->n_masks * c->block, 1) +
                     (c->side == KV_V ? z->row * sizeof(uint16_t) : 0) +
                     part_bytes(c, SALIENT) + part_bytes(c, OTHERS);
    return 0;
}

const struct kv_scheme kv_scheme_zipcache = {
    .name = "zipcache",
    .brief = "ZipCache: more bits for the tokens that attention looks at",
    .params = params,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .check = zipcache_check,
    .nominal = zipcache_nominal,
    .open = open_zipcache,
    .probe = probe,
    .encode = zipcache_encode,
    .decode = zipcache_decode,
};
