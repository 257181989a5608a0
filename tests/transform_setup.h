/* Shared by the tests of family "transform": tokens as random bitstreams in
 * tiles, and their decoded values. */
#ifndef KV_TRANSFORM_SETUP_H
#define KV_TRANSFORM_SETUP_H

#include "kernels/tiles/rope.h"
#include "kernels/transform/transform.h"
#include "kernels/trellis/trellis.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>

enum { HEADS = 3, MAX_D = 128, TOKENS = 100, KINDS = 6, ROWS = 8 };

/* The first transitions of a bitstream are levels, whose bits may end within a
 * byte. */
enum { LEVELS = 40, TRANSITIONS = LEVELS + 170 };

/* The kinds of transitions after the levels: 7 to 1 bits, for one value or
 * several.  Transitions of odd bits end within a byte. */
static const struct kv_trellis_transition kinds[KINDS] = {
    {.bits = 7, .values = 1}, {.bits = 5, .values = 1},
    {.bits = 3, .values = 2}, {.bits = 4, .values = 2},
    {.bits = 2, .values = 1}, {.bits = 1, .values = 4}};

struct made {
    float table[KINDS][KV_TRELLIS_MAX_VALUES * KV_TRELLIS_STATES];
    float level[9][KV_TRELLIS_STATES]; /* indexed by bits */
    struct kv_trellis_transition transition[TRANSITIONS];
    size_t d, n_values, bytes, n[HEADS];
    struct kv_transform_coef coef[TRANSITIONS * KV_TRELLIS_MAX_VALUES];
    size_t value[HEADS][MAX_D]; /* where the bitstream has a head's i-th
                                 * value */
    float unit8[HEADS][MAX_D];  /* the scale of int8 codes from the value's
                                 * table */
    float unit[MAX_D][MAX_D], mean[HEADS * MAX_D];
    uint8_t *bitstream; /* [TOKENS][bytes] */
    float *decoded;     /* [TOKENS][n_values] */
};

/* Makes the tables; a table of levels repeats its entries. */
static inline void make_tables(struct made *m)
{
    float kept[KV_TRELLIS_MAX_VALUES * KV_TRELLIS_ENTRIES / 2];

    for (size_t bits = 1; bits <= 8; bits++)
        for (size_t i = 0; i < KV_TRELLIS_STATES; i++)
            m->level[bits][i] =
                (float)kv_random_normal(KINDS + bits, i % ((size_t)1 << bits));
    for (size_t t = 0; t < KINDS; t++) {
        for (size_t i = 0; i < sizeof(kept) / sizeof(*kept); i++)
            kept[i] = (float)kv_random_normal(t, i);
        kv_trellis_unfold(kinds[t].bits, kinds[t].values, kept, m->table[t]);
    }
}

/* The kind of the i-th transition; most have kind 4, so that each head gets a
 * few dozen of its coefficients. */
static inline size_t kind_of(size_t i)
{
    return i < 40 ? i / 10 : i < 160 ? 4 : 5;
}

static inline void make_transitions(struct made *m)
{
    for (size_t i = 0; i < LEVELS; i++) {
        const unsigned bits = i < 8 ? 7 : 1 + (unsigned)kv_random(9, i) % 8;

        m->transition[i] = (struct kv_trellis_transition){
            .bits = bits, .values = 1, .table = m->level[bits]};
    }
    for (size_t i = LEVELS; i < TRANSITIONS; i++) {
        const size_t kind = kind_of(i - LEVELS);

        m->transition[i] = kinds[kind];
        m->transition[i].table = m->table[kind];
    }
    for (size_t i = 0; i < TRANSITIONS; i++)
        m->n_values += m->transition[i].values;
    m->bytes = kv_trellis_bytes(m->transition, TRANSITIONS);
}

static inline float unit8_of(const float *table)
{
    float max = 0;

    for (size_t s = 0; s < KV_TRELLIS_STATES; s++)
        max = fmaxf(max, fabsf(table[s]));
    return max / 127;
}

/* Deals the values out to heads; values for a head that is full are left
 * out. */
static inline void make_coefs(struct made *m, size_t max)
{
    struct kv_transform_coef *to = m->coef;

    for (size_t h = 0; h < HEADS; h++) {
        size_t end = 0, value = 0;

        for (size_t i = 0; i < TRANSITIONS; i++) {
            end += m->transition[i].bits;
            for (unsigned v = 0; v < m->transition[i].values; v++, value++) {
                if (kv_random(77, value) % HEADS != h || m->n[h] == max)
                    continue;
                *to++ = (struct kv_transform_coef){
                    .end = end,
                    .table = m->transition[i].table + v * KV_TRELLIS_STATES,
                    .map = i < LEVELS
                               ? kv_trellis_last_bits(m->transition[i].bits)
                               : kv_trellis_map(m->transition[i].bits,
                                                m->transition[i].values),
                    .scale = 1,
                    .inverse = m->unit[m->n[h]]};
                m->unit8[h][m->n[h]] = unit8_of(to[-1].table);
                m->value[h][m->n[h]++] = value;
            }
        }
    }
    for (size_t i = 0; i < MAX_D; i++)
        m->unit[i][i] = 1;
}

/* Makes tokens with heads of d channels and up to max coefficients each. */
static inline struct made *make(size_t d, size_t max)
{
    struct made *m = kv_alloc(1, sizeof(*m));
    float one[TRANSITIONS * KV_TRELLIS_MAX_VALUES];
    uint32_t place[TRANSITIONS * KV_TRELLIS_MAX_VALUES];

    m->d = d;
    make_tables(m);
    make_transitions(m);
    make_coefs(m, max);
    for (size_t i = 0; i < m->n_values; i++) {
        one[i] = 1;
        place[i] = (uint32_t)i;
    }
    m->bitstream = kv_alloc(TOKENS, m->bytes);
    m->decoded = kv_alloc(TOKENS, m->n_values * sizeof(float));
    for (size_t i = 0; i < TOKENS * m->bytes; i++)
        m->bitstream[i] = (uint8_t)kv_random(5, i);
    kv_trellis_decode(m->transition, TRANSITIONS, m->bitstream, m->bytes, one,
                      TOKENS, m->decoded, m->n_values, place);
    return m;
}

static inline void free_made(struct made *m)
{
    free(m->bitstream);
    free(m->decoded);
    free(m);
}

static inline struct kv_transform *fill(const struct made *m, bool values,
                                        const struct kv_tiles_rope *rope,
                                        struct kv_store *s)
{
    struct kv_transform *c = kv_transform_new(
        &(struct kv_transform_about){.n_heads = HEADS,
                                     .head_dim = m->d,
                                     .bitstream_bytes = m->bytes,
                                     .n = m->n,
                                     .coef = m->coef,
                                     .mean = m->mean,
                                     .rope = rope,
                                     .values = values,
                                     .int8 = true});

    *s =
        (struct kv_store){.values = values, .n_heads = HEADS, .head_dim = m->d};
    kv_store_transform(s, c);
    kv_store_resize(s, TOKENS);
    for (size_t t = 0; t < TOKENS; t++)
        kv_store_put_bitstream(s, t % KV_TILE_TOKENS,
                               m->bitstream + t * m->bytes,
                               kv_store_tile(s, 0, t / KV_TILE_TOKENS));
    return c;
}

#endif
