#include "lib/tokenizer/tokenizer.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/utf8.h"
#include "lib/model/gguf_model.h"
#include "lib/tokenizer/tokenizer_added.h"
#include "lib/tokenizer/tokenizer_bpe.h"
#include "lib/tokenizer/tokenizer_config.h"
#include "lib/tokenizer/tokenizer_decoder.h"
#include "lib/tokenizer/tokenizer_folder.h"
#include "lib/tokenizer/tokenizer_gguf.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "lib/tokenizer/tokenizer_normalizer.h"
#include "lib/tokenizer/tokenizer_post.h"
#include "lib/tokenizer/tokenizer_split.h"
#include "lib/tokenizer/tokenizer_unigram.h"

#include <stdlib.h>
#include <string.h>

struct kv_tokenizer {
    char *path; /* the file with the vocabulary */
    struct kv_added *added;
    struct kv_normalizer *normalizer;
    struct kv_splitter *splitter;
    struct kv_bpe *bpe; /* NULL: unigram is used */
    struct kv_unigram *unigram;
    const struct kv_vocab *vocab; /* the vocabulary of bpe or unigram */
    struct kv_decoder *decoder;
    int32_t bos;
    int prepend; /* as in struct kv_tokenizer_config */
    bool adds_bos, splits_special;
    const char *flags_differ; /* as in struct kv_tokenizer_config */
};

static int parse_model(struct kv_tokenizer *t, const json_t *model,
                       struct kv_err *e)
{
    const char *type;

    if (kv_field_string_or(model, "type", "BPE", &type, e))
        return kv_fail_in(e, "model");
    if (!strcmp(type, "Unigram")) {
        if (kv_unigram_new(&t->unigram, model, e))
            return -1;
        t->vocab = &t->unigram->vocab;
    } else {
        if (kv_bpe_new(&t->bpe, model, e))
            return -1;
        t->vocab = &t->bpe->vocab;
    }
    return 0;
}

/* Parses tokenizer.json.  Ignores "truncation" and "padding", which
 * transformers applies only to calls that ask for them. */
static int parse(struct kv_tokenizer *t, const json_t *j, int32_t *before,
                 struct kv_err *e)
{
    const char *version;
    json_t *model;

    if (kv_field_object(j, "model", &model, e) ||
        kv_field_only(j,
                      "version truncation padding added_tokens normalizer "
                      "pre_tokenizer post_processor decoder model",
                      e) ||
        kv_field_string_or(j, "version", "1.0", &version, e))
        return -1;
    if (strcmp(version, "1.0"))
        return kv_fail(e, "version \"%s\" is not supported, only 1.0", version);
    if (parse_model(t, model, e) ||
        kv_normalizer_new(&t->normalizer, json_object_get(j, "normalizer"),
                          e) ||
        kv_splitter_new(&t->splitter, json_object_get(j, "pre_tokenizer"), e) ||
        kv_decoder_new(&t->decoder, json_object_get(j, "decoder"), e) ||
        kv_added_new(&t->added, json_object_get(j, "added_tokens"), t->vocab,
                     e))
        return -1;
    return kv_post_parse(json_object_get(j, "post_processor"),
                         kv_tokenizer_vocab(t), before, e);
}

/* Applies the files beside tokenizer.json. */
static int read_rest(struct kv_tokenizer *t, const char *dir, int32_t before,
                     struct kv_err *e)
{
    const struct kv_tokenizer_main m = {
        .vocab = t->vocab,
        .added = t->added,
        .own = kv_tokenizer_kind(dir)->own,
        .before = before,
        .prefix_space = kv_normalizer_prepends(t->normalizer)
                            ? 1
                            : kv_splitter_prefix(t->splitter)};
    struct kv_tokenizer_config c;

    if (kv_tokenizer_config_read(&c, dir, &m, e))
        return -1;
    t->bos = before >= 0 ? before : c.bos;
    t->prepend = c.prepend;
    if (t->prepend >= 0)
        kv_splitter_prepend(t->splitter, (enum kv_prepend)t->prepend);
    t->splits_special = c.splits_special;
    t->flags_differ = c.flags_differ;
    return 0;
}

static json_t *read_gguf(const char *path, int32_t *bos, struct kv_err *e)
{
    struct kv_gguf_model m;
    json_t *j;

    if (kv_gguf_model_open(&m, path, e))
        return NULL;
    j = kv_tokenizer_of_gguf(&m.part[0], bos, e);
    if (!j)
        kv_fail_in(e, "%s", path);
    kv_gguf_model_clear(&m);
    return j;
}

/* Reads a GGUF file or a folder's vocabulary; sets t->path too. */
static json_t *read_file(struct kv_tokenizer *t, const char *path, bool gguf,
                         struct kv_err *e)
{
    const struct kv_tokenizer_kind *kind;
    char files[64];

    if (gguf) {
        t->path = kv_strdup(path);
        return read_gguf(path, &t->bos, e);
    }
    kind = kv_tokenizer_kind(path);
    snprintf(files, sizeof(files), "%s%s%s", kind->files[0],
             kind->files[1] ? " and " : "",
             kind->files[1] ? kind->files[1] : "");
    t->path = kv_path_join(path, files);
    return kind->read(path, e);
}

static int open_at(struct kv_tokenizer *t, const char *path, struct kv_err *e)
{
    const bool gguf = kv_gguf_is(path);
    json_t *j = read_file(t, path, gguf, e);
    int32_t before;
    int rc;

    if (!j)
        return -1;
    rc = parse(t, j, &before, e) ? kv_fail_in(e, "%s", t->path) : 0;
    json_decref(j);
    if (rc || (!gguf && read_rest(t, path, before, e)))
        return -1;
    t->adds_bos = before >= 0;
    if (kv_added_index(t->added, t->normalizer, e))
        return kv_fail_in(e, "%s", t->path);
    for (int32_t i = 0; t->unigram && i <= kv_added_last_id(t->added); i++)
        if (kv_added_id(t->added, i) && kv_added_id(t->added, i)->special)
            kv_unigram_hide(t->unigram, i);
    return 0;
}

int kv_tokenizer_open(struct kv_tokenizer **t, const char *path,
                      struct kv_err *e)
{
    struct kv_tokenizer *x = kv_alloc(1, sizeof(*x));

    x->prepend = -1;
    if (open_at(x, path, e)) {
        kv_tokenizer_free(x);
        return -1;
    }
    *t = x;
    return 0;
}

void kv_tokenizer_free(struct kv_tokenizer *t)
{
    if (!t)
        return;
    kv_added_free(t->added);
    kv_normalizer_free(t->normalizer);
    kv_splitter_free(t->splitter);
    kv_bpe_free(t->bpe);
    kv_unigram_free(t->unigram);
    kv_decoder_free(t->decoder);
    free(t->path);
    free(t);
}

/* One call of kv_tokenizer_encode. */
struct encoding {
    const struct kv_tokenizer *t;
    struct kv_bpe_run *run;
    struct kv_lattice lattice; /* for Unigram */
    struct kv_text normal;
    struct kv_ids ids;
    bool special;
    struct kv_named named;
    struct kv_watch watch;
    size_t n_pieces;
};

static int take_piece(void *arg, const char *s, size_t n, struct kv_err *e)
{
    struct encoding *x = arg;

    if (!(++x->n_pieces & 0xff) && kv_watch_look(&x->watch, NULL, e))
        return -1;
    return x->run ? kv_bpe_encode(x->run, s, n, &x->ids, e)
                  : kv_unigram_encode(x->t->unigram, &x->lattice, s, n, &x->ids,
                                      e);
}

static void count_named(struct encoding *x, const struct kv_added_scan *scan)
{
    if (scan->n_passed && !x->named.n)
        x->named.first = scan->passed->content;
    x->named.n += scan->n_passed;
}

/* Whether a part of a text gets the prefix of a text; by default every part
 * does.  After a special token no part gets a second space. */
static bool takes_prefix(const struct kv_tokenizer *t, const char *s, size_t n,
                         bool at_start)
{
    if (at_start || t->prepend < 0)
        return true;
    return t->prepend == KV_PREPEND_ALWAYS && *s != ' ' &&
           (n < 3 || memcmp(s, "\xe2\x96\x81", 3) != 0);
}

/* Encodes text between added tokens that are matched before normalization.
 * Normalizes it, then cuts it at the added tokens that are matched in
 * normalized text. */
static int encode_between(struct encoding *x, const char *s, size_t n,
                          bool at_start, struct kv_err *e)
{
    const struct kv_piece_sink sink = {take_piece, x};
    const struct kv_added_token *found;
    size_t start, end;

    if (kv_normalizer_run(x->t->normalizer, s, n,
                          takes_prefix(x->t, s, n, at_start), &x->normal,
                          &x->watch, e))
        return -1;

    struct kv_added_scan scan = {.a = x->t->added,
                                 .s = x->normal.s,
                                 .n = x->normal.n,
                                 .normalized = true,
                                 .special = x->special};

    do {
        found = kv_added_next(&scan, &start, &end);
        if (start < end &&
            kv_splitter_run(x->t->splitter, scan.s + start, end - start,
                            at_start && !start, &sink, &x->watch, e))
            return -1;
        if (found)
            kv_ids_add(&x->ids, found->id);
    } while (found);
    count_named(x, &scan);
    return 0;
}

static int encode(struct encoding *x, const char *s, size_t n, struct kv_err *e)
{
    struct kv_added_scan scan = {
        .a = x->t->added, .s = s, .n = n, .special = x->special};
    const struct kv_added_token *found;
    size_t start, end;

    do {
        found = kv_added_next(&scan, &start, &end);
        if (start < end && encode_between(x, s + start, end - start, !start, e))
            return -1;
        if (found)
            kv_ids_add(&x->ids, found->id);
    } while (found);
    count_named(x, &scan);
    return 0;
}

int kv_tokenizer_encode(const struct kv_tokenizer *t, const char *text,
                        size_t n_bytes, bool special, int32_t **ids, size_t *n,
                        struct kv_named *named, struct kv_err *e)
{
    struct encoding x = {.t = t, .special = special};
    char *repaired = NULL;
    int rc;

    if (special && t->splits_special)
        return kv_fail(e, "special tokens cannot be read as such: "
                          "\"split_special_tokens\" of tokenizer_config.json "
                          "is true");
    if (special && t->flags_differ)
        return kv_fail(e,
                       "special tokens cannot be read as such: normalized, "
                       "single_word, lstrip or rstrip of \"%s\" differ in "
                       "tokenizer.json and tokenizer_config.json",
                       t->flags_differ);
    x.run = t->bpe ? kv_bpe_run_new(t->bpe) : NULL;
    if (kv_utf8_valid(text, n_bytes) != n_bytes) {
        repaired = kv_utf8_repair(text, n_bytes, &n_bytes);
        text = repaired;
    }
    kv_watch_init(&x.watch, n_bytes);
    rc = encode(&x, text, n_bytes, e);
    if (rc) {
        if (!kv_interrupted(NULL))
            kv_fail_in(e, "%s", t->path);
        free(x.ids.id);
    } else {
        *ids = x.ids.id ? x.ids.id : kv_alloc(1, sizeof(**ids));
        *n = x.ids.n;
        if (named)
            *named = x.named;
    }
    kv_bpe_run_free(x.run);
    kv_lattice_clear(&x.lattice);
    kv_text_clear(&x.normal);
    free(repaired);
    return rc;
}

static int add_token(const struct kv_tokenizer *t, int32_t id, bool special,
                     struct kv_token_list *tokens, struct kv_err *e)
{
    const struct kv_vocab *v = t->vocab;
    const struct kv_added_token *a = kv_added_id(t->added, id);

    if (a) {
        if (special || !a->special)
            kv_token_list_add(tokens, a->content, strlen(a->content));
        return 0;
    }
    if (id < 0 || (size_t)id >= v->n_ids || !v->token[id].s)
        return kv_fail(e, "token id %d is not in the vocabulary of %zu",
                       (int)id, kv_tokenizer_vocab(t));
    kv_token_list_add(tokens, v->token[id].s, v->token[id].n);
    return 0;
}

int kv_tokenizer_decode(const struct kv_tokenizer *t, const int32_t *ids,
                        size_t n, bool special, char **text, size_t *n_bytes,
                        struct kv_err *e)
{
    struct kv_token_list tokens = {0};
    int rc = 0;

    for (size_t i = 0; i < n && !rc; i++)
        rc = add_token(t, ids[i], special, &tokens, e);
    if (!rc)
        rc = kv_decoder_run(t->decoder, &tokens, e);
    if (!rc) {
        *text = kv_strndup(tokens.text.n ? tokens.text.s : "", tokens.text.n);
        *n_bytes = tokens.text.n;
    }
    kv_token_list_clear(&tokens);
    return rc;
}

bool kv_tokenizer_bytes(const struct kv_tokenizer *t, int32_t id,
                        struct kv_text *bytes)
{
    const struct kv_vocab *v = t->vocab;

    return !kv_added_id(t->added, id) && id >= 0 && (size_t)id < v->n_ids &&
           v->token[id].s &&
           kv_decoder_bytes(t->decoder, v->token[id].s, v->token[id].n, bytes);
}

size_t kv_tokenizer_vocab(const struct kv_tokenizer *t)
{
    const size_t added = (size_t)(kv_added_last_id(t->added) + 1);

    return added > t->vocab->n_ids ? added : t->vocab->n_ids;
}

int32_t kv_tokenizer_bos(const struct kv_tokenizer *t)
{
    return t->bos;
}

bool kv_tokenizer_adds_bos(const struct kv_tokenizer *t)
{
    return t->adds_bos;
}
