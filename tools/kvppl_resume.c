/* kvppl --resume: what finished rows depend on. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"
#include "tools/kvppl.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The files that a model is read from, whatever they are called: what the
 * model's own hash leaves out as well. */
static int is_of_model(const struct dirent *d)
{
    static const char *const ends[] = {".json", ".safetensors"};
    const size_t n = strlen(d->d_name);

    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
        const size_t of_end = strlen(ends[i]);

        if (n > of_end && !strcmp(d->d_name + n - of_end, ends[i]))
            return 1;
    }
    return 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int hash_model(const char *dir, char hex[KV_HASH_CHARS],
                      struct kv_err *e)
{
    struct dirent **file;
    const int n = scandir(dir, &file, is_of_model, by_name);
    struct kv_hash *h;
    int rc = 0;

    if (n < 0)
        return kv_fail(e, "cannot read %s: %s", dir, strerror(errno));
    h = kv_hash_new();
    for (int i = 0; i < n; i++) {
        char *path = kv_path_join(dir, file[i]->d_name);

        kv_hash_add(h, file[i]->d_name, strlen(file[i]->d_name) + 1);
        rc = rc || kv_hash_add_file(h, path, e) ? -1 : 0;
        free(path);
        free(file[i]);
    }
    free(file);
    kv_hash_end(h, hex);
    return rc;
}

/* "none" where there is no file. */
static int hash_file(const char *path, char hex[KV_HASH_CHARS],
                     struct kv_err *e)
{
    struct kv_hash *h;
    int rc;

    snprintf(hex, KV_HASH_CHARS, "none");
    if (!path)
        return 0;
    h = kv_hash_new();
    rc = kv_hash_add_file(h, path, e);
    kv_hash_end(h, hex);
    return rc;
}

/* Layer files are known by what they say: it is in the canonical spec, by which
 * a row is found.  The tokens are what the tokenizer's files, the text and the
 * options about it come to. */
static int run_line(const struct kvppl_run *r, const struct kvppl_args *a,
                    const int32_t *tokens, char *line, size_t room,
                    struct kv_err *e)
{
    const struct kv_conditions *c = &r->conditions;
    char model[KV_HASH_CHARS], calib[KV_HASH_CHARS], base[KV_HASH_CHARS];
    char ids[KV_HASH_CHARS];

    if (hash_model(a->model, model, e) || hash_file(a->calib, calib, e) ||
        hash_file(a->kl_read ? a->kl_base : NULL, base, e))
        return -1;
    kv_hash_bytes(tokens, r->text.n * r->text.ctx * sizeof(*tokens), ids);
    snprintf(line, room,
             "kvppl %s device %s model %s text %s tokens %s ctx %zu windows "
             "%zu protocol %s calib %s seed %llu kl %d base %s",
             kv_version(), c->device, model, c->text_hash, ids, c->ctx,
             c->windows, c->protocol, calib, (unsigned long long)c->seed,
             a->kl || a->kl_read, base);
    return 0;
}

int kvppl_open_journal(struct kvppl_run *r, const struct kvppl_args *a,
                       const int32_t *tokens, struct kv_err *e)
{
    size_t room;
    char run[1024], *path;
    int rc;

    if (!a->resume)
        return 0;
    if (!a->common.output)
        return kv_fail(e, "--resume wants -o FILE, beside which the finished "
                          "rows are kept");
    if (run_line(r, a, tokens, run, sizeof(run), e))
        return -1;
    room = strlen(a->common.output) + sizeof(".partial");
    path = kv_alloc(room, 1);
    snprintf(path, room, "%s.partial", a->common.output);
    rc = kv_journal_open(&r->journal, path, run, e);
    if (!rc && kv_journal_damaged(r->journal))
        fprintf(stderr,
                "kvppl: %s: line %zu is damaged: what it and those after it "
                "hold is measured anew\n",
                path, kv_journal_damaged(r->journal));
    free(path);
    return rc;
}
