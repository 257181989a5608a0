#include "lib/tokenizer/tokenizer_ranks.h"
#include "lib/base/alloc.h"
#include "lib/base/base64.h"
#include "lib/base/file.h"
#include "lib/json_file.h"
#include "lib/model/model_files.h"
#include "lib/tokenizer/tokenizer_bytes.h"
#include "lib/tokenizer/tokenizer_cuts.h"
#include "lib/tokenizer/tokenizer_pieces.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the two supported files ------------------------------------------- */

struct kind {
    const char *file, *whose;
    size_t n_ranks;
    const char *cut;
    bool nfc, adds_bos;
    const char *const *special; /* names of the first ones; ends with NULL */
    const char *more;           /* format of the other names */
    size_t n_special, first_more;
};

static const char *const qwen_special[] = {"<|endoftext|>", "<|im_start|>",
                                           "<|im_end|>", NULL};
static const char *const llama_special[] = {"<|begin_of_text|>",
                                            "<|end_of_text|>",
                                            "<|reserved_special_token_0|>",
                                            "<|reserved_special_token_1|>",
                                            "<|finetune_right_pad_id|>",
                                            "<|step_id|>",
                                            "<|start_header_id|>",
                                            "<|end_header_id|>",
                                            "<|eom_id|>",
                                            "<|eot_id|>",
                                            "<|python_tag|>",
                                            "<|image|>",
                                            NULL};

static const struct kind qwen = {.file = "qwen.tiktoken",
                                 .whose = "Qwen 1",
                                 .n_ranks = 151643,
                                 .cut = "qwen2",
                                 .nfc = true,
                                 .special = qwen_special,
                                 .more = "<|extra_%zu|>",
                                 .n_special = 208};
static const struct kind llama = {.file = "tokenizer.model",
                                  .whose = "Llama 3",
                                  .n_ranks = 128000,
                                  .cut = "llama-bpe",
                                  .adds_bos = true,
                                  .special = llama_special,
                                  .more = "<|reserved_special_token_%zu|>",
                                  .n_special = 256,
                                  .first_more = 2};

/* ---- ranks ------------------------------------------------------------- */

struct reading {
    const struct kind *kind;
    struct kv_pieces pieces; /* the rank is the id, and gives the score */
    struct kv_text names;    /* tokens' names, in the alphabet of bytes */
    struct kv_byte_alphabet alphabet;
};

bool kv_ranks_is(const char *path)
{
    unsigned char c;

    return kv_file_head(path, &c, 1) && (isalnum(c) || c == '+' || c == '/');
}

/* Reads the n-th line, such as "IQ== 0". */
static int read_line(struct reading *r, const char *s, size_t bytes, size_t n,
                     struct kv_err *e)
{
    const char *gap = memchr(s, ' ', bytes);
    const size_t digits = gap ? (size_t)(gap - s) : 0, start = r->names.n;
    uint8_t token[1024];
    char rank[24];
    size_t n_token;

    if (!digits || digits > sizeof(token) ||
        kv_base64_decode(s, digits, token, &n_token))
        return kv_fail(e, "line %zu is not a token in base64 and its rank",
                       n + 1);
    snprintf(rank, sizeof(rank), "%zu", n);
    if (bytes - digits - 1 != strlen(rank) ||
        memcmp(gap + 1, rank, strlen(rank)) != 0)
        return kv_fail(e, "line %zu has not the rank %zu", n + 1, n);
    kv_byte_encode(&r->alphabet, (const char *)token, n_token, &r->names);
    r->pieces.piece[n] = (struct kv_piece){.s = r->names.s + start,
                                           .n = r->names.n - start,
                                           .type = KV_PIECE_NORMAL,
                                           .score = -(double)n};
    return 0;
}

static int read_lines(struct reading *r, const char *text, size_t bytes,
                      struct kv_err *e)
{
    size_t n = 0, at = 0;

    /* a byte becomes at most two, so names never moves while it grows */
    kv_text_extend(&r->names, 2 * bytes + 1);
    r->pieces.piece = kv_alloc(r->kind->n_ranks, sizeof(*r->pieces.piece));
    for (size_t end; at < bytes && n < r->kind->n_ranks; at = end + 1, n++) {
        const char *newline = memchr(text + at, '\n', bytes - at);

        end = newline ? (size_t)(newline - text) : bytes;
        if (read_line(r, text + at, end - at, n, e))
            return -1;
    }
    if (n < r->kind->n_ranks || at < bytes)
        return kv_fail(e, "%s ranks than the %zu of %s, which is not supported",
                       at < bytes ? "more" : "fewer", r->kind->n_ranks,
                       r->kind->whose);
    r->pieces.n = n;
    return 0;
}

/* Fails unless every byte has a token, so that any text can be encoded. */
static int check_bytes(const struct reading *r, const json_t *vocab,
                       struct kv_err *e)
{
    for (unsigned c = 0; c < 256; c++) {
        char name[3] = {0};

        memcpy(name, r->alphabet.of[c].s, r->alphabet.of[c].n);
        if (!json_object_get(vocab, name))
            return kv_fail(e, "no token for the byte 0x%02x", c);
    }
    return 0;
}

/* ---- the tokenizer.json ------------------------------------------------ */

static void add_special(const struct kind *k, bool first_alone, json_t *out)
{
    json_t *list = json_array();
    size_t named = 0;

    for (size_t i = 0; i < (first_alone ? 1 : k->n_special); i++) {
        char name[64];

        if (k->special[named])
            snprintf(name, sizeof(name), "%s", k->special[named++]);
        else
            snprintf(name, sizeof(name), k->more, i - named + k->first_more);
        json_array_append_new(
            list, json_pack("{s:i, s:s, s:b, s:b}", "id", (int)(k->n_ranks + i),
                            "content", name, "special", 1, "normalized", 0));
    }
    json_object_set_new(out, "added_tokens", list);
}

static void add_bos(const struct kind *k, json_t *out)
{
    json_object_set_new(
        out, "post_processor",
        json_pack("{s:s, s:[{s:{s:s}}, {s:{s:s}}], s:{s:{s:[i]}}}", "type",
                  "TemplateProcessing", "single", "SpecialToken", "id",
                  k->special[0], "Sequence", "id", "A", "special_tokens",
                  k->special[0], "ids", (int)k->n_ranks));
}

/* Makes the tokenizer.json.  ignore_merges, because tiktoken first looks up the
 * whole word, and only then joins the pair whose token has the lowest rank. */
static int make(struct reading *r, bool listed, json_t *out, struct kv_err *e)
{
    const struct kind *k = r->kind;
    json_t *model = json_object();

    json_object_set_new(out, "model", model);
    if (kv_pieces_add(&r->pieces, out, e) ||
        check_bytes(r, json_object_get(model, "vocab"), e) ||
        kv_pieces_add_merges(&r->pieces, out, e))
        return -1;
    json_object_set_new(model, "ignore_merges", json_true());
    add_special(k, listed, out);
    if (k->adds_bos)
        add_bos(k, out);
    if (k->nfc)
        json_object_set_new(out, "normalizer",
                            json_pack("{s:s}", "type", "NFC"));
    kv_cut_add(kv_cut_find(k->cut, strlen(k->cut)), out);
    return 0;
}

static int config_lists(const char *dir, bool *lists, struct kv_err *e)
{
    char *path = kv_model_file(dir, "tokenizer_config.json");
    const bool there = kv_file_exists(path);
    json_t *j = there ? kv_json_read(path, e) : NULL;

    *lists = json_is_object(json_object_get(j, "added_tokens_decoder"));
    free(path);
    if (there && !j)
        return -1;
    json_decref(j);
    return 0;
}

static json_t *of_ranks(const struct kind *k, const char *dir, struct kv_err *e)
{
    struct reading r = {.kind = k};
    char *path = kv_model_file(dir, k->file), *text = NULL;
    json_t *out = NULL;
    size_t bytes;
    bool listed;

    kv_byte_alphabet_init(&r.alphabet);
    if (!config_lists(dir, &listed, e) &&
        !kv_file_read(path, &text, &bytes, e)) {
        out = json_object();
        if (read_lines(&r, text, bytes, e) || make(&r, listed, out, e)) {
            kv_fail_in(e, "%s", path);
            json_decref(out);
            out = NULL;
        }
    }
    kv_text_clear(&r.names);
    free(r.pieces.piece);
    free(text);
    free(path);
    return out;
}

json_t *kv_tokenizer_of_qwen_ranks(const char *dir, struct kv_err *e)
{
    return of_ranks(&qwen, dir, e);
}

json_t *kv_tokenizer_of_llama_ranks(const char *dir, struct kv_err *e)
{
    return of_ranks(&llama, dir, e);
}
