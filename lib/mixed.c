#include "lib/base/alloc.h"
#include "lib/mixed_impl.h"
#include "lib/policy.h"
#include "lib/scheme.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct kv_scheme kv_scheme_mixed = {
    .name = "mixed",
    .brief = "KVTuner: a spec for each layer and side, from a file",
};

const struct kv_spec *kv_spec_at(const struct kv_spec *s, size_t layer,
                                 enum kv_side side)
{
    if (!s->mixed)
        return s;
    if (!s->mixed->n_layers)
        return &s->mixed->member[side];
    assert(layer < s->mixed->n_layers);
    return &s->mixed->member[s->mixed->place[layer][side].member];
}

size_t kv_spec_members(const struct kv_spec *s)
{
    return s->mixed ? s->mixed->n_members : 1;
}

const struct kv_spec *kv_spec_member(const struct kv_spec *s, size_t i)
{
    return s->mixed ? &s->mixed->member[i] : s;
}

bool kv_spec_calibrated(const struct kv_spec *s)
{
    if (kv_policy_calibrated(&s->policy))
        return true;
    for (size_t i = 0; i < kv_spec_members(s); i++) {
        const struct kv_spec *m = kv_spec_member(s, i);

        if (m->scheme->training || kv_spec_is(m, KV_K, "massive", "yes") ||
            kv_spec_is(m, KV_V, "massive", "yes"))
            return true;
    }
    return false;
}

bool kv_spec_needs_queries(const struct kv_spec *s)
{
    for (size_t i = 0; i < kv_spec_members(s); i++)
        if (kv_spec_member(s, i)->scheme->probe)
            return true;
    return false;
}

bool kv_spec_together(const struct kv_spec *s)
{
    for (size_t i = 0; i < kv_spec_members(s); i++)
        if (kv_spec_member(s, i)->scheme->attend)
            return true;
    return kv_spec_needs_queries(s);
}

const struct kv_layered *kv_spec_layered(const struct kv_spec *s, size_t layer)
{
    return s->scheme->layered ? s->scheme->layered(s, layer) : NULL;
}

bool kv_spec_read_above(const struct kv_spec *s, size_t layer)
{
    const struct kv_layered *above = kv_spec_layered(s, layer + 1);

    return above && above->n_below;
}

bool kv_spec_spans(const struct kv_spec *s)
{
    return s->scheme->spans && s->scheme->spans(s);
}

bool kv_spec_reads_below(const struct kv_spec *s)
{
    return kv_spec_read_above(s, 0);
}

int kv_spec_alone(const struct kv_spec *specs, size_t n, const char *what,
                  struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (kv_spec_reads_below(&specs[i]) || kv_spec_spans(&specs[i]))
            return kv_fail(e,
                           "%s wants layers that stand alone: %s decodes "
                           "layers %s",
                           what, specs[i].text,
                           kv_spec_spans(&specs[i]) ? "all together"
                                                    : "from those below");
    return 0;
}

int kv_spec_in_place(const struct kv_spec *specs, size_t n, const char *what,
                     struct kv_err *e)
{
    for (size_t i = 0; i < n; i++) {
        const struct kv_layered *layered = kv_spec_layered(&specs[i], 0);

        if (kv_spec_spans(&specs[i]))
            return kv_fail(e,
                           "%s attends in place: %s has no path in place, it "
                           "decodes all layers together",
                           what, specs[i].text);
        if (layered && !layered->in_place)
            return kv_fail(e,
                           "%s attends in place: %s has no path in place, it "
                           "decodes each layer from those below",
                           what, specs[i].text);
    }
    return 0;
}

/* ---- kept until the program ends ---------------------------------------- */

struct kept {
    struct kv_mixed mixed;
    struct kept *next;
};

void kv_mixed_clear(struct kv_mixed *m)
{
    free(m->path);
    free(m->member);
    free(m->place);
    *m = (struct kv_mixed){0};
}

static bool same(const struct kv_mixed *a, const struct kv_mixed *b)
{
    if (strcmp(a->path, b->path) || strcmp(a->hash, b->hash) ||
        a->n_layers != b->n_layers || a->n_members != b->n_members)
        return false;
    for (size_t i = 0; i < a->n_members; i++)
        if (strcmp(a->member[i].text, b->member[i].text))
            return false;
    return !a->n_layers ||
           !memcmp(a->place, b->place, a->n_layers * sizeof(*a->place));
}

const struct kv_mixed *kv_mixed_keep(struct kv_mixed *m)
{
    static struct kept
        *all; /* all mixed specs that the process has made; only grows */
    const struct kv_mixed *found = NULL;

#pragma omp critical(kv_mixed)
    {
        for (const struct kept *k = all; k && !found; k = k->next)
            found = same(&k->mixed, m) ? &k->mixed : NULL;
        if (found) {
            kv_mixed_clear(m);
        } else {
            struct kept *k = kv_alloc(1, sizeof(*k));

            *k = (struct kept){*m, all};
            all = k;
            found = &k->mixed;
        }
    }
    return found;
}

size_t kv_mixed_add_member(struct kv_mixed *m, const struct kv_spec *spec)
{
    size_t i = 0;

    while (i < m->n_members && strcmp(m->member[i].text, spec->text))
        i++;
    if (i == m->n_members) {
        m->member = kv_realloc(m->member, i + 1, sizeof(*m->member));
        m->member[m->n_members++] = *spec;
    }
    return i;
}

void kv_mixed_hash_places(struct kv_mixed *m)
{
    struct kv_hash *h = kv_hash_new();

    for (size_t i = 0; i < m->n_layers * KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)(i % KV_SIDES);
        char line[KV_SPEC_CHARS + 32];
        const int n = snprintf(
            line, sizeof(line), "%zu %c %s\n", i / KV_SIDES, kv_side_name(side),
            m->member[m->place[i / KV_SIDES][side].member].text);

        kv_hash_add(h, line, (size_t)n);
    }
    kv_hash_end(h, m->hash);
}

/* Leaves s and r to the places. */
static void place_letters(struct kv_spec *s)
{
    s->scheme = &kv_scheme_mixed;
    for (int side = 0; side < KV_SIDES; side++)
        for (const char *letter = "rs"; *letter; letter++)
            kv_spec_set(s, (enum kv_side)side, (char[]){*letter, 0},
                        KV_AS_PLACED);
}

void kv_mixed_make(struct kv_spec *s, const char *name,
                   const struct kv_spec *place, size_t n_layers)
{
    struct kv_mixed m = {.path = kv_strdup(name), .n_layers = n_layers};

    snprintf(m.name, sizeof(m.name), "%s", name);
    m.place = kv_alloc(n_layers, sizeof(*m.place));
    for (size_t i = 0; i < n_layers * KV_SIDES; i++)
        m.place[i / KV_SIDES][i % KV_SIDES] =
            (struct kv_place){kv_mixed_add_member(&m, &place[i]), i + 1};
    kv_mixed_hash_places(&m);
    *s = (struct kv_spec){.mixed = kv_mixed_keep(&m)};
    place_letters(s);
    kv_spec_print(s);
}

int kv_mixed_sides(struct kv_spec *s, const struct kv_spec side[KV_SIDES],
                   struct kv_err *e)
{
    enum { ROOM = 64 }; /* for a policy, and for text that fitting adds */
    struct kv_mixed m = {.n_members = KV_SIDES};

    if (strlen(side[KV_K].text) + strlen(side[KV_V].text) + ROOM >
        KV_SPEC_CHARS)
        return kv_fail(e,
                       "the specs of K and V are too long together: at most %d "
                       "characters",
                       KV_SPEC_CHARS - ROOM);
    for (int i = 0; i < KV_SIDES; i++)
        if (kv_spec_together(&side[i]))
            return kv_fail(e,
                           "%s takes the keys and values of a layer together: "
                           "both want it",
                           side[i].scheme->name);
        else if (kv_spec_layered(&side[i], 0))
            return kv_fail(e,
                           "%s is predicted from the layers below or its "
                           "own keys, K and V: both want it",
                           side[i].text);
        else if (kv_spec_spans(&side[i]))
            return kv_fail(e, "%s spans all layers: K and V both want it",
                           side[i].text);
    m.path = kv_strdup("");
    m.member = kv_alloc(KV_SIDES, sizeof(*m.member));
    memcpy(m.member, side, KV_SIDES * sizeof(*m.member));
    s->mixed = kv_mixed_keep(&m);
    place_letters(s);
    kv_spec_print(s);
    return 0;
}

/* ---- fitting ----------------------------------------------------------- */

static int check_count(const struct kv_mixed *m, size_t n_layers,
                       struct kv_err *e)
{
    if (m->n_layers < n_layers)
        return kv_fail(e, "%s: layer %zu, K is not named: the model has %zu",
                       m->path, m->n_layers, n_layers);
    if (m->n_layers > n_layers) {
        const struct kv_place *p = m->place[n_layers];

        return kv_fail(e,
                       "%s:%zu: layer %zu is named: expected layers 0 to %zu",
                       m->path, p[KV_K].line, n_layers, n_layers - 1);
    }
    return 0;
}

/* The line that first names the member. */
static size_t line_of(const struct kv_mixed *m, size_t member)
{
    size_t line = SIZE_MAX;

    for (size_t i = 0; i < m->n_layers * KV_SIDES; i++) {
        const struct kv_place *p = &m->place[i / KV_SIDES][i % KV_SIDES];

        if (p->member == member && p->line < line)
            line = p->line;
    }
    return line;
}

static int fit_member(struct kv_spec *s, const struct kv_spec *mixed,
                      const struct kv_shape *shape, struct kv_err *e)
{
    for (int side = 0; side < KV_SIDES; side++)
        for (const char *letter = "rs"; *letter; letter++) {
            const char name[] = {*letter, 0};
            const double x = kv_spec_get(mixed, (enum kv_side)side, name);

            if (x != KV_AS_PLACED)
                kv_spec_set(s, (enum kv_side)side, name, x);
        }
    return kv_spec_fit(s, shape, e);
}

/* Fits a spec that is used for one side.  The other side gets the same values,
 * so that the text does not name it. */
static int fit_side(struct kv_spec *s, const struct kv_spec *mixed,
                    enum kv_side side, const struct kv_shape *shape,
                    struct kv_err *e)
{
    if (fit_member(s, mixed, shape, e))
        return -1;
    memcpy(s->value[1 - side], s->value[side], sizeof(s->value[side]));
    kv_spec_print(s);
    return 0;
}

static int fit_sides(const struct kv_mixed **out, const struct kv_spec *mixed,
                     const struct kv_shape *shape, struct kv_err *e)
{
    struct kv_mixed m = *mixed->mixed;

    m.path = kv_strdup("");
    m.member = kv_alloc(KV_SIDES, sizeof(*m.member));
    memcpy(m.member, mixed->mixed->member, KV_SIDES * sizeof(*m.member));
    for (int i = 0; i < KV_SIDES; i++)
        if (fit_side(&m.member[i], mixed, (enum kv_side)i, shape, e)) {
            kv_mixed_clear(&m);
            return -1;
        }
    *out = kv_mixed_keep(&m);
    return 0;
}

int kv_mixed_fit(const struct kv_mixed **out, const struct kv_spec *mixed,
                 const struct kv_shape *shape, struct kv_err *e)
{
    const struct kv_mixed *from = mixed->mixed;
    struct kv_mixed m = *from;

    if (!from->n_layers)
        return fit_sides(out, mixed, shape, e);
    if (check_count(from, shape->n_layers, e))
        return -1;
    m.path = kv_strdup(from->path);
    m.member = kv_alloc(m.n_members, sizeof(*m.member));
    memcpy(m.member, from->member, m.n_members * sizeof(*m.member));
    m.place = kv_alloc(m.n_layers, sizeof(*m.place));
    memcpy(m.place, from->place, m.n_layers * sizeof(*m.place));
    for (size_t i = 0; i < m.n_members; i++)
        if (fit_member(&m.member[i], mixed, shape, e)) {
            kv_fail_in(e, "%s:%zu", m.path, line_of(from, i));
            kv_mixed_clear(&m);
            return -1;
        }
    *out = kv_mixed_keep(&m);
    return 0;
}
