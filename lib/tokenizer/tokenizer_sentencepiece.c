#include "lib/tokenizer/tokenizer_sentencepiece.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/json_file.h"
#include "lib/model/model_files.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "lib/tokenizer/tokenizer_pieces.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

/* ---- protocol buffers -------------------------------------------------- */

/* A message is a sequence of fields; each has a number with a kind, and a
 * value. */
struct message {
    const uint8_t *data;
    size_t bytes, at;
};

enum kind { VARINT = 0, EIGHT = 1, BYTES = 2, FOUR = 5 };

struct field {
    uint64_t number, value; /* number of bytes for BYTES */
    enum kind kind;
    const uint8_t *data; /* for all kinds except VARINT */
};

static int read_varint(struct message *m, uint64_t *x, struct kv_err *e)
{
    *x = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (m->at == m->bytes)
            return kv_fail(e, "it ends inside a number");
        *x |= (uint64_t)(m->data[m->at] & 0x7f) << shift;
        if (!(m->data[m->at++] & 0x80))
            return 0;
    }
    return kv_fail(e, "a number of more than 64 bits");
}

/* Reads the next field.  Returns 1, 0 at the end, or -1. */
static int next(struct message *m, struct field *f, struct kv_err *e)
{
    uint64_t tag, n;

    if (m->at == m->bytes)
        return 0;
    if (read_varint(m, &tag, e))
        return -1;
    *f = (struct field){.number = tag >> 3, .kind = (enum kind)(tag & 7)};
    if (f->kind == VARINT)
        return read_varint(m, &f->value, e) ? -1 : 1;
    if (f->kind == BYTES) {
        if (read_varint(m, &n, e))
            return -1;
    } else if (f->kind == EIGHT || f->kind == FOUR) {
        n = f->kind == EIGHT ? 8 : 4;
    } else {
        return kv_fail(e, "a field of kind %u", (unsigned)(tag & 7));
    }
    if (n > m->bytes - m->at)
        return kv_fail(e, "a field of %llu bytes where %zu follow",
                       (unsigned long long)n, m->bytes - m->at);
    f->value = n;
    f->data = m->data + m->at;
    m->at += (size_t)n;
    return 1;
}

static struct message inside(const struct field *f)
{
    return (struct message){.data = f->data, .bytes = (size_t)f->value};
}

/* ---- SentencePiece's messages ------------------------------------------ */

enum { MODEL_PIECE = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum {
    TRAINER_TYPE = 3,
    TRAINER_SUFFIX = 24,
    TRAINER_BYTES = 35,
    TRAINER_UNK = 40,
    TRAINER_BOS = 41
};
enum {
    NORMALIZER_TABLE = 2,
    NORMALIZER_PREFIX = 3,
    NORMALIZER_EXTRA = 4,
    NORMALIZER_ESCAPE = 5
};
enum { UNIGRAM = 1, BPE = 2 };

struct reading {
    struct kv_pieces pieces;
    size_t capacity;
    uint64_t type, unk;
    int32_t bos;
    bool byte_fallback, suffix;
    struct kv_spaces spaces;
    bool escape;
};

static int read_piece(struct reading *r, struct message m, struct kv_err *e)
{
    struct kv_piece p = {.s = "", .type = KV_PIECE_NORMAL};
    struct field f;
    float score;
    int rc;

    while ((rc = next(&m, &f, e)) > 0) {
        if (f.number == PIECE_TEXT && f.kind == BYTES) {
            p.s = (const char *)f.data;
            p.n = (size_t)f.value;
        } else if (f.number == PIECE_SCORE && f.kind == FOUR) {
            memcpy(&score, f.data, sizeof(score));
            p.score = (double)score;
        } else if (f.number == PIECE_TYPE && f.kind == VARINT) {
            p.type = f.value < KV_N_PIECE_TYPES ? (int64_t)f.value : -1;
        }
    }
    if (r->pieces.n == r->capacity) {
        r->capacity = 2 * r->capacity + 1024;
        r->pieces.piece =
            kv_realloc(r->pieces.piece, r->capacity, sizeof(*r->pieces.piece));
    }
    r->pieces.piece[r->pieces.n++] = p;
    return rc;
}

static int read_trainer(struct reading *r, struct message m, struct kv_err *e)
{
    struct field f;
    int rc;

    while ((rc = next(&m, &f, e)) > 0) {
        if (f.kind != VARINT)
            continue;
        if (f.number == TRAINER_TYPE)
            r->type = f.value;
        else if (f.number == TRAINER_SUFFIX)
            r->suffix = f.value;
        else if (f.number == TRAINER_BYTES)
            r->byte_fallback = f.value;
        else if (f.number == TRAINER_UNK)
            r->unk = f.value;
        else if (f.number == TRAINER_BOS)
            r->bos = (int32_t)f.value; /* -1 is written in 64 bits */
    }
    return rc;
}

static int read_normalizer(struct reading *r, struct message m,
                           struct kv_err *e)
{
    struct field f;
    int rc;

    while ((rc = next(&m, &f, e)) > 0) {
        if (f.number == NORMALIZER_TABLE && f.kind == BYTES) {
            r->spaces.table = f.data;
            r->spaces.table_bytes = (size_t)f.value;
        } else if (f.number == NORMALIZER_PREFIX && f.kind == VARINT)
            r->spaces.prefix = f.value;
        else if (f.number == NORMALIZER_EXTRA && f.kind == VARINT)
            r->spaces.remove_extra = f.value;
        else if (f.number == NORMALIZER_ESCAPE && f.kind == VARINT)
            r->escape = f.value;
    }
    return rc;
}

static int read_model(struct reading *r, struct message m, struct kv_err *e)
{
    struct field f;
    int rc;

    while ((rc = next(&m, &f, e)) > 0) {
        if (f.kind != BYTES)
            continue;
        if (f.number == MODEL_PIECE)
            rc = read_piece(r, inside(&f), e);
        else if (f.number == MODEL_TRAINER)
            rc = read_trainer(r, inside(&f), e);
        else if (f.number == MODEL_NORMALIZER)
            rc = read_normalizer(r, inside(&f), e);
        if (rc < 0)
            return -1;
    }
    return rc;
}

/* ---- the tokenizer.json ------------------------------------------------ */

static int refuse_rest(const struct reading *r, struct kv_err *e)
{
    if (r->type != UNIGRAM && r->type != BPE)
        return kv_fail(e,
                       "model type %llu is not supported, only 1 (Unigram) "
                       "and 2 (BPE)",
                       (unsigned long long)r->type);
    for (size_t i = 0; r->type == UNIGRAM && i < r->pieces.n; i++)
        if (r->pieces.piece[i].type == KV_PIECE_UNUSED)
            return kv_fail(e,
                           "piece %zu is an unused one, which is not "
                           "supported in Unigram",
                           i);
    if (r->suffix)
        return kv_fail(e, "treat_whitespace_as_suffix is not supported");
    if (!r->escape)
        return kv_fail(e, "no escape_whitespaces is not supported");
    if (r->unk >= r->pieces.n || (r->bos >= 0 && (size_t)r->bos >= r->pieces.n))
        return kv_fail(e, "unk_id or bos_id is none of %zu tokens",
                       r->pieces.n);
    return 0;
}

/* Writes user-defined tokens with spaces instead of U+2581, one after the other
 * in `text`, since they are matched in the original text. */
static void unescape(struct reading *r, struct kv_text *text)
{
    size_t room = 0;

    for (size_t i = 0; i < r->pieces.n; i++)
        room += r->pieces.piece[i].n;
    kv_text_extend(text, room + 1); /* text does not move from here on */
    for (size_t i = 0; i < r->pieces.n; i++) {
        struct kv_piece *p = &r->pieces.piece[i];
        const size_t start = text->n;

        if (p->type != KV_PIECE_USER_DEFINED)
            continue;
        for (size_t at = 0; at < p->n; at++) {
            const bool space =
                p->n - at >= 3 && !memcmp(p->s + at, "\xe2\x96\x81", 3);

            kv_text_add(text, space ? " " : p->s + at, 1);
            at += space ? 2 : 0;
        }
        p->s = text->s + start;
        p->n = text->n - start;
    }
}

static int make(struct reading *r, bool adds_bos, json_t *out,
                struct kv_text *text, struct kv_err *e)
{
    json_object_set_new(out, "model", json_object());
    if (refuse_rest(r, e))
        return -1;
    unescape(r, text);
    if (kv_pieces_add(&r->pieces, out, e))
        return -1;
    if (adds_bos && r->bos >= 0)
        kv_pieces_add_bos(&r->pieces, out, (size_t)r->bos);
    kv_pieces_add_spaces(out, &r->spaces);
    if (r->type == BPE)
        return kv_pieces_add_bpe(&r->pieces, out, (size_t)r->unk, e);
    kv_pieces_add_unigram(&r->pieces, out, (size_t)r->unk, r->byte_fallback,
                          true);
    return 0;
}

static int config_adds_bos(const char *dir, bool *adds, struct kv_err *e)
{
    char *path = kv_model_file(dir, "tokenizer_config.json");
    json_t *j = NULL;
    int rc = 0;

    *adds = true;
    if (kv_file_exists(path)) {
        j = kv_json_read(path, e);
        rc = j ? kv_field_flag(j, "add_bos_token", true, adds, e) : -1;
        if (j && rc)
            kv_fail_in(e, "%s", path);
    }
    json_decref(j);
    free(path);
    return rc;
}

static json_t *of_file(const char *path, bool adds_bos, struct kv_err *e)
{
    /* defaults for missing fields of a message */
    struct reading r = {.type = UNIGRAM,
                        .bos = 1,
                        .spaces = {.prefix = true, .remove_extra = true},
                        .escape = true};
    struct kv_text text = {0};
    json_t *out = NULL;
    char *data;
    size_t bytes;
    int rc;

    if (kv_file_read(path, &data, &bytes, e))
        return NULL;
    rc = read_model(&r, (struct message){(const uint8_t *)data, bytes, 0}, e);
    if (!rc) {
        out = json_object();
        rc = make(&r, adds_bos, out, &text, e);
    }
    if (rc) {
        kv_fail_in(e, "%s", path);
        json_decref(out);
        out = NULL;
    }
    kv_text_clear(&text);
    free(r.pieces.piece);
    free(data);
    return out;
}

json_t *kv_tokenizer_of_sentencepiece(const char *dir, struct kv_err *e)
{
    char *path = kv_model_file(dir, "tokenizer.model");
    bool adds_bos;
    json_t *j = NULL;

    if (!config_adds_bos(dir, &adds_bos, e))
        j = of_file(path, adds_bos, e);
    free(path);
    return j;
}
