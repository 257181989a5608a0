/* Levels and outliers in the order of cuda_codes.h, and their tables. */
#include "kernels/levels/cuda_codes.h"
#include "kernels/levels/levels.h"
#include "kernels/tiles/rope.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = KV_LEVELS_TILE,
    STEP = KV_LEVELS_STEP,
    STEPS = TOKENS / STEP,
    TILES = 2,      /* CPU tiles in a tile of 128 tokens */
    KEYS_LINE = 16, /* bytes of ends and rest */
    UNIT_LINE = 16,
    LINE = 16 /* the unit of rest */
};

enum { LANES = 32, MAX_DIM = 128 };

static const struct kv_levels_tiles *levels_of(const struct kv_store *s)
{
    return s->params;
}

static size_t level_count(const struct kv_store *s)
{
    return (size_t)1 << levels_of(s)->scaled.bits;
}

/* Two halves, the first one low. */
static uint32_t two_halves(float a, float b)
{
    return kv_f16_clamp(a) | (uint32_t)kv_f16_clamp(b) << 16;
}

/* ---- tables -------------------------------------------------------------- */

/* Channel 8 g + 2 c of the first half of a head's channels. */
static size_t channel_of(size_t g, size_t lane)
{
    return 8 * g + lane % 4 * 2;
}

/* The factor of a pair of channels if levels are multiplied by `by`; i: a
 * channel of the KV head's first half. */
static float pair_factor(const struct kv_store *s, size_t head, size_t i,
                         float by)
{
    const size_t low = head * s->head_dim + i, high = low + s->head_dim / 2;
    const float *offset = levels_of(s)->offset, *half = levels_of(s)->half;
    const float x[] = {half[low] / by, half[high] / by, offset[low],
                       offset[high]};

    return kv_gpu_half_factor(x, sizeof(x) / sizeof(*x));
}

/* to: [d / 16][4][4]; times: [d / 2], each pair's factor. */
static void put_ranges(const struct kv_store *s, size_t head, float by,
                       const float *times, uint32_t *to)
{
    const size_t d = s->head_dim;
    const float *offset = levels_of(s)->offset + head * d;
    const float *half = levels_of(s)->half + head * d;

    for (size_t g = 0; g < d / 16; g++)
        for (size_t i = 0; i < 8; i++) {
            const size_t pair = channel_of(g, i / 2);
            const size_t c = pair + i % 2 * (d / 2);
            const float a = times[pair], b = times[pair + 1];

            *to++ = two_halves(half[c] / by * a, half[c + 1] / by * b);
            *to++ = two_halves(offset[c] * a, offset[c + 1] * b);
        }
}

/* to: [4][d / 16][lane][4] */
static void put_turns(const struct kv_store *s, uint32_t *to)
{
    const size_t d = s->head_dim;
    float(*angle)[MAX_DIM] = kv_alloc(TOKENS, sizeof(*angle));

    for (size_t t = 0; t < TOKENS; t++)
        kv_tiles_rope_angles(levels_of(s)->rope, t, angle[t]);
    for (size_t i = 0; i < TOKENS / 16 * d / 16 * LANES * 2; i++) {
        const size_t lane = i / 2 % LANES, block = i / 2 / LANES;
        const size_t g = block % (d / 16), m = block / (d / 16);
        const float *a =
            angle[16 * m + lane / 4 + i % 2 * 8] + 2 * channel_of(g, lane);

        *to++ = two_halves(a[0], a[2]);
        *to++ = two_halves(a[1], a[3]);
    }
    free(angle);
}

/* Words before a head's turns, before its shares, and in all. */
static size_t turns_at(const struct kv_store *s)
{
    return level_count(s) * level_count(s) + s->head_dim;
}

static size_t shares_at(const struct kv_store *s)
{
    return turns_at(s) + TOKENS / 16 * s->head_dim / 16 * LANES * 4;
}

static size_t keys_words(const struct kv_store *s)
{
    return shares_at(s) + s->head_dim / 2;
}

static void make_head(const struct kv_store *s, size_t head, uint32_t *to)
{
    const size_t n = level_count(s);
    const float by = kv_gpu_pair_table(levels_of(s)->scaled.table, n, to);
    float times[MAX_DIM / 2];

    for (size_t i = 0; i < s->head_dim / 2; i++) {
        times[i] = pair_factor(s, head, i, by);
        to[shares_at(s) + i] = kv_f32_bits(1 / times[i]);
    }
    put_ranges(s, head, by, times, to + n * n);
    put_turns(s, to + turns_at(s));
}

static void make_keys_table(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const size_t words = keys_words(s);
    uint32_t *to = kv_alloc(s->n_heads * words, sizeof(*to));

    side->table = to;
    side->n_tables = s->n_heads;
    side->table_bytes = words * sizeof(*to);
    for (size_t h = 0; h < s->n_heads; h++)
        make_head(s, h, to + h * words);
}

static void make_values_table(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const size_t n = level_count(s);
    uint32_t *to = kv_alloc(n * n + 1, sizeof(*to));

    side->table = to;
    side->n_tables = 1;
    side->table_bytes = (n * n + 1) * sizeof(*to);
    to[n * n] =
        kv_f32_bits(kv_gpu_pair_table(levels_of(s)->scaled.table, n, to));
}

static void make_table(struct kv_gpu_side *side)
{
    if (side->store->values)
        make_values_table(side);
    else
        make_keys_table(side);
}

static float share_of(const struct kv_gpu_side *side, size_t head, size_t i)
{
    const uint32_t *table = side->table;

    return kv_bits_f32(
        table[head * keys_words(side->store) + shares_at(side->store) + i]);
}

static float factor_of(const struct kv_gpu_side *side)
{
    const size_t n = level_count(side->store);

    return kv_bits_f32(((const uint32_t *)side->table)[n * n]);
}

/* ---- ranges of halves ---------------------------------------------------- */

/* Beyond this range, a rotated pair might exceed the largest half.  The excess
 * of an outlier over its code is clamped to halves; it only exceeds them if the
 * key exceeds half of their range. */
static const float MAX_RANGE = 0x1p13f;

_Static_assert((int)TOKENS == KV_TILE_TOKENS, "a tile is one of the CPU's");

unsigned kv_gpu_levels_bits(const struct kv_store *s)
{
    return levels_of(s)->scaled.bits;
}

/* ---- sizes --------------------------------------------------------------- */

static size_t capacity_of(const struct kv_gpu_side *side)
{
    const size_t max = side->owned
                           ? (side->owned - sizeof(struct kv_levels_outliers)) /
                                 sizeof(struct kv_levels_outlier)
                           : 0;

    return max < KV_LEVELS_CAPACITY ? (max + 7) / 8 * 8 : KV_LEVELS_CAPACITY;
}

static size_t ends_at(const struct kv_store *s)
{
    return s->values ? UNIT_LINE : s->head_dim / 2 * sizeof(float);
}

static size_t outliers_at(const struct kv_store *s)
{
    return ends_at(s) + (s->values ? STEPS * s->head_dim / 16 * sizeof(uint16_t)
                                   : KEYS_LINE);
}

static size_t rest_at(const struct kv_store *s)
{
    return s->values ? 2 * sizeof(float)
                     : ends_at(s) + TOKENS / 16 * sizeof(uint16_t);
}

/* Bytes of n outliers. */
static size_t list_bytes(const struct kv_store *s, size_t n)
{
    return n * (sizeof(uint32_t) + (s->values ? 0 : sizeof(uint16_t)));
}

static size_t head_bytes(const struct kv_gpu_side *side)
{
    return outliers_at(side->store) +
           list_bytes(side->store, capacity_of(side) + KV_LEVELS_PAD);
}

static size_t code_bytes(const struct kv_store *s)
{
    return STEP * s->head_dim * kv_gpu_levels_bits(s) / 8;
}

static size_t step_bytes(const struct kv_store *s)
{
    return code_bytes(s) + (s->values ? 2 * STEP * sizeof(uint16_t) : 0);
}

static size_t tile_bytes(const struct kv_gpu_side *side)
{
    return head_bytes(side) + STEPS * step_bytes(side->store);
}

/* ---- tiles --------------------------------------------------------------- */

/* The data of a tile of the CPU that are packed. */
struct tile {
    const struct kv_levels_outlier *x;
    size_t n;
    uint16_t code[TOKENS][MAX_DIM];
    float offset[TOKENS], half[TOKENS]; /* for values */
    float *more;                        /* [n]: outlier - dequantized code */
    uint32_t *word;                     /* [n], as in the list */
    uint16_t *place;                    /* [n], as in the list; for keys */
};

static size_t token_of(const struct kv_levels_outlier *x)
{
    return x->place / KV_LEVELS_CHANNELS;
}

static size_t channel_at(const struct kv_levels_outlier *x)
{
    return x->place % KV_LEVELS_CHANNELS;
}

/* Finds the code nearest to an outlier; returns outlier - dequantized code. */
static float nearest(const struct kv_store *s, float offset, float half,
                     float x, uint16_t *code)
{
    const float *level = levels_of(s)->scaled.table;
    float best = INFINITY;

    for (uint16_t i = 0; i < level_count(s); i++) {
        const float more = x - (offset + half * level[i]);

        if (fabsf(more) < fabsf(best)) {
            best = more;
            *code = i;
        }
    }
    return best;
}

static void read_tile(const struct kv_store *s, size_t head,
                      const uint8_t *from, struct tile *t)
{
    const struct kv_levels_outliers *o = kv_store_outliers(s, from);
    const size_t d = s->head_dim;
    const uint8_t *offsets =
        from + s->tile_bytes - KV_LEVELS_LINE - KV_LEVELS_OFFSETS;

    for (size_t i = 0; i < TOKENS; i++) {
        uint16_t offset;

        kv_store_get_scaled(s, i, from, t->code[i], &t->half[i]);
        memcpy(&offset, offsets + i * sizeof(offset), sizeof(offset));
        t->offset[i] = s->values ? kv_f16_to_f32(offset) : 0;
    }
    t->n = o ? o->n : 0;
    t->x = o ? o->x : NULL;
    t->more = kv_alloc(t->n, sizeof(*t->more));
    t->word = kv_alloc(t->n, sizeof(*t->word));
    t->place = kv_alloc(t->n, sizeof(*t->place));
    for (size_t i = 0; i < t->n; i++) {
        const size_t at = token_of(&t->x[i]), c = channel_at(&t->x[i]);

        t->more[i] =
            s->values ? nearest(s, t->offset[at], t->half[at],
                                kv_f16_to_f32(t->x[i].value), &t->code[at][c])
                      : nearest(s, levels_of(s)->offset[head * d + c],
                                levels_of(s)->half[head * d + c],
                                kv_f16_to_f32(t->x[i].value), &t->code[at][c]);
    }
}

static void clear_tile(struct tile *t)
{
    free(t->more);
    free(t->word);
    free(t->place);
}

static void put_codes(const struct kv_store *s, const struct tile *tile,
                      uint8_t *steps)
{
    const struct kv_gpu_bitstream string = {
        .values = s->values,
        .bits = kv_gpu_levels_bits(s),
        .head_dim = s->head_dim,
        .tokens = STEP,
    };

    for (size_t t = 0; t < TOKENS; t++)
        for (size_t c = 0; c < s->head_dim; c++)
            kv_gpu_put_code(&string, t % STEP, c, tile->code[t][c],
                            steps + t / STEP * step_bytes(s));
}

/* The byte offset of channel pair i of row 0 among the queries (cuda.cuh). */
static size_t place_of_pair(size_t i)
{
    return ((i / 8 * 2 + i % 2) * LANES + i % 8 / 2) * 2 * sizeof(float);
}

/* An outlier's addends to its pair of channels, rotated by its token's
 * angles. */
static uint32_t rotated(float more, bool high, const float *angle)
{
    return high ? two_halves(-more * angle[1], more * angle[0])
                : two_halves(more * angle[0], more * angle[1]);
}

/* Lists the outliers of keys; tokens ascend. */
static void list_keys(const struct kv_gpu_side *side, size_t head,
                      size_t position, const struct tile *tile)
{
    const struct kv_store *s = side->store;
    const size_t half = s->head_dim / 2;
    float angle[MAX_DIM];

    for (size_t i = 0; i < tile->n; i++) {
        const size_t t = token_of(&tile->x[i]), c = channel_at(&tile->x[i]);
        const float more = tile->more[i] / share_of(side, head, c % half);

        if (i == 0 || t != token_of(&tile->x[i - 1]))
            kv_tiles_rope_angles(levels_of(s)->rope, position + t, angle);
        tile->word[i] = rotated(more, c >= half, angle + c % half * 2);
        tile->place[i] =
            (uint16_t)(KV_LEVELS_TOKEN(t) | place_of_pair(c % half));
    }
}

static void head_of_keys(const struct kv_store *s, size_t position,
                         const struct tile *tile, uint8_t *to)
{
    float angle[MAX_DIM];
    uint16_t end[TOKENS / 16] = {0};

    kv_tiles_rope_angles(levels_of(s)->rope, position, angle);
    for (size_t i = 0; i < s->head_dim / 2; i++) {
        const float a = atan2f(angle[2 * i + 1], angle[2 * i]);

        memcpy(to + i * sizeof(a), &a, sizeof(a));
    }
    for (size_t i = 0; i < tile->n; i++)
        for (size_t m = token_of(&tile->x[i]) / 16; m < TOKENS / 16; m++)
            end[m]++;
    memcpy(to + ends_at(s), end, sizeof(end));
}

static float unit_of(const struct tile *tile, float by)
{
    float max = 0;

    for (size_t t = 0; t < TOKENS; t++)
        max = fmaxf(max, fabsf(tile->half[t]));
    for (size_t i = 0; i < tile->n; i++)
        max = fmaxf(max, fabsf(tile->more[i] * by));
    return kv_gpu_unit(max);
}

/* Lists the outliers of values.  Steps ascend, and so do blocks of 16 channels
 * in each step; end: where each block's outliers end. */
static void list_values(const struct kv_store *s, float times,
                        const struct tile *tile, uint16_t *end)
{
    const size_t blocks = s->head_dim / 16;
    uint16_t n = 0;

    for (size_t j = 0; j < STEPS * blocks; j++) {
        for (size_t i = 0; i < tile->n; i++) {
            const size_t t = token_of(&tile->x[i]), c = channel_at(&tile->x[i]);

            if (t / STEP == j / blocks && c / 16 == j % blocks)
                tile->word[n++] =
                    (uint32_t)(KV_LEVELS_CHANNEL(c) | t % STEP / 2 << 5 |
                               (t % 2 ? 0 : KV_LEVELS_EVEN) | t / STEP |
                               (size_t)kv_f16_clamp(tile->more[i] * times)
                                   << 16);
        }
        end[j] = n;
    }
}

static void head_of_values(const struct kv_store *s, float unit,
                           const uint16_t *end, uint8_t *to)
{
    const float both[2] = {unit, 1 / unit};

    memcpy(to, both, sizeof(both));
    memcpy(to + ends_at(s), end, STEPS * s->head_dim / 16 * sizeof(*end));
}

static void put_scales(const struct kv_store *s, float unit,
                       const struct tile *tile, uint8_t *steps)
{
    for (size_t t = 0; t < TOKENS; t++) {
        const uint16_t scale = kv_f32_to_f16(tile->half[t] * unit);
        const uint16_t offset = kv_f32_to_f16(tile->offset[t]);
        uint8_t *scales = steps + t / STEP * step_bytes(s) + code_bytes(s);
        uint8_t *offsets = scales + STEP * sizeof(scale);

        memcpy(scales + kv_gpu_key_scale(t % STEP, STEP) * sizeof(scale),
               &scale, sizeof(scale));
        memcpy(offsets + kv_gpu_key_scale(t % STEP, STEP) * sizeof(offset),
               &offset, sizeof(offset));
    }
}

/* Reads a tile of the CPU and lists its outliers.  Unless NULL, `to` is a tile
 * of the device, whose head and scales are written. */
static void read_listed(const struct kv_gpu_side *side, size_t head, size_t i,
                        struct tile *tile, uint8_t *to)
{
    const struct kv_store *s = side->store;
    const uint8_t *from = kv_store_tile(s, head, i);

    read_tile(s, head, from, tile);
    if (s->values) {
        const float by = factor_of(side), unit = unit_of(tile, by);
        uint16_t end[STEPS * MAX_DIM / 16];

        list_values(s, by * unit, tile, end);
        if (to) {
            head_of_values(s, unit, end, to);
            put_scales(s, unit, tile, to + head_bytes(side));
        }
    } else {
        const size_t position = kv_store_position(s, head, from);

        list_keys(side, head, position, tile);
        if (to)
            head_of_keys(s, position, tile, to);
    }
}

/* Writes outliers [first, first + n) as lists with room for `capacity`. */
static void put_lists(const struct kv_store *s, const struct tile *tile,
                      size_t first, size_t n, size_t capacity, uint8_t *to)
{
    memcpy(to, tile->word + first, n * sizeof(*tile->word));
    if (!s->values)
        memcpy(to + capacity * sizeof(*tile->word), tile->place + first,
               n * sizeof(*tile->place));
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct kv_store *s = side->store;
    const size_t capacity = capacity_of(side);
    struct tile *tile = kv_alloc(1, sizeof(*tile));

    for (size_t j = i * TILES; j < (i + 1) * TILES; j++) {
        read_listed(side, head, j, tile, to);
        put_lists(s, tile, 0, tile->n < capacity ? tile->n : capacity,
                  capacity + KV_LEVELS_PAD, to + outliers_at(s));
        put_codes(s, tile, to + head_bytes(side));
        clear_tile(tile);
        to += tile_bytes(side);
    }
    free(tile);
}

/* The number of outliers of a tile of the CPU beyond the capacity. */
static size_t left_over(const struct kv_gpu_side *side, size_t head, size_t i)
{
    const struct kv_levels_outliers *o =
        kv_store_outliers(side->store, kv_store_tile(side->store, head, i));
    const size_t capacity = capacity_of(side);

    return o && o->n > capacity ? o->n - capacity : 0;
}

static size_t put_rest(const struct kv_gpu_side *side, size_t head, size_t n,
                       uint8_t *tiles)
{
    const struct kv_store *s = side->store;
    const size_t first = TILES * n * tile_bytes(side);
    struct tile *tile = kv_alloc(1, sizeof(*tile));
    size_t at = first;

    for (size_t i = 0; i < TILES * n; i++) {
        const size_t left = left_over(side, head, i);
        const size_t padded = (left + 7) / 8 * 8;
        const uint32_t line = (uint32_t)(at / LINE);

        if (left && tiles) {
            read_listed(side, head, i, tile, NULL);
            put_lists(s, tile, capacity_of(side), left, padded, tiles + at);
            memcpy(tiles + i * tile_bytes(side) + rest_at(s), &line,
                   sizeof(line));
            clear_tile(tile);
        }
        at += list_bytes(s, padded);
    }
    free(tile);
    return at - first;
}

/* ---- the family ---------------------------------------------------------- */

/* Whether halves hold all dequantized keys, before and after RoPE. */
static bool in_range(const struct kv_store *s)
{
    const struct kv_levels_tiles *n = levels_of(s);
    float max = 0;

    for (size_t i = 0; i < level_count(s); i++)
        max = fmaxf(max, fabsf(n->scaled.table[i]));
    for (size_t i = 0; i < s->n_heads * s->head_dim; i++)
        if (fabsf(n->offset[i]) + fabsf(n->half[i]) * max > MAX_RANGE)
            return false;
    return true;
}

bool kv_gpu_levels_open(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;

    if (s->family != &kv_family_levels ||
        (s->head_dim != 64 && s->head_dim != 128) ||
        (!s->values &&
         !(in_range(s) && kv_tiles_rope_halves(levels_of(s)->rope))))
        return false;
    side->path = KV_PATH_EXACT;
    side->tile_bytes = TILES * tile_bytes(side);
    side->pack = pack;
    side->behind = put_rest;
    make_table(side);
    return true;
}

struct kv_gpu_levels_params kv_gpu_levels_of(const struct kv_gpu_side *side)
{
    return (struct kv_gpu_levels_params){
        .scaled = {.table = side->device_table,
                   .times = side->store->values ? 1 / factor_of(side) : 1},
        .apart = side->n_tables > 1 ? side->table_bytes : 0,
        .capacity = (unsigned)capacity_of(side),
    };
}
