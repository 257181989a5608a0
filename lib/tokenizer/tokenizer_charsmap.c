#include "lib/tokenizer/tokenizer_charsmap.h"
#include "lib/base/alloc.h"
#include "lib/base/base64.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* The maximum length of an entry, more than in any known table; it limits the
 * cost of a wrong table. */
enum { KEY_BYTES = 256 };

struct kv_charsmap {
    uint8_t *data;
    const uint8_t *unit; /* [n_units] u32, little-endian */
    size_t n_units;
    const char *text;
    size_t text_bytes;
};

/* ---- the table --------------------------------------------------------- */

static uint32_t get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

static int parse(struct kv_charsmap *m, size_t bytes, struct kv_err *e)
{
    const size_t trie = bytes < 4 ? 0 : get_u32(m->data);

    if (bytes < 4 || !trie || trie % 4 || trie >= bytes - 4)
        return kv_fail(e, "a trie of %zu bytes in a table of %zu", trie, bytes);
    m->unit = m->data + 4;
    m->n_units = trie / 4;
    m->text = (const char *)m->unit + trie;
    m->text_bytes = bytes - 4 - trie;
    if (m->text[m->text_bytes - 1] ||
        kv_utf8_valid(m->text, m->text_bytes) != m->text_bytes)
        return kv_fail(e, "its texts are not UTF-8 with a zero at the end");
    return 0;
}

int kv_charsmap_new(struct kv_charsmap **m, const char *base64,
                    struct kv_err *e)
{
    struct kv_charsmap *x = kv_alloc(1, sizeof(*x));
    const size_t n = strlen(base64);
    size_t bytes;

    x->data = kv_alloc(n + 1, 1);
    if (kv_base64_decode(base64, n, x->data, &bytes)
            ? kv_fail(e, "it is not base64")
            : parse(x, bytes, e)) {
        kv_charsmap_free(x);
        return kv_fail_in(e, "precompiled_charsmap");
    }
    *m = x;
    return 0;
}

void kv_charsmap_free(struct kv_charsmap *m)
{
    if (!m)
        return;
    free(m->data);
    free(m);
}

/* ---- a lookup ---------------------------------------------------------- */

/* A unit, by its first bits: | 0: byte | 8: a value follows | 9: multiply the
 * offset by 256 | 10: offset |.  A unit with a value: | 0: value | 31: 1 |. */
static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit >> 9 & 1) * 8);
}

static bool is_inside(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Looks up the beginning of s[0..n).  *text: the table's replacement for the
 * first *n_key bytes, whole characters; *n_key 0: no entry.  first: takes the
 * shortest entry, else the longest. */
static int look(const struct kv_charsmap *m, bool first, const char *s,
                size_t n, size_t *n_key, const char **text, struct kv_err *e)
{
    size_t at = offset_of(get_u32(m->unit));

    *n_key = 0;
    for (size_t i = 0; i < n && i < KEY_BYTES && s[i]; i++) {
        uint32_t unit;

        at ^= (unsigned char)s[i];
        if (at >= m->n_units)
            break;
        unit = get_u32(m->unit + 4 * at);
        if ((unit & 0x800000ffu) != (unsigned char)s[i])
            break;
        at ^= offset_of(unit);
        if (!(unit >> 8 & 1) || (i + 1 < n && is_inside(s[i + 1])))
            continue;

        const size_t value =
            at < m->n_units ? get_u32(m->unit + 4 * at) & 0x7fffffff : SIZE_MAX;

        if (value >= m->text_bytes || is_inside(m->text[value]))
            return kv_fail(e, "precompiled_charsmap names no text for \"%.*s\"",
                           (int)i + 1, s);
        *text = m->text + value;
        *n_key = i + 1;
        if (first)
            break;
    }
    return 0;
}

/* ---- texts ------------------------------------------------------------- */

/* The number of bytes of the grapheme cluster at s. */
static size_t cluster(const char *s, size_t n)
{
    utf8proc_int32_t state = 0;
    size_t at, bytes;
    uint32_t c = kv_utf8_get(s, &at);

    for (; at < n; at += bytes) {
        const uint32_t next = kv_utf8_get(s + at, &bytes);

        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c,
                                             (utf8proc_int32_t)next, &state))
            break;
        c = next;
    }
    return at;
}

/* Normalizes as SentencePiece does; consumes *n_part bytes. */
static int add_longest(const struct kv_charsmap *m, const char *s, size_t n,
                       size_t *n_part, struct kv_text *out, struct kv_err *e)
{
    const char *text;

    if (look(m, false, s, n, n_part, &text, e))
        return -1;
    if (*n_part) {
        kv_text_add(out, text, strlen(text));
        return 0;
    }
    *n_part = kv_utf8_bytes(s);
    kv_text_add(out, s, *n_part);
    return 0;
}

static int add_cluster(const struct kv_charsmap *m, const char *s, size_t n,
                       size_t *n_part, struct kv_text *out, struct kv_err *e)
{
    const char *text;
    size_t n_key = 0, one;

    *n_part = cluster(s, n);
    if (*n_part < 6 && look(m, true, s, *n_part, &n_key, &text, e))
        return -1;
    if (n_key) {
        kv_text_add(out, text, strlen(text));
        return 0;
    }
    for (size_t at = 0; at < *n_part; at += one) {
        one = kv_utf8_bytes(s + at);
        if (look(m, true, s + at, one, &n_key, &text, e))
            return -1;
        kv_text_add(out, n_key ? text : s + at, n_key ? strlen(text) : one);
    }
    return 0;
}

int kv_charsmap_run(const struct kv_charsmap *m, bool longest, const char *s,
                    size_t n, struct kv_text *out, struct kv_watch *w,
                    struct kv_err *e)
{
    size_t n_parts = 0;

    for (size_t at = 0, part; at < n; at += part) {
        if (longest ? add_longest(m, s + at, n - at, &part, out, e)
                    : add_cluster(m, s + at, n - at, &part, out, e))
            return -1;
        if (!(++n_parts & 0xffff) && kv_watch_look(w, NULL, e))
            return -1;
    }
    return kv_watch_made(w, out->n, e);
}
