#include "lib/tokenizer/tokenizer_vocab.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* The first pass: checks the ids, and counts the ids and the bytes of the
 * names. */
static int measure(struct kv_vocab *v, json_t *j, size_t *n_bytes,
                   struct kv_err *e)
{
    *n_bytes = 0;
    for (void *i = json_object_iter(j); i; i = json_object_iter_next(j, i)) {
        const char *name = json_object_iter_key(i);
        const json_t *value = json_object_iter_value(i);
        const json_int_t id =
            json_is_integer(value) ? json_integer_value(value) : -1;

        if (id < 0 || id >= KV_TOKEN_IDS)
            return kv_fail(e, "the id of \"%s\" is not an integer from 0 to %d",
                           name, KV_TOKEN_IDS - 1);
        if ((size_t)id >= v->n_ids)
            v->n_ids = (size_t)id + 1;
        *n_bytes += strlen(name);
    }
    return 0;
}

int kv_vocab_init(struct kv_vocab *v, json_t *j, struct kv_err *e)
{
    size_t n_bytes, at = 0, capacity = 2;

    *v = (struct kv_vocab){0};
    if (measure(v, j, &n_bytes, e))
        return -1;
    while (capacity < 2 * json_object_size(j))
        capacity *= 2;
    v->slot = kv_alloc(capacity, sizeof(*v->slot));
    memset(v->slot, 0xff, capacity * sizeof(*v->slot)); /* -1 */
    v->mask = capacity - 1;
    v->n = json_object_size(j);
    v->token = kv_alloc(v->n_ids, sizeof(*v->token));
    v->names = kv_alloc(n_bytes + 1, 1);
    for (void *i = json_object_iter(j); i; i = json_object_iter_next(j, i)) {
        const char *name = json_object_iter_key(i);
        const size_t n = strlen(name);
        const int32_t id =
            (int32_t)json_integer_value(json_object_iter_value(i));
        size_t h = kv_name_hash(name, n) & v->mask;

        if (v->token[id].s) {
            kv_fail(e, "id %d is given to \"%.*s\" and to \"%s\"", (int)id,
                    (int)v->token[id].n, v->token[id].s, name);
            kv_vocab_clear(v);
            return -1;
        }
        while (v->slot[h] >= 0)
            h = (h + 1) & v->mask;
        v->slot[h] = id;
        memcpy(v->names + at, name, n);
        v->token[id] = (struct kv_token){.s = v->names + at, .n = n};
        at += n;
    }
    return 0;
}

void kv_vocab_clear(struct kv_vocab *v)
{
    free(v->slot);
    free(v->token);
    free(v->names);
    *v = (struct kv_vocab){0};
}

int32_t kv_vocab_id(const struct kv_vocab *v, const char *s, size_t n)
{
    size_t h = kv_name_hash(s, n) & v->mask;

    for (; v->slot[h] >= 0; h = (h + 1) & v->mask) {
        const struct kv_token *t = &v->token[v->slot[h]];

        if (t->n == n && !memcmp(t->s, s, n))
            return v->slot[h];
    }
    return -1;
}
