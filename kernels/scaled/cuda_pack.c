/* Codes with scales in the order of scaled/cuda.h. */
#include "kernels/scaled/cuda.h"
#include "kernels/scaled/impl.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

#include <math.h>
#include <string.h>

enum { UNIT_BYTES = 16, MAX_SHIFT = 60, MAX_GROUPS = 32, FACTORS = 1024 };

struct kv_gpu_scaled_kind kv_gpu_scaled_kind_of(const struct kv_store *s)
{
    const struct kv_scaled *c = kv_scaled_of(s);

    return (struct kv_gpu_scaled_kind){.bits = c->bits,
                                       .per = (unsigned)c->group,
                                       .scale =
                                           (unsigned)kv_scaled_scale_bytes(c)};
}

static size_t step_tokens(const struct kv_store *s)
{
    return KV_SCALED_STEP(kv_scaled_of(s)->bits);
}

static size_t code_bytes(const struct kv_store *s)
{
    return step_tokens(s) * s->head_dim * kv_scaled_of(s)->bits / 8;
}

static size_t head_bytes(const struct kv_store *s)
{
    return kv_scaled_scale_bytes(kv_scaled_of(s)) ? UNIT_BYTES : 0;
}

static size_t step_bytes(const struct kv_store *s)
{
    const struct kv_scaled *c = kv_scaled_of(s);

    return code_bytes(s) +
           s->head_dim / c->group * step_tokens(s) * kv_scaled_scale_bytes(c);
}

static unsigned log2_of(size_t n)
{
    unsigned i = 0;

    while ((size_t)1 << (i + 1) <= n)
        i++;
    return i;
}

/* ---- the table ----------------------------------------------------------- */

/* Returns the squared error of the table when it is stored as halves times
 * `by`. */
static double table_error(const float *table, size_t n, float by)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        const float half = kv_f16_to_f32(kv_f16_clamp(table[i] * by));

        sum += pow((double)half / (double)by - (double)table[i], 2);
    }
    return sum;
}

/* An error of a table is the same for every token, and does not average out. */
float kv_gpu_half_factor(const float *table, size_t n)
{
    float best = 1;

    for (int i = 1; i < FACTORS; i++) {
        const float by = 1 + (float)i / FACTORS;

        if (table_error(table, n, by) < table_error(table, n, best))
            best = by;
    }
    return best;
}

float kv_gpu_pair_table(const float *table, size_t n, uint32_t *to)
{
    const float by = kv_gpu_half_factor(table, n);

    for (size_t i = 0; i < n * n; i++)
        to[i] = kv_f16_clamp(table[i % n] * by) |
                (uint32_t)kv_f16_clamp(table[i / n] * by) << 16;
    return by;
}

/* | all pairs of codes | their factor, f32 |. */
static void make_table(struct kv_gpu_side *side)
{
    const struct kv_scaled *c = kv_scaled_of(side->store);
    const size_t n = (size_t)1 << c->bits;
    uint32_t *to = kv_alloc(n * n + 1, sizeof(*to));

    to[n * n] = kv_f32_bits(kv_gpu_pair_table(c->table, n, to));
    side->table = to;
    side->n_tables = 1;
    side->table_bytes = (n * n + 1) * sizeof(*to);
}

static float factor_of(const struct kv_gpu_side *side)
{
    const uint32_t *table = side->table;

    return table ? kv_bits_f32(table[side->table_bytes / sizeof(*table) - 1])
                 : 1;
}

struct kv_gpu_scaled kv_gpu_scaled_of(const struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const struct kv_scaled *c = kv_scaled_of(s);
    const bool divided = c->scale == KV_SCALE_F16;
    const unsigned right = c->bits > 4 ? 5 - c->format->e : 0;

    return (struct kv_gpu_scaled){
        .table = side->device_table,
        .shift = log2_of(c->group),
        .step_bytes = (unsigned)step_bytes(s),
        .times = kv_scaled_rebias(c) /
                 (factor_of(side) * (divided ? c->divisor : 1)),
        .right = right,
        .mask = (0x7f00u >> right) * 0x10001u,
    };
}

/* ---- tiles --------------------------------------------------------------- */

/* The position of row r and column k of 16 in fragment a (gpu.cuh): the lane,
 * the word, and the half. */
static size_t lane_of(size_t r, size_t k)
{
    return r % 8 * 4 + k % 8 / 2;
}

static size_t word_of(size_t r, size_t k)
{
    return k / 8 * 2 + r / 8;
}

/* The first bit, in a lane's string, of the code of the step's token t and
 * channel c. */
static size_t bit_of(const struct kv_gpu_bitstream *s, size_t t, size_t c)
{
    const size_t row = s->values ? c : t, column = s->values ? t : c;
    const size_t columns = s->values ? s->tokens : s->head_dim;
    const size_t pair = (row / 16 * (columns / 16) + column / 16) * 4 +
                        word_of(row % 16, column % 16);

    if (s->bits == 8) /* bytes 0 and 2 of a word, or 1 and 3 */
        return pair / 2 * 32 + column % 2 * 16 + pair % 2 * 8;
    return (pair * 2 + column % 2) * s->bits;
}

void kv_gpu_put_code(const struct kv_gpu_bitstream *s, size_t t, size_t c,
                     unsigned code, uint8_t *to)
{
    const size_t bytes = s->tokens * s->head_dim * s->bits / 8;
    const size_t piece = bytes / 32 % 16 ? 8 : 16;
    const size_t lane = s->values ? lane_of(c, t) : lane_of(t, c);
    const size_t at = bit_of(s, t, c);

    for (size_t i = 0; i < s->bits; i++) {
        const size_t byte = (at + i) / 8;

        to[(byte / piece * 32 + lane) * piece + byte % piece] |=
            (uint8_t)((code >> i & 1) << (at + i) % 8);
    }
}

size_t kv_gpu_key_scale(size_t t, size_t n)
{
    return t % 8 * (n / 8) + t / 16 * 2 + t / 8 % 2;
}

static size_t place_of_scale(const struct kv_store *s, size_t t)
{
    const size_t n = step_tokens(s);

    return s->values ? t / 2 % 4 * (n / 4) + t / 8 * 2 + t % 2
                     : kv_gpu_key_scale(t, n);
}

/* Writes scale [groups] of token t of the step. */
static void put_scales(const struct kv_store *s, size_t t, const float *scale,
                       float unit, uint8_t *to)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    const size_t bytes = kv_scaled_scale_bytes(c), n = step_tokens(s);

    for (size_t i = 0; bytes && i < s->head_dim / c->group; i++) {
        const uint16_t half = kv_f32_to_f16(scale[i] * unit);
        const uint8_t short_half = (uint8_t)(half >> 7);

        memcpy(to + (i * n + place_of_scale(s, t)) * bytes,
               bytes == 2 ? (const void *)&half : &short_half, bytes);
    }
}

float kv_gpu_unit(float max)
{
    int exponent;

    frexpf(max, &exponent);
    return ldexpf(1, 15 - exponent < MAX_SHIFT ? 15 - exponent : MAX_SHIFT);
}

static float unit_of(const float *scale, size_t n)
{
    float max = 0;

    for (size_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(scale[i]));
    return kv_gpu_unit(max);
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct kv_store *s = side->store;
    const size_t d = s->head_dim, groups = d / kv_scaled_of(s)->group;
    const size_t n = step_tokens(s);
    const struct kv_gpu_bitstream string = {
        .values = s->values,
        .bits = kv_scaled_of(s)->bits,
        .head_dim = d,
        .tokens = n,
    };
    uint16_t code[KV_GPU_TILE][KV_GPU_MAX_DIM];
    float scale[KV_GPU_TILE * MAX_GROUPS], unit;

    for (size_t t = 0; t < KV_GPU_TILE; t++) {
        const size_t token = i * KV_GPU_TILE + t;

        kv_store_get_scaled(s, token % KV_TILE_TOKENS,
                            kv_store_tile(s, head, token / KV_TILE_TOKENS),
                            code[t], scale + t * groups);
    }
    unit = unit_of(scale, KV_GPU_TILE * groups);
    if (head_bytes(s)) {
        const float both[2] = {unit, 1 / unit};

        memcpy(to, both, sizeof(both));
    }
    to += head_bytes(s);
    for (size_t t = 0; t < KV_GPU_TILE; t++) {
        uint8_t *step = to + t / n * step_bytes(s);

        for (size_t c = 0; c < d; c++)
            kv_gpu_put_code(&string, t % n, c, code[t][c], step);
        put_scales(s, t % n, scale + t * groups, unit, step + code_bytes(s));
    }
}

bool kv_gpu_scaled_open(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const size_t bits =
        s->family == &kv_family_scaled ? kv_scaled_of(s)->bits : 0;

    if (!bits)
        return false;
    side->path = KV_PATH_EXACT;
    if (bits == 1 || bits == 6 || s->head_dim > KV_GPU_MAX_DIM)
        return true; /* the launch names the missing kernel */
    side->tile_bytes =
        head_bytes(s) + KV_GPU_TILE / step_tokens(s) * step_bytes(s);
    side->pack = pack;
    if (bits <= 4)
        make_table(side);
    return true;
}
