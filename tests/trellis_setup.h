/* Shared by the tests of the trellis: transitions of every kind with random
 * tables, and values to encode. */
#ifndef KV_TRELLIS_SETUP_H
#define KV_TRELLIS_SETUP_H

#include "kernels/trellis/trellis.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>

enum { KINDS = 22, MAX_TRANSITIONS = 40 };

/* Transitions of every kind, with random tables. */
struct setup {
    float *table[KINDS];
    struct kv_trellis_transition transition[MAX_TRANSITIONS];
    struct kv_trellis_whole whole[MAX_TRANSITIONS * 4];
    size_t n_transitions, n_values;
    float x[MAX_TRANSITIONS * 4], scale[MAX_TRANSITIONS * 4];
    uint32_t place[MAX_TRANSITIONS * 4]; /* the last value first */
};

/* The kinds: bits and values of a transition, and whether its table holds
 * levels, which depend only on the transition's own bits. */
static const struct {
    unsigned bits, values;
    bool levels;
} kinds[KINDS] = {{1, 4, false}, {1, 2, false}, {3, 4, false}, {1, 1, false},
                  {3, 2, false}, {4, 2, false}, {4, 1, false}, {3, 1, false},
                  {5, 1, false}, {8, 1, false}, {7, 1, false}, {6, 1, false},
                  {1, 1, true},  {2, 1, true},  {3, 1, true},  {4, 1, true},
                  {5, 1, true},  {6, 1, true},  {8, 1, true},  {2, 3, false},
                  {2, 2, false}, {2, 1, false}};

/* ORDINARY: values of one size.  FILLED: larger with more bits, so that the
 * expected error is one.  TIES: whole numbers, so that many paths cost the
 * same. */
enum data { ORDINARY, FILLED, TIES };

static inline void fill_table(const struct setup *s, size_t k, uint64_t seed,
                              enum data data)
{
    const unsigned bits = kinds[k].bits, values = kinds[k].values;
    float kept[KV_TRELLIS_MAX_VALUES * KV_TRELLIS_ENTRIES];

    for (size_t i = 0; i < sizeof(kept) / sizeof(*kept); i++) {
        kept[i] = (float)kv_random_normal(seed + k, i);
        kept[i] = data == TIES ? rintf(2 * kept[i]) : kept[i];
    }
    if (!kinds[k].levels)
        kv_trellis_unfold(bits, values, kept, s->table[k]);
    else
        for (size_t i = 0; i < KV_TRELLIS_STATES; i++)
            s->table[k][i] = kept[i % ((size_t)1 << bits)];
}

/* Sets up transitions of one kind after another, from kind `skip` on, each
 * `often` times. */
static inline void set_up(struct setup *s, size_t n_transitions, size_t skip,
                          size_t often, uint64_t seed, enum data data)
{
    float size[MAX_TRANSITIONS * 4];

    *s = (struct setup){.n_transitions = n_transitions};
    for (size_t k = 0; k < KINDS; k++) {
        s->table[k] =
            kv_alloc(kinds[k].values * KV_TRELLIS_STATES, sizeof(float));
        fill_table(s, k, seed, data);
    }
    for (size_t i = 0; i < n_transitions; i++) {
        const size_t k = (i / often + skip) % KINDS;

        s->transition[i] = kv_trellis_transition(kinds[k].bits, kinds[k].values,
                                                 s->table[k], !kinds[k].levels);
        for (size_t v = 0; v < kinds[k].values; v++, s->n_values++) {
            const float rate = (float)kinds[k].bits / (float)kinds[k].values;
            const float one = data == FILLED ? exp2f(rate) : 1;

            s->scale[s->n_values] =
                data == TIES
                    ? 1
                    : one * (0.5f + kv_random_unit(seed + 50, s->n_values));
            size[s->n_values] = 2 * one;
        }
    }
    for (size_t i = 0; i < s->n_values; i++)
        s->place[i] = (uint32_t)(s->n_values - 1 - i);
    for (size_t i = 0; i < s->n_values; i++)
        s->x[s->place[i]] =
            size[i] * (float)kv_random_normal(seed + 60, s->place[i]);
    kv_trellis_count(s->transition, n_transitions, s->scale, s->whole);
}

static inline void tear_down(struct setup *s)
{
    for (size_t k = 0; k < KINDS; k++)
        free(s->table[k]);
}

#endif
