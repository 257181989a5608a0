/* kernels/trellis: the same bytes at every level (trellis.h), by itself or
 * beside others. */
#include "kernels/trellis/impl.h"
#include "tests/ops/ops.h"
#include "tests/trellis_setup.h"

#include <assert.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

enum { STRINGS = 19, BYTES = 4 * MAX_TRANSITIONS };

struct encoding {
    struct setup s;
    float x[STRINGS * MAX_TRANSITIONS * 4];
    void *workspace;
};

/* Scales and numbers of 0, of nearly nothing and of nearly the most a float can
 * be, in all values or in every third, and values as large. */
static void stretch(struct setup *s, size_t i)
{
    static const float by[] = {0, 1e-38f, 1e-12f, 1, 1e12f, 1e38f};
    const float scale = by[i % COUNT(by)],
                number = by[i / COUNT(by) % COUNT(by)];
    const size_t apart = i / COUNT(by) / COUNT(by) % 2 ? 1 : 3;

    for (size_t k = i % apart; k < KINDS; k += apart)
        for (size_t j = 0; j < kinds[k].values * KV_TRELLIS_STATES; j++)
            s->table[k][j] =
                fmaxf(fminf(s->table[k][j] * number, FLT_MAX), -FLT_MAX);
    for (size_t j = 0; j < s->n_transitions; j++)
        s->transition[j] = kv_trellis_transition(
            s->transition[j].bits, s->transition[j].values,
            s->transition[j].table, s->transition[j].folded);
    for (size_t j = i % apart; j < s->n_values; j += apart)
        s->scale[j] *= scale;
    for (size_t j = 0; j < s->n_values; j += 5)
        s->x[j] *= i / COUNT(by) / COUNT(by) / 2 ? 1e37f : 1;
}

/* Transitions of different bits that have one table: of 1 to 5 bits for one
 * value, of 1 to 3 for two and four. */
static void share_table(struct setup *s, size_t i)
{
    static const size_t max_bits[] = {5, 3, 3};

    for (size_t j = 0; j < s->n_transitions; j++)
        s->transition[j].bits = 1 + (unsigned)(j / 4 % max_bits[i % 3]);
}

static void *open_encoding(size_t i, struct check_size *size)
{
    enum { MIXED = 2 * KINDS, STRETCHED = 144, SHARED = 60 };
    static const size_t shared_kind[] = {3, 1, 0};
    const size_t j = i < MIXED ? i : i - MIXED;
    const enum data data = i >= KINDS && i < MIXED ? TIES : ORDINARY;
    struct encoding *e;

    if (i == MIXED + STRETCHED + SHARED)
        return NULL;
    e = kv_alloc(1, sizeof(*e));
    if (i < MIXED) {
        set_up(&e->s, MAX_TRANSITIONS - i % KINDS, i % KINDS,
               1 + (i + i / KINDS) % 4, 7 * i, data);
    } else if (j < STRETCHED) {
        set_up(&e->s, MAX_TRANSITIONS, j % KINDS, 1, j, ORDINARY);
        stretch(&e->s, j);
    } else {
        set_up(&e->s, MAX_TRANSITIONS, shared_kind[j % 3], MAX_TRANSITIONS, j,
               ORDINARY);
        share_table(&e->s, j);
    }
    if (i >= MIXED)
        kv_trellis_count(e->s.transition, e->s.n_transitions, e->s.scale,
                         e->s.whole);
    for (size_t v = 0; v < e->s.n_values; v++)
        assert(isfinite(e->s.whole[v].x) && isfinite(e->s.whole[v].number));
    snprintf(size->label, sizeof(size->label), "%zu of %zu transitions, %s %zu",
             (size_t)STRINGS, e->s.n_transitions,
             i < MIXED       ? "mixed"
             : j < STRETCHED ? "stretched"
                             : "shared",
             j);
    size->timed = i == 0;
    for (size_t v = 0; v < STRINGS * e->s.n_values; v++) {
        const float x = 2 * (float)kv_random_normal(i, v);

        e->x[v] = v < e->s.n_values && i >= MIXED ? e->s.x[v]
                  : data == TIES                  ? rintf(x)
                                                  : x;
    }
    e->workspace = malloc(
        kv_trellis_workspace(e->s.transition, e->s.n_transitions, STRINGS));
    return e;
}

static void close_encoding(void *in)
{
    struct encoding *e = in;

    tear_down(&e->s);
    free(e->workspace);
    free(e);
}

static size_t encode(const void *in, void *out)
{
    const struct encoding *e = in;
    const struct setup *s = &e->s;

    memset(out, 0, STRINGS * BYTES);
    kv_trellis_encode(s->transition, s->n_transitions, e->x, s->n_values,
                      s->place, s->whole, STRINGS, e->workspace, out, BYTES);
    return STRINGS * BYTES;
}

/* The first alone. */
static size_t encode_one(const void *in, void *out)
{
    const struct encoding *e = in;
    const struct setup *s = &e->s;

    kv_trellis_encode(s->transition, s->n_transitions, e->x, 0, s->place,
                      s->whole, 1, e->workspace, out, 0);
    return kv_trellis_bytes(s->transition, s->n_transitions);
}

static const struct check_op ops[] = {
    {"encode",
     RUNS(struct kv_trellis_ops, advance) |
         RUNS(struct kv_trellis_ops, subtract_min),
     0, encode},
    {"encode one", 0, 0, encode_one},
};

const struct check_family check_trellis = {
    "trellis",     MEMBERS(struct kv_trellis_ops),
    ops,           COUNT(ops),
    false,         open_encoding,
    close_encoding};
