/* Reads the layer file of a mixed spec (lib/mixed.h). */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/exec.h"
#include "lib/mixed_impl.h"
#include "lib/policy.h"
#include "lib/scheme.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A layer number from here on is a typing error. */
enum { MAX_LAYERS = 4096 };

static const char spaces[] = " \t\r\n\v\f";

struct reading {
    struct kv_mixed m;
    const char *path;
    size_t line;
};

static int fail_line(const struct reading *r, struct kv_err *e)
{
    return kv_fail_in(e, "%s:%zu", r->path, r->line);
}

/* Parses "3" or "0-3". */
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

/* Bit 0 means K and bit 1 means V; 0 means neither side. */
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

/* Refuses what a layer file's spec cannot be.  Called before the spec is
 * parsed, since a file that names itself would be read for ever. */
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

/* Reads the words of one line. */
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
    if (kv_spec_spans(&spec))
        return kv_fail(e,
                       "%s spans all layers: it wants every layer, and no "
                       "layer file",
                       spec.text);
    if (spec.policy.policy)
        return kv_fail(e,
                       "%s: a policy is one for all layers, and stands "
                       "before mixed",
                       text);
    member = kv_mixed_add_member(&r->m, &spec);
    for (size_t layer = first; layer <= last; layer++)
        for (int side = 0; side < KV_SIDES; side++)
            if (which & 1 << side &&
                name_place(r, layer, (enum kv_side)side, member, e))
                return -1;
    return 0;
}

/* Cuts off the comment of a line.  Returns whether the line ends in a command,
 * which may contain spaces and '#'. */
static bool ends_in_command(char *line)
{
    const char *end, *command = kv_exec_command(line, &end);
    char *comment = line + strcspn(line, "#");

    if (command && command <= comment)
        return true;
    *comment = 0;
    return false;
}

/* line: without its line end; it is cut into words in place. */
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

/* Checks that every place has a spec, and that both sides have the same spec if
 * required. */
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

/* The beginning of "@0123456789abcdef" at the end of the path, or NULL. */
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
        kv_mixed_clear(&r.m);
        return -1;
    }
    kv_mixed_hash_places(&r.m);
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
        kv_mixed_clear(&m);
    }
    free(file);
    if (!rc)
        *out = kv_mixed_keep(&m);
    return rc;
}
