#include "lib/mixed.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/exec.h"
#include "lib/policy.h"
#include "lib/scheme.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Layers beyond it are slips of the keyboard. */
enum { MAX_LAYERS = 4096 };

static const char spaces[] = " \t\r\n\v\f";

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

bool kv_spec_reads_below(const struct kv_spec *s)
{
    return kv_spec_read_above(s, 0);
}

int kv_spec_alone(const struct kv_spec *specs, size_t n, const char *what,
                  struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (kv_spec_reads_below(&specs[i]))
            return kv_fail(
                e,
                "%s wants layers that stand alone: %s decodes layers "
                "from those below",
                what, specs[i].text);
    return 0;
}

int kv_spec_in_place(const struct kv_spec *specs, size_t n, const char *what,
                     struct kv_err *e)
{
    for (size_t i = 0; i < n; i++) {
        const struct kv_layered *layered = kv_spec_layered(&specs[i], 0);

        if (layered && !layered->in_place)
            return kv_fail(e,
                           "%s attends in place: %s has no path in place, it "
                           "decodes each layer from those below",
                           what, specs[i].text);
    }
    return 0;
}

/* ---- kept for good ----------------------------------------------------- */

struct kept {
    struct kv_mixed mixed;
    struct kept *next;
};

static void clear(struct kv_mixed *m)
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

/* Takes ownership of m's memory. */
static const struct kv_mixed *keep(struct kv_mixed *m)
{
    static struct kept
        *all; /* all files that the process has read; only grows */
    const struct kv_mixed *found = NULL;

#pragma omp critical(kv_mixed)
    {
        for (const struct kept *k = all; k && !found; k = k->next)
            found = same(&k->mixed, m) ? &k->mixed : NULL;
        if (found) {
            clear(m);
        } else {
            struct kept *k = kv_alloc(1, sizeof(*k));

            *k = (struct kept){*m, all};
            all = k;
            found = &k->mixed;
        }
    }
    return found;
}

/* The index of this member, added where it is new. */
static size_t add_member(struct kv_mixed *m, const struct kv_spec *spec)
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

/* "0 K kivi:b2g32r128s0\n" of every place in order. */
static void hash_places(struct kv_mixed *m)
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

/* Each place has its own s and r. */
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
            (struct kv_place){add_member(&m, &place[i]), i + 1};
    hash_places(&m);
    *s = (struct kv_spec){.mixed = keep(&m)};
    place_letters(s);
    kv_spec_print(s);
}

int kv_mixed_sides(struct kv_spec *s, const struct kv_spec side[KV_SIDES],
                   struct kv_err *e)
{
    enum { ROOM = 64 }; /* for a policy, and what fitting adds */
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
    m.path = kv_strdup("");
    m.member = kv_alloc(KV_SIDES, sizeof(*m.member));
    memcpy(m.member, side, KV_SIDES * sizeof(*m.member));
    s->mixed = keep(&m);
    place_letters(s);
    kv_spec_print(s);
    return 0;
}

/* ---- the layer file ---------------------------------------------------- */

struct reading {
    struct kv_mixed m;
    const char *path;
    size_t line;
};

static int fail_line(const struct reading *r, struct kv_err *e)
{
    return kv_fail_in(e, "%s:%zu", r->path, r->line);
}

/* "3" or "0-3". */
static int read_layers(const char *text, size_t *first, size_t *last,
                       struct kv_err *e)
{
    size_t n[2] = {0, 0}, i = 0;

    for (const char *at = text; i < 2 && isdigit((unsigned char)*at); i++) {
        while (isdigit((unsigned char)*at) && n[i] <= MAX_LAYERS)
            n[i] = n[i] * 10 + (size_t)(*at++ - '0');
        if (n[i] >= MAX_LAYERS)
            return kv_fail(e, "'%s' names layers beyond %d", text,
                           MAX_LAYERS - 1);
        if (!*at) {
            *first = n[0];
            *last = n[i];
            if (n[0] <= n[i])
                return 0;
            break;
        }
        at += *at == '-';
    }
    return kv_fail(e, "'%s' is no layer: expected a number or a range, as 0-3",
                   text);
}

/* Bit 0 K, bit 1 V; 0 is neither. */
static int read_sides(const char *text)
{
    return !strcmp(text, "K")   ? 1
           : !strcmp(text, "V") ? 2
                                : 3 * !strcmp(text, "KV");
}

static int name_place(struct reading *r, size_t layer, enum kv_side side,
                      size_t member, struct kv_err *e)
{
    struct kv_mixed *m = &r->m;

    if (layer >= m->n_layers) {
        m->place = kv_realloc(m->place, layer + 1, sizeof(*m->place));
        memset(m->place + m->n_layers, 0,
               (layer + 1 - m->n_layers) * sizeof(*m->place));
        m->n_layers = layer + 1;
    }

    struct kv_place *p = &m->place[layer][side];

    if (p->line)
        return kv_fail(e, "layer %zu, %c is named again, after line %zu", layer,
                       kv_side_name(side), p->line);
    *p = (struct kv_place){member, r->line};
    return 0;
}

/* Said before it is parsed: a file that names itself would be read for ever. */
static int check_one(const char *text, struct kv_err *e)
{
    const char *mixed = kv_scheme_mixed.name;
    const size_t n = strcspn(text, ":,");

    if (n == strlen(mixed) && !memcmp(text, mixed, n))
        return kv_fail(e, "a layer file names no other: '%s'", text);
    if ((*text == 'K' || *text == 'V') && text[1] == '-')
        return kv_fail(e, "'%s': a layer file has a line for K and one for V",
                       text);
    if (strpbrk(text, "{}"))
        return kv_fail(e,
                       "a layer file takes no sweeps: expected one spec, as "
                       "in kivi:b2g32, not '%s'",
                       text);
    return 0;
}

/* The words of one line. */
static int read_place(struct reading *r, const char *layers, const char *sides,
                      const char *text, struct kv_err *e)
{
    const int which = read_sides(sides);
    struct kv_spec spec;
    size_t first = 0, last = 0, member;

    if (read_layers(layers, &first, &last, e))
        return -1;
    if (!which)
        return kv_fail(e, "'%s' is no side: expected K, V or KV", sides);
    if (check_one(text, e) || kv_spec_parse(&spec, text, e))
        return -1;
    if (kv_spec_layered(&spec, 0))
        return kv_fail(e,
                       "%s is predicted from the layers below or its own keys: "
                       "it wants every layer, and no layer file",
                       spec.text);
    if (spec.policy.policy)
        return kv_fail(e,
                       "%s: a policy is one for all layers, and stands "
                       "before mixed",
                       text);
    member = add_member(&r->m, &spec);
    for (size_t layer = first; layer <= last; layer++)
        for (int side = 0; side < KV_SIDES; side++)
            if (which & 1 << side &&
                name_place(r, layer, (enum kv_side)side, member, e))
                return -1;
    return 0;
}

/* Cuts off a comment; whether a command, which may have spaces and '#', ends
 * the line. */
static bool ends_in_command(char *line)
{
    const char *end, *command = kv_exec_command(line, &end);
    char *comment = line + strcspn(line, "#");

    if (command && command <= comment)
        return true;
    *comment = 0;
    return false;
}

/* line: without its end; cut into words here. */
static int read_line(struct reading *r, char *line, struct kv_err *e)
{
    enum { WORDS = 3 };
    const bool command = ends_in_command(line);
    const char *word[WORDS];
    char *save = NULL;
    size_t n = 0;

    for (char *at = strtok_r(line, spaces, &save); at; n++) {
        if (n < WORDS)
            word[n] = at;
        at = strtok_r(NULL, command && n == WORDS - 2 ? "" : spaces, &save);
    }
    if (!n)
        return 0;
    if (n != WORDS)
        return kv_fail(e,
                       "%zu words: expected layers, sides and a spec, as in "
                       "0-3 KV kivi:b2g32",
                       n);
    return read_place(r, word[0], word[1], word[2], e);
}

/* Every place has a spec, and one spec has both sides where it must. */
static int check_places(const struct kv_mixed *m, struct kv_err *e)
{
    if (!m->n_layers)
        return kv_fail(e, "%s names no layer", m->path);
    for (size_t i = 0; i < m->n_layers; i++) {
        const struct kv_place *p = m->place[i];

        for (int side = 0; side < KV_SIDES; side++)
            if (!p[side].line)
                return kv_fail(e, "%s: layer %zu, %c is not named", m->path, i,
                               kv_side_name((enum kv_side)side));
        for (int side = 0; side < KV_SIDES; side++) {
            const struct kv_spec *s = &m->member[p[side].member];

            if (p[KV_K].member != p[KV_V].member && kv_spec_together(s))
                return kv_fail(
                    e,
                    "%s:%zu: layer %zu: %s takes the keys and values "
                    "of a layer together: both want one spec",
                    m->path, p[side].line, i, s->scheme->name);
        }
    }
    return 0;
}

static int read_text(struct reading *r, char *text, struct kv_err *e)
{
    for (char *at = text; at;) {
        char *next = strchr(at, '\n');

        if (next)
            *next++ = 0;
        r->line++;
        if (read_line(r, at, e))
            return fail_line(r, e);
        at = next;
    }
    return check_places(&r->m, e);
}

const char *kv_mixed_file(const char *text)
{
    static const char file_word[] = ",file=";
    const char *word = strstr(text, file_word);
    const char *plus = memchr(text, '+', strcspn(text, ","));
    size_t n;

    text = plus ? plus + 1 : text;
    n = strcspn(text, ":,");

    if (!word || n != strlen(kv_scheme_mixed.name) ||
        memcmp(text, kv_scheme_mixed.name, n) != 0)
        return NULL;
    return word + strlen(file_word);
}

/* Where "@0123456789abcdef" begins at the end of the path, or NULL. */
static const char *hash_in(const char *path)
{
    const char *at = strrchr(path, '@');

    return at && strlen(at) == 17 && strspn(at + 1, "0123456789abcdef") == 16
               ? at
               : NULL;
}

static int read_file(struct kv_mixed *m, const char *path, struct kv_err *e)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct reading r = {.m = {.path = kv_strdup(path)}, .path = path};
    char *text = NULL;
    size_t bytes;
    int rc = -1;

    if (strlen(name) >= sizeof(r.m.name)) {
        kv_fail(e, "%s: a layer file's name has at most %zu bytes", path,
                sizeof(r.m.name) - 1);
        goto out;
    }
    snprintf(r.m.name, sizeof(r.m.name), "%s", name);
    if (kv_text_read(path, KV_MIXED_MAX_BYTES, &text, &bytes, e))
        goto out;
    rc = read_text(&r, text, e);
out:
    free(text);
    if (rc) {
        clear(&r.m);
        return -1;
    }
    hash_places(&r.m);
    *m = r.m;
    return 0;
}

int kv_mixed_read(const struct kv_mixed **out, const char *path,
                  struct kv_err *e)
{
    const char *hash = kv_file_exists(path) ? NULL : hash_in(path);
    char *file = hash ? kv_strndup(path, (size_t)(hash - path)) : NULL;
    struct kv_mixed m;
    int rc = read_file(&m, file ? file : path, e);

    if (!rc && hash && strcmp(m.hash, hash + 1)) {
        rc = kv_fail(e, "%s says something else by now: its places are @%s",
                     file, m.hash);
        clear(&m);
    }
    free(file);
    if (!rc)
        *out = keep(&m);
    return rc;
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

/* A spec of one side: its text names no other. */
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
            clear(&m);
            return -1;
        }
    *out = keep(&m);
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
            clear(&m);
            return -1;
        }
    *out = keep(&m);
    return 0;
}
