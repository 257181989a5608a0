/* kvppl --base: the base lines of a study, which one run computes and others
 * read.  Each setting has a group, /base_000 and so on, whose attributes are
 * the conditions that must agree. */
#include "eval/ppl_base.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"
#include "lib/h5_head.h"
#include "tools/kvppl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIND "kvtools-base"
enum { FORMAT = 1, MAX_BASES = 1000000 };

/* The settings on which a base line's numbers depend. */
struct member {
    const char *name;
    char value[128];
};
enum { MEMBERS = 6 };

static void describe(const struct kvppl_run *r, struct member m[MEMBERS])
{
    const struct kv_conditions *c = &r->conditions;
    char tokens[KV_HASH_CHARS];
    const char *const value[MEMBERS] = {c->model_hash,    tokens,
                                        r->protocol.text, c->gemm,
                                        c->device,        kv_version()};
    static const char *const name[MEMBERS] = {
        "model_hash", "tokens_hash", "protocol", "gemm", "device", "version"};

    kv_hash_bytes(r->tokens, r->text.n * r->n_tokens * sizeof(*r->tokens),
                  tokens);
    for (size_t i = 0; i < MEMBERS; i++) {
        m[i].name = name[i];
        snprintf(m[i].value, sizeof(m[i].value), "%s", value[i]);
    }
}

int kvppl_open_base(struct kvppl_study *s, const struct kvppl_args *a,
                    struct kv_err *e)
{
    const char *other = a->no_base   ? "--no-base"
                        : a->kl_base ? "--kl-divergence-base"
                        : a->ranks   ? "--ranks"
                                     : NULL;

    if (!a->base)
        return 0;
    if (other)
        return kv_fail(e, "--base does not go with %s", other);
    if (kv_file_exists(a->base))
        return kv_h5_open(&s->base_from, a->base, e) ||
                       kv_h5_check_kind(s->base_from, KIND, FORMAT, e)
                   ? -1
                   : 0;
    if (kv_h5_create(&s->base_to, a->base, e))
        return -1;
    kv_h5_put_kind(s->base_to, KIND, FORMAT);
    return 0;
}

/* *at: the first member whose value in the group differs, MEMBERS if all agree;
 * value: the group's value. */
static int differs(struct kv_h5 *h, const char *group,
                   const struct member m[MEMBERS], size_t *at, char value[128],
                   struct kv_err *e)
{
    for (*at = 0; *at < MEMBERS; ++*at) {
        if (kv_h5_get_text(h, group, m[*at].name, value, 128, e))
            return -1;
        if (strcmp(value, m[*at].value))
            return 0;
    }
    return 0;
}

/* Finds the setting's group.  Fails with the difference to the nearest
 * group. */
static int find(struct kvppl_run *r, char group[KV_H5_NAME_CHARS],
                struct kv_err *e)
{
    struct kv_h5 *h = r->study->base_from;
    struct member m[MEMBERS];
    char value[128], nearest[128] = "", model[128] = "", text[128] = "";
    char size[64] = "";
    size_t at, best = 0;

    describe(r, m);
    for (size_t i = 0; i < MAX_BASES; i++) {
        snprintf(group, KV_H5_NAME_CHARS, "/base_%03zu", i);
        if (!kv_h5_has(h, group))
            break;
        if (differs(h, group, m, &at, value, e))
            return -1;
        if (at == MEMBERS)
            return 0;
        if (*nearest && at <= best)
            continue;
        best = at;
        memcpy(nearest, value, sizeof(nearest));
        if (kv_h5_get_text(h, group, "model", model, sizeof(model), e) ||
            kv_h5_get_text(h, group, "text", text, sizeof(text), e) ||
            (kv_h5_has_attr(h, group, "size") &&
             kv_h5_get_text(h, group, "size", size, sizeof(size), e)))
            return -1;
    }
    return kv_fail(e,
                   "%s has no base line of model %s, text %s (%s), %zu x %zu "
                   "tokens, protocol %s: the nearest, of model %s, text %s, %s "
                   "tokens, has %s %s, and here it is %s",
                   kv_h5_path(h), r->conditions.model, r->text.text, r->of.text,
                   r->text.n, r->n_tokens, r->protocol.text,
                   *model ? model : "nothing", *text ? text : "nothing",
                   *size ? size : "other", m[best].name,
                   *nearest ? nearest : "nothing", m[best].value);
}

int kvppl_load_base(struct kvppl_run *r, struct kv_ppl_row *row,
                    struct kv_err *e)
{
    char group[KV_H5_NAME_CHARS];

    return find(r, group, e) ||
                   kv_ppl_base_load(r->ppl, r->study->base_from, group, row, e)
               ? -1
               : 0;
}

int kvppl_save_base(struct kvppl_run *r, const struct kv_ppl_row *row,
                    struct kv_err *e)
{
    struct kv_h5 *h = r->study->base_to;
    struct member m[MEMBERS];
    char group[KV_H5_NAME_CHARS], size[64];

    if (!h)
        return 0;
    describe(r, m);
    snprintf(group, sizeof(group), "/base_%03zu", r->study->n_bases++);
    if (kv_ppl_base_save(r->ppl, row, h, group, e))
        return -1;
    for (size_t i = 0; i < MEMBERS; i++)
        kv_h5_put_text(h, group, m[i].name, m[i].value);
    snprintf(size, sizeof(size), "%zu x %zu", r->text.n, r->n_tokens);
    kv_h5_put_text(h, group, "size", size);
    kv_h5_put_text(h, group, "model", r->conditions.model);
    kv_h5_put_text(h, group, "text", r->text.text);
    return 0;
}

int kvppl_close_base(struct kvppl_study *s, struct kv_err *e)
{
    struct kv_h5 *h = s->base_to;

    s->base_to = NULL;
    return h ? kv_h5_commit(h, e) : 0;
}
