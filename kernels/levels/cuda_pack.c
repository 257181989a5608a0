/* Levels and outliers in the order of nuq_codes.h. */
#include "kernels/levels/cuda_pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = KV_NUQ_TILE,
    STEP = KV_NUQ_STEP,
    STEPS = TOKENS / STEP,
    TILES = 2,      /* in one of 128 tokens */
    KEYS_LINE = 16, /* bytes of ends and rest */
    UNIT_LINE = 16,
    LINE = 16 /* what rest counts in */
};

/* Beyond, a turned pair might pass what halves hold.  What an outlier is more
 * than its code is cut to halves, which only passes them where the key does by
 * half. */
static const float MOST_RANGE = 0x1p13f;

_Static_assert((int)TOKENS == KV_TILE_TOKENS, "a tile is one of the CPU's");

unsigned kv_gpu_nuq_bits(const struct kv_store *s)
{
    return kv_nuq_of(s)->scaled.bits;
}

/* ---- sizes --------------------------------------------------------------- */

static size_t room_of(const struct kv_gpu_side *side)
{
    const size_t most = side->owned
                            ? (side->owned - sizeof(struct kv_nuq_outliers)) /
                                  sizeof(struct kv_nuq_outlier)
                            : 0;

    return most < KV_NUQ_ROOM ? (most + 7) / 8 * 8 : KV_NUQ_ROOM;
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

/* Of so many outliers. */
static size_t list_bytes(const struct kv_store *s, size_t n)
{
    return n * (sizeof(uint32_t) + (s->values ? 0 : sizeof(uint16_t)));
}

static size_t head_bytes(const struct kv_gpu_side *side)
{
    return outliers_at(side->store) +
           list_bytes(side->store, room_of(side) + KV_NUQ_PAD);
}

static size_t code_bytes(const struct kv_store *s)
{
    return STEP * s->head_dim * kv_gpu_nuq_bits(s) / 8;
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

/* What of a tile of the CPU is packed. */
struct tile {
    const struct kv_nuq_outlier *x;
    size_t n;
    uint16_t code[TOKENS][KV_NUQ_MOST_DIM];
    float offset[TOKENS], half[TOKENS]; /* of values */
    float *more;     /* [n]: what outliers are more than their codes */
    uint32_t *word;  /* [n], listed */
    uint16_t *place; /* .. of keys */
};

static size_t token_of(const struct kv_nuq_outlier *x)
{
    return x->place / KV_NUQ_CHANNELS;
}

static size_t channel_at(const struct kv_nuq_outlier *x)
{
    return x->place % KV_NUQ_CHANNELS;
}

/* The code nearest to an outlier; gives what it is more. */
static float nearest(const struct kv_store *s, float offset, float half,
                     float x, uint16_t *code)
{
    const float *level = kv_nuq_of(s)->scaled.table;
    float best = INFINITY;

    for (uint16_t i = 0; i < kv_nuq_levels(s); i++) {
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
    const struct kv_nuq_outliers *o = kv_store_outliers(s, from);
    const size_t d = s->head_dim;
    const uint8_t *offsets =
        from + s->tile_bytes - KV_NUQ_LINE - KV_NUQ_OFFSETS;

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
                      : nearest(s, kv_nuq_of(s)->offset[head * d + c],
                                kv_nuq_of(s)->half[head * d + c],
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
        .bits = kv_gpu_nuq_bits(s),
        .head_dim = s->head_dim,
        .tokens = STEP,
    };

    for (size_t t = 0; t < TOKENS; t++)
        for (size_t c = 0; c < s->head_dim; c++)
            kv_gpu_put_code(&string, t % STEP, c, tile->code[t][c],
                            steps + t / STEP * step_bytes(s));
}

/* Where the queries have pair i of channels, of row 0, in bytes (nuq.cuh). */
static size_t place_of_pair(size_t i)
{
    return ((i / 8 * 2 + i % 2) * KV_NUQ_LANES + i % 8 / 2) * 2 * sizeof(float);
}

/* An outlier's share of its pair of channels, turned by its token's angles. */
static uint32_t turned(float more, bool high, const float *angle)
{
    return high ? kv_nuq_two(-more * angle[1], more * angle[0])
                : kv_nuq_two(more * angle[0], more * angle[1]);
}

/* Tokens ascend. */
static void list_keys(const struct kv_gpu_side *side, size_t head,
                      size_t position, const struct tile *tile)
{
    const struct kv_store *s = side->store;
    const size_t half = s->head_dim / 2;
    float angle[KV_NUQ_MOST_DIM];

    for (size_t i = 0; i < tile->n; i++) {
        const size_t t = token_of(&tile->x[i]), c = channel_at(&tile->x[i]);
        const float more =
            tile->more[i] / kv_nuq_table_share(side, head, c % half);

        if (i == 0 || t != token_of(&tile->x[i - 1]))
            kv_tiles_rope_angles(kv_nuq_of(s)->rope, position + t, angle);
        tile->word[i] = turned(more, c >= half, angle + c % half * 2);
        tile->place[i] = (uint16_t)(KV_NUQ_TOKEN(t) | place_of_pair(c % half));
    }
}

static void head_of_keys(const struct kv_store *s, size_t position,
                         const struct tile *tile, uint8_t *to)
{
    float angle[KV_NUQ_MOST_DIM];
    uint16_t end[TOKENS / 16] = {0};

    kv_tiles_rope_angles(kv_nuq_of(s)->rope, position, angle);
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
    float most = 0;

    for (size_t t = 0; t < TOKENS; t++)
        most = fmaxf(most, fabsf(tile->half[t]));
    for (size_t i = 0; i < tile->n; i++)
        most = fmaxf(most, fabsf(tile->more[i] * by));
    return kv_gpu_unit(most);
}

/* Steps ascend, in each of them blocks of 16 channels; end: of each. */
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
                    (uint32_t)(KV_NUQ_CHANNEL(c) | t % STEP / 2 << 5 |
                               (t % 2 ? 0 : KV_NUQ_EVEN) | t / STEP |
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

/* A tile of the CPU, its outliers listed; and, where `to` is a tile of the
 * device, not NULL, the head and the scales of that. */
static void read_listed(const struct kv_gpu_side *side, size_t head, size_t i,
                        struct tile *tile, uint8_t *to)
{
    const struct kv_store *s = side->store;
    const uint8_t *from = kv_store_tile(s, head, i);

    read_tile(s, head, from, tile);
    if (s->values) {
        const float by = kv_nuq_table_factor(side), unit = unit_of(tile, by);
        uint16_t end[STEPS * KV_NUQ_MOST_DIM / 16];

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

/* Outliers [first, first + n) as lists with this room. */
static void put_lists(const struct kv_store *s, const struct tile *tile,
                      size_t first, size_t n, size_t room, uint8_t *to)
{
    memcpy(to, tile->word + first, n * sizeof(*tile->word));
    if (!s->values)
        memcpy(to + room * sizeof(*tile->word), tile->place + first,
               n * sizeof(*tile->place));
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct kv_store *s = side->store;
    const size_t room = room_of(side);
    struct tile *tile = kv_alloc(1, sizeof(*tile));

    for (size_t j = i * TILES; j < (i + 1) * TILES; j++) {
        read_listed(side, head, j, tile, to);
        put_lists(s, tile, 0, tile->n < room ? tile->n : room,
                  room + KV_NUQ_PAD, to + outliers_at(s));
        put_codes(s, tile, to + head_bytes(side));
        clear_tile(tile);
        to += tile_bytes(side);
    }
    free(tile);
}

/* Outliers of a tile of the CPU that there is no room for. */
static size_t left_over(const struct kv_gpu_side *side, size_t head, size_t i)
{
    const struct kv_nuq_outliers *o =
        kv_store_outliers(side->store, kv_store_tile(side->store, head, i));
    const size_t room = room_of(side);

    return o && o->n > room ? o->n - room : 0;
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
            put_lists(s, tile, room_of(side), left, padded, tiles + at);
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

/* Whether halves hold all that keys' codes stand for, and what it turns to. */
static bool in_range(const struct kv_store *s)
{
    const struct kv_nuq_tiles *n = kv_nuq_of(s);
    float most = 0;

    for (size_t i = 0; i < kv_nuq_levels(s); i++)
        most = fmaxf(most, fabsf(n->scaled.table[i]));
    for (size_t i = 0; i < s->n_heads * s->head_dim; i++)
        if (fabsf(n->offset[i]) + fabsf(n->half[i]) * most > MOST_RANGE)
            return false;
    return true;
}

bool kv_gpu_nuq_open(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;

    if (s->family != &kv_family_nuq ||
        (s->head_dim != 64 && s->head_dim != 128) ||
        (!s->values && !in_range(s)))
        return false;
    side->path = KV_PATH_EXACT;
    side->tile_bytes = TILES * tile_bytes(side);
    side->pack = pack;
    side->behind = put_rest;
    kv_nuq_table_make(side);
    return true;
}

struct kv_gpu_nuq kv_gpu_nuq_of(const struct kv_gpu_side *side)
{
    return (struct kv_gpu_nuq){
        .scaled = {.table = side->device_table,
                   .times =
                       side->store->values ? 1 / kv_nuq_table_factor(side) : 1},
        .apart = side->n_tables > 1 ? side->table_bytes : 0,
        .room = (unsigned)room_of(side),
    };
}
