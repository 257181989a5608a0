#include "lib/tokenizer/tokenizer_bpe.h"
#include "lib/base/alloc.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

static void pairs_init(struct kv_pairs *p, size_t n)
{
    size_t capacity = 2;

    while (capacity < 2 * n)
        capacity *= 2;
    p->slot = kv_alloc(capacity, sizeof(*p->slot));
    memset(p->slot, 0xff, capacity * sizeof(*p->slot)); /* KV_NO_PAIR */
    p->mask = capacity - 1;
}

/* Adds a pair; a pair that exists takes the new values. */
static void pairs_add(struct kv_pairs *p, int32_t left, int32_t right,
                      uint32_t rank, int32_t id)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = key * 0x9e3779b97f4a7c15u >> 32 & p->mask;

    while (p->slot[i].key != KV_NO_PAIR && p->slot[i].key != key)
        i = (i + 1) & p->mask;
    p->slot[i] = (struct kv_pair){.key = key, .rank = rank, .id = id};
}

int32_t kv_bpe_char(const struct kv_bpe *b, const char *s, size_t *n_bytes)
{
    const uint32_t c = kv_utf8_get(s, n_bytes);

    return c < KV_BPE_LOW ? b->low[c] : kv_vocab_id(&b->vocab, s, *n_bytes);
}

/* Gets the two halves of a merge, "a b" or ["a", "b"]. */
static int halves(const json_t *merge, struct kv_token half[2],
                  struct kv_err *e)
{
    if (json_is_string(merge)) {
        const char *s = json_string_value(merge), *gap = strchr(s, ' ');

        if (!gap || strchr(gap + 1, ' '))
            return kv_fail(e, "\"%s\" is not two tokens with a space between",
                           s);
        half[0] = (struct kv_token){.s = s, .n = (size_t)(gap - s)};
        half[1] = (struct kv_token){.s = gap + 1, .n = strlen(gap + 1)};
    } else {
        for (size_t i = 0; i < 2; i++) {
            half[i].s = json_string_value(json_array_get(merge, i));
            if (!half[i].s || json_array_size(merge) != 2)
                return kv_fail(e, "neither \"a b\" nor [\"a\", \"b\"]");
            half[i].n = strlen(half[i].s);
        }
    }
    if (!half[0].n || !half[1].n)
        return kv_fail(e, "one of its tokens is empty");
    return 0;
}

static int known(const struct kv_bpe *b, struct kv_token t, int32_t *id,
                 struct kv_err *e)
{
    *id = kv_vocab_id(&b->vocab, t.s, t.n);
    if (*id < 0)
        return kv_fail(e, "\"%.*s\" is not in the vocabulary", (int)t.n, t.s);
    return 0;
}

static int add_merge(struct kv_bpe *b, const struct kv_token half[2],
                     uint32_t rank, struct kv_text *whole, struct kv_err *e)
{
    size_t n, last = half[0].n - 1;
    int32_t left, right, joined;

    whole->n = 0;
    kv_text_add(whole, half[0].s, half[0].n);
    kv_text_add(whole, half[1].s, half[1].n);
    if (known(b, half[0], &left, e) || known(b, half[1], &right, e) ||
        known(b, (struct kv_token){.s = whole->s, .n = whole->n}, &joined, e))
        return -1;
    pairs_add(&b->merges, left, right, rank, joined);

    while (((unsigned char)half[0].s[last] & 0xc0) == 0x80)
        last--;
    left = kv_bpe_char(b, half[0].s + last, &n);
    right = kv_bpe_char(b, half[1].s, &n);
    if (left >= 0 && right >= 0)
        pairs_add(&b->junctions, left, right, 0, 0);
    return 0;
}

static int parse_merges(struct kv_bpe *b, const json_t *model, struct kv_err *e)
{
    struct kv_text whole = {0};
    struct kv_token half[2];
    uint32_t rank = 0;
    json_t *list;
    int rc = 0;

    if (kv_field_array(model, "merges", &list, e))
        return -1;
    pairs_init(&b->merges, json_array_size(list));
    pairs_init(&b->junctions, json_array_size(list));
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        const json_t *item = json_array_get(list, i);

        if (json_is_string(item) &&
            !strncmp(json_string_value(item), "#version", 8))
            continue;
        if (halves(item, half, e) || add_merge(b, half, rank++, &whole, e))
            rc = kv_fail_in(e, "merge %zu", i);
    }
    kv_text_clear(&whole);
    return rc;
}

/* Refuses features that no supported tokenizer has. */
static int refuse_rest(const json_t *model, struct kv_err *e)
{
    static const char *const strings[] = {"continuing_subword_prefix",
                                          "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");
    const char *s;

    for (size_t i = 0; i < 2; i++) {
        if (kv_field_string_or(model, strings[i], "", &s, e))
            return -1;
        if (*s)
            return kv_fail(e, "\"%s\" is not supported", strings[i]);
    }
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return kv_fail(e, "\"dropout\" is not supported");
    return 0;
}

/* Checks the type and the names of the fields.  Called first, since in other
 * types the vocabulary is a list. */
static int check_type(const json_t *model, struct kv_err *e)
{
    const char *type;

    if (kv_field_string_or(model, "type", "BPE", &type, e))
        return -1;
    if (strcmp(type, "BPE"))
        return kv_fail(e, "type \"%s\" is not supported, only BPE and Unigram",
                       type);
    return kv_field_only(model,
                         "type dropout unk_token continuing_subword_prefix "
                         "end_of_word_suffix fuse_unk byte_fallback "
                         "ignore_merges vocab merges",
                         e);
}

static int parse_options(struct kv_bpe *b, const json_t *model,
                         struct kv_err *e)
{
    const char *unk;

    if (refuse_rest(model, e) ||
        kv_field_flag(model, "fuse_unk", false, &b->fuse_unk, e) ||
        kv_field_flag(model, "byte_fallback", false, &b->byte_fallback, e) ||
        kv_field_flag(model, "ignore_merges", false, &b->ignore_merges, e) ||
        kv_field_string_or(model, "unk_token", NULL, &unk, e))
        return -1;
    b->unk = -1;
    if (unk &&
        known(b, (struct kv_token){.s = unk, .n = strlen(unk)}, &b->unk, e))
        return kv_fail_in(e, "unk_token");
    return 0;
}

static void index_tokens(struct kv_bpe *b)
{
    char name[8];

    for (uint32_t c = 0; c < KV_BPE_LOW; c++) {
        const size_t n = kv_utf8_put(c, name);

        b->low[c] = kv_vocab_id(&b->vocab, name, n);
    }
    for (unsigned i = 0; i < 256; i++) {
        snprintf(name, sizeof(name), "<0x%02X>", i);
        b->byte[i] = kv_vocab_id(&b->vocab, name, 6);
    }
}

int kv_bpe_new(struct kv_bpe **b, const json_t *model, struct kv_err *e)
{
    struct kv_bpe *x = kv_alloc(1, sizeof(*x));
    json_t *vocab;

    if (check_type(model, e) || kv_field_object(model, "vocab", &vocab, e) ||
        kv_vocab_init(&x->vocab, vocab, e) || parse_options(x, model, e))
        goto fail;
    index_tokens(x);
    if (parse_merges(x, model, e))
        goto fail;
    *b = x;
    return 0;
fail:
    kv_bpe_free(x);
    return kv_fail_in(e, "model");
}

void kv_bpe_free(struct kv_bpe *b)
{
    if (!b)
        return;
    kv_vocab_clear(&b->vocab);
    free(b->merges.slot);
    free(b->junctions.slot);
    free(b);
}
