/* Tokens by name and by id. */
#ifndef KV_MODEL_TOKENIZER_VOCAB_H
#define KV_MODEL_TOKENIZER_VOCAB_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Ids may have gaps, but a file with a larger id than this is wrong (the
 * largest vocabularies have about 2^18). */
enum { KV_TOKEN_IDS = 1 << 21 };

struct kv_token {
    const char *s; /* NULL: no token has this id */
    size_t n;
};

struct kv_vocab {
    struct kv_token *token; /* [n_ids] */
    size_t n_ids;           /* highest id + 1 */
    size_t n;               /* the number of tokens */
    int32_t *slot;          /* [mask + 1] ids by hash, -1 where empty */
    size_t mask;
    char *names;
};

/* j: an object of names and ids.  Fails on an id that is not an integer, is out
 * of range, or occurs twice. */
int kv_vocab_init(struct kv_vocab *v, json_t *j, struct kv_err *e);
void kv_vocab_clear(struct kv_vocab *v);

/* The id of this name, or -1. */
int32_t kv_vocab_id(const struct kv_vocab *v, const char *s, size_t n);

/* The FNV-1a hash of a name. */
static inline uint64_t kv_name_hash(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

#endif
