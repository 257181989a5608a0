#include "lib/tokenizer/tokenizer_added.h"
#include "lib/base/alloc.h"
#include "lib/tokenizer/tokenizer_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A string to match; sorted by bytes, so that strings with a common beginning
 * are neighbours. */
struct needle {
    char *s;
    size_t n;
    const struct kv_added_token *token;
};

struct needles {
    struct needle *needle;
    size_t n;
    bool starts[256]; /* some needle starts with this byte */
};

struct kv_added {
    struct kv_added_token *token; /* in the files' order; once indexed, by id */
    size_t n, capacity;
    int32_t last_id; /* the highest, -1: none */
    size_t *slot;    /* [mask + 1] indices in token by hash, SIZE_MAX: empty */
    size_t mask;
    struct needles set[2]; /* [normalized] */
};

static int by_bytes(const void *a, const void *b)
{
    const struct needle *x = a, *y = b;
    const int d = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);

    if (d || x->n != y->n)
        return d ? d : x->n < y->n ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static int by_id(const void *a, const void *b)
{
    const struct kv_added_token *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

static int add_needle(struct needles *set, const struct kv_added_token *t,
                      const struct kv_normalizer *normalizer, struct kv_err *e)
{
    struct kv_text text = {0};
    struct kv_watch w;

    kv_watch_init(&w, strlen(t->content));
    if (!t->normalized)
        kv_text_add(&text, t->content, strlen(t->content));
    else if (kv_normalizer_run(normalizer, t->content, strlen(t->content), true,
                               &text, &w, e) ||
             (!text.n && kv_fail(e, "nothing is left of it normalized"))) {
        kv_text_clear(&text);
        return -1;
    }
    set->starts[(unsigned char)*text.s] = true;
    set->needle[set->n++] =
        (struct needle){.s = text.s, .n = text.n, .token = t};
    return 0;
}

/* The slot of the token with this content, or the empty slot where it would
 * go. */
static size_t *slot_of(const struct kv_added *a, const char *content)
{
    size_t h = kv_name_hash(content, strlen(content)) & a->mask;

    while (a->slot[h] != SIZE_MAX &&
           strcmp(a->token[a->slot[h]].content, content))
        h = (h + 1) & a->mask;
    return &a->slot[h];
}

static void fill_slots(struct kv_added *a)
{
    memset(a->slot, 0xff, (a->mask + 1) * sizeof(*a->slot)); /* SIZE_MAX */
    for (size_t i = 0; i < a->n; i++)
        *slot_of(a, a->token[i].content) = i;
}

/* Makes room for one more token; half of the slots stay empty. */
static void grow(struct kv_added *a)
{
    if (a->n < a->capacity)
        return;
    a->capacity = 2 * a->capacity + 16;
    a->token = kv_realloc(a->token, a->capacity, sizeof(*a->token));
    while (a->mask + 1 < 2 * a->capacity)
        a->mask = 2 * a->mask + 1;
    a->slot = kv_realloc(a->slot, a->mask + 1, sizeof(*a->slot));
    fill_slots(a);
}

int kv_added_parse(struct kv_added_token *t, const json_t *j,
                   const char *others, struct kv_err *e)
{
    const char *content;
    char known[128];

    *t = (struct kv_added_token){.id = -1};
    if (kv_field_string(j, "content", &content, e))
        return -1;
    if (!*content)
        return kv_fail(e, "\"content\" is empty");
    snprintf(known, sizeof(known),
             "content special normalized single_word lstrip rstrip %s", others);
    if (kv_field_only(j, known, e) ||
        kv_field_flag(j, "special", false, &t->special, e) ||
        kv_field_flag(j, "normalized", !t->special, &t->normalized, e) ||
        kv_field_flag(j, "single_word", false, &t->single_word, e) ||
        kv_field_flag(j, "lstrip", false, &t->lstrip, e) ||
        kv_field_flag(j, "rstrip", false, &t->rstrip, e))
        return kv_fail_in(e, "\"%s\"", content);
    t->content = (char *)content;
    return 0;
}

/* The id of a new token that the vocabulary lacks. */
static size_t next_id(const struct kv_added *a, const struct kv_vocab *vocab)
{
    const size_t after = (size_t)(a->last_id + 1);

    return after > vocab->n ? after : vocab->n;
}

int kv_added_put(struct kv_added *a, const struct kv_added_token *t,
                 const struct kv_vocab *vocab, struct kv_err *e)
{
    const char *content = t->content;
    const int32_t there = kv_vocab_id(vocab, content, strlen(content));
    const size_t id = there >= 0 ? (size_t)there : next_id(a, vocab);

    if (kv_added_find(a, content))
        return kv_fail(e, "\"%s\" is given twice", content);
    if (there >= 0 && t->id >= 0 && t->id != there)
        return kv_fail(e, "\"%s\" has id %d, against the vocabulary's %d",
                       content, (int)t->id, (int)there);
    if (t->id >= 0 && (size_t)t->id != id)
        return kv_fail(e,
                       "\"%s\" has id %d: expected %zu, the next one after the "
                       "vocabulary and the tokens before it",
                       content, (int)t->id, id);
    if (there < 0 && id < vocab->n_ids && vocab->token[id].s)
        return kv_fail(
            e, "\"%s\" has id %zu, against the vocabulary's \"%.*s\"", content,
            id, (int)vocab->token[id].n, vocab->token[id].s);
    if (id >= KV_TOKEN_IDS)
        return kv_fail(e, "\"%s\" would have id %zu", content, id);
    grow(a);
    *slot_of(a, content) = a->n;
    a->token[a->n] = *t;
    a->token[a->n].id = (int32_t)id;
    a->token[a->n++].content = kv_strdup(content);
    if ((int32_t)id > a->last_id)
        a->last_id = (int32_t)id;
    return 0;
}

static int parse(struct kv_added *a, const json_t *j,
                 const struct kv_vocab *vocab, struct kv_err *e)
{
    if (!json_is_array(j))
        return kv_fail(e, "not an array");
    for (size_t i = 0; i < json_array_size(j); i++) {
        const json_t *item = json_array_get(j, i);
        struct kv_added_token t;
        size_t id;

        if (kv_added_parse(&t, item, "id", e) ||
            kv_field_count(item, "id", KV_TOKEN_IDS, &id, e))
            return -1;
        t.id = (int32_t)id;
        if (kv_added_put(a, &t, vocab, e))
            return -1;
    }
    return 0;
}

int kv_added_new(struct kv_added **a, const json_t *j,
                 const struct kv_vocab *vocab, struct kv_err *e)
{
    struct kv_added *x = kv_alloc(1, sizeof(*x));

    x->last_id = -1;
    grow(x);
    if (j && !json_is_null(j) && parse(x, j, vocab, e)) {
        kv_added_free(x);
        return kv_fail_in(e, "added_tokens");
    }
    *a = x;
    return 0;
}

int kv_added_index(struct kv_added *a, const struct kv_normalizer *normalizer,
                   struct kv_err *e)
{
    qsort(a->token, a->n, sizeof(*a->token), by_id);
    fill_slots(a);
    for (size_t i = 0; i < 2; i++)
        a->set[i].needle = kv_alloc(a->n, sizeof(*a->set[i].needle));
    for (size_t i = 0; i < a->n; i++) {
        const struct kv_added_token *t = &a->token[i];

        if (add_needle(&a->set[t->normalized], t, normalizer, e))
            return kv_fail_in(e, "added token \"%s\"", t->content);
    }
    for (size_t i = 0; i < 2; i++)
        qsort(a->set[i].needle, a->set[i].n, sizeof(*a->set[i].needle),
              by_bytes);
    return 0;
}

void kv_added_free(struct kv_added *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < 2; i++) {
        for (size_t k = 0; k < a->set[i].n; k++)
            free(a->set[i].needle[k].s);
        free(a->set[i].needle);
    }
    for (size_t i = 0; i < a->n; i++)
        free(a->token[i].content);
    free(a->token);
    free(a->slot);
    free(a);
}

struct kv_added_token *kv_added_find(const struct kv_added *a,
                                     const char *content)
{
    const size_t at = *slot_of(a, content);

    return at == SIZE_MAX ? NULL : &a->token[at];
}

const struct kv_added_token *kv_added_id(const struct kv_added *a, int32_t id)
{
    const struct kv_added_token key = {.id = id};

    return a->n ? bsearch(&key, a->token, a->n, sizeof(key), by_id) : NULL;
}

int32_t kv_added_last_id(const struct kv_added *a)
{
    return a->last_id;
}

/* The first of needles [low, high) whose byte i is at least `byte`; they agree
 * in the bytes before it. */
static size_t first_from(const struct needles *set, size_t low, size_t high,
                         size_t i, unsigned byte)
{
    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if ((unsigned char)set->needle[middle].s[i] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest needle that matches at s, or NULL.  Goes byte by byte: needles
 * [low, high) agree with s so far. */
static const struct needle *longest(const struct needles *set, const char *s,
                                    size_t n)
{
    const struct needle *best = NULL;
    size_t low = 0, high = set->n;

    for (size_t i = 0; low < high; i++) {
        for (; low < high && set->needle[low].n == i; low++)
            if (!best || best->n < i) /* the whole needle agrees */
                best = &set->needle[low];
        if (i == n)
            break;
        low = first_from(set, low, high, i, (unsigned char)s[i]);
        high = first_from(set, low, high, i, (unsigned char)s[i] + 1u);
    }
    return best;
}

static size_t char_before(const char *s, size_t at)
{
    do
        at--;
    while (((unsigned char)s[at] & 0xc0) == 0x80);
    return at;
}

/* Whether the match is inside a word. */
static bool in_word(const char *s, size_t n, size_t start, size_t end)
{
    size_t n_bytes;

    return (start &&
            kv_is_word(kv_utf8_get(s + char_before(s, start), &n_bytes))) ||
           (end < n && kv_is_word(kv_utf8_get(s + end, &n_bytes)));
}

static size_t skip_spaces_left(const char *s, size_t start)
{
    size_t n_bytes;

    while (start) {
        const size_t before = char_before(s, start);

        if (!kv_is_space(kv_utf8_get(s + before, &n_bytes)))
            break;
        start = before;
    }
    return start;
}

static size_t skip_spaces_right(const char *s, size_t n, size_t end)
{
    size_t n_bytes;

    while (end < n && kv_is_space(kv_utf8_get(s + end, &n_bytes)))
        end += n_bytes;
    return end;
}

const struct kv_added_token *kv_added_next(struct kv_added_scan *x,
                                           size_t *start, size_t *end)
{
    const struct needles *set = &x->a->set[x->normalized];

    *start = x->from;
    while (set->n && x->at < x->n) {
        const size_t at = x->at;
        const struct needle *hit = set->starts[(unsigned char)x->s[at]]
                                       ? longest(set, x->s + at, x->n - at)
                                       : NULL;

        x->at += hit ? hit->n : 1;
        if (!hit || (hit->token->single_word && in_word(x->s, x->n, at, x->at)))
            continue;
        if (hit->token->special && !x->special) {
            if (!x->n_passed++)
                x->passed = hit->token;
            continue;
        }
        *end = hit->token->lstrip ? skip_spaces_left(x->s, at) : at;
        if (*end < *start)
            *end = *start;
        x->from =
            hit->token->rstrip ? skip_spaces_right(x->s, x->n, x->at) : x->at;
        return hit->token;
    }
    *end = x->n;
    return NULL;
}
