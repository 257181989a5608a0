/* kvppl --resume: the inputs that finished rows depend on. */
#include "lib/base/alloc.h"
#include "lib/file_hash.h"
#include "tools/kvppl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "none" without a file. */
static int hash_file(const char *path, char hex[KV_HASH_CHARS],
                     struct kv_err *e)
{
    struct kv_hash *h;
    int rc;

    snprintf(hex, KV_HASH_CHARS, "none");
    if (!path)
        return 0;
    h = kv_hash_new();
    rc = kv_hash_add_file(h, path, UINT64_MAX, e);
    kv_hash_end(h, hex);
    return rc;
}

/* Layer files count by their content, which is part of the canonical spec, the
 * key of a row; the tokenizer and --pool-heads by the model's hash. */
static int run_line(const struct kvppl_run *r, const struct kvppl_args *a,
                    const int32_t *tokens, char *line, size_t capacity,
                    struct kv_err *e)
{
    const struct kv_conditions *c = &r->conditions;
    char calib[KV_HASH_CHARS], base[KV_HASH_CHARS], ids[KV_HASH_CHARS];

    if (hash_file(a->calib, calib, e) ||
        hash_file(a->kl_read ? a->kl_base : NULL, base, e))
        return -1;
    kv_hash_bytes(tokens, r->text.n * r->text.ctx * sizeof(*tokens), ids);
    snprintf(
        line, capacity,
        "kvppl %s device %s model %s text %s tokens %s bos %d ctx %zu "
        "windows %zu protocol %s calib %s seed %llu kl %d base %s%s gemm %s",
        kv_version(), c->device, c->model_hash, c->text_hash, ids,
        (int)c->reading.bos, c->ctx, c->windows, c->protocol, calib,
        (unsigned long long)c->seed, a->kl || a->kl_read, base,
        a->no_base ? " (no base line)" : "", c->gemm);
    return 0;
}

int kvppl_open_journal(struct kvppl_run *r, const struct kvppl_args *a,
                       const int32_t *tokens, struct kv_err *e)
{
    size_t capacity;
    char run[1024], *path;
    int rc;

    if (!a->resume)
        return 0;
    if (!a->common.output)
        return kv_fail(e, "--resume wants -o FILE, beside which the finished "
                          "rows are kept");
    if (run_line(r, a, tokens, run, sizeof(run), e))
        return -1;
    capacity = strlen(a->common.output) + sizeof(".partial");
    path = kv_alloc(capacity, 1);
    snprintf(path, capacity, "%s.partial", a->common.output);
    rc = kv_journal_open(&r->journal, path, run, e);
    if (!rc && kv_journal_damaged(r->journal))
        kv_warn("%s: line %zu is damaged: what it and those after it hold is "
                "measured anew",
                path, kv_journal_damaged(r->journal));
    free(path);
    return rc;
}
