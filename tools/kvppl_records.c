/* kvppl --records: the scores of every token, for comparisons of rows.
 *
 * /set_000 is what rows share: attributes name model, text and protocol;
 *   tokens    i32 [windows][scored], the tokens that are scored
 *   positions i32 [scored], their places in a window, from 0
 *   bytes     i32 [windows], of the scored text, where tokens can be decoded
 * /row_000 is a row: attributes name its spec, calibration and set;
 *   nll       f32 [windows][scored], nats
 *   kl        f32, from the base line; same u8, 1 where the most probable token
 *             is the base line's; dp f32, change of the token's probability:
 *             where the base line was compared with */
#include "lib/base/alloc.h"
#include "lib/h5_head.h"
#include "tools/kvppl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define KIND "kvtools-records"
enum { FORMAT = 1 };

/* A dataset [windows][scored] of a row. */
struct plane {
    const char *name;
    enum kv_h5_type type;
};

int kvppl_records_open(struct kvppl_study *s, const struct kvppl_args *a,
                       struct kv_err *e)
{
    if (!a->records)
        return 0;
    if (a->resume || a->append)
        return kv_fail(e,
                       "--records does not go with --%s: rows that are there "
                       "are not measured again",
                       a->resume ? "resume" : "append");
    if (kv_h5_create(&s->records, a->records, e))
        return -1;
    kv_h5_put_kind(s->records, KIND, FORMAT);
    return 0;
}

static void scored(const struct kvppl_run *r, size_t *first, size_t *n)
{
    size_t last;

    kv_protocol_scored(&r->protocol, r->n_tokens, first, &last);
    *n = last - *first;
    ++*first; /* the token that the first position predicts */
}

static void put_conditions(const struct kvppl_run *r, const char *set)
{
    const struct kv_conditions *c = &r->conditions;
    struct kv_h5 *h = r->study->records;

    kv_h5_put_text(h, set, "model", c->model);
    kv_h5_put_text(h, set, "model_hash", c->model_hash);
    kv_h5_put_text(h, set, "weights", c->weights);
    kv_h5_put_text(h, set, "text", c->text);
    kv_h5_put_text(h, set, "text_hash", c->text_hash);
    kv_h5_put_text(h, set, "protocol", c->protocol);
    kv_h5_put_text(h, set, "gemm", c->gemm);
    kv_h5_put_text(h, set, "device", c->device);
    kv_h5_put_int(h, set, "ctx", (int64_t)c->ctx);
    kv_h5_put_int(h, set, "windows", (int64_t)c->windows);
    kv_h5_put_text(h, set, "places", r->places);
    kv_h5_put_u64(h, set, "seed", c->seed);
    kv_h5_put_int(h, set, "bos", (int64_t)c->reading.bos);
    kv_h5_put_int(h, set, "special", (int64_t)c->reading.special);
}

int kvppl_records_set(struct kvppl_run *r, struct kv_err *e)
{
    struct kv_h5 *h = r->study->records;
    const size_t n_windows = r->text.n;
    char set[KV_H5_NAME_CHARS / 2], name[KV_H5_NAME_CHARS];
    size_t first, n;
    int32_t *x;
    int rc = 0;

    if (!h)
        return 0;
    scored(r, &first, &n);
    snprintf(set, sizeof(set), "/set_%03zu", r->study->n_sets++);
    kv_h5_group(h, set);
    put_conditions(r, set);
    snprintf(name, sizeof(name), "%s/tokens", set);
    kv_h5_dataset(h, name, KV_H5_I32, 2, (const size_t[]){n_windows, n});
    for (size_t w = 0; w < n_windows && !rc; w++)
        rc = kv_h5_write(h, name, KV_H5_I32, (const size_t[]){w, 0},
                         (const size_t[]){1, n},
                         r->tokens + w * r->n_tokens + first, e);
    x = kv_alloc(n, sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = (int32_t)(first + i);
    snprintf(name, sizeof(name), "%s/positions", set);
    kv_h5_dataset(h, name, KV_H5_I32, 1, &n);
    rc = rc || kv_h5_write(h, name, KV_H5_I32, NULL, NULL, x, e);
    free(x);
    if (!rc && r->extent.bytes) {
        snprintf(name, sizeof(name), "%s/bytes", set);
        kv_h5_dataset(h, name, KV_H5_I32, 1, &n_windows);
        rc = kv_h5_write(h, name, KV_H5_I32, NULL, NULL, r->extent.window, e);
    }
    return rc ? -1 : 0;
}

/* Copies the member `name` of each loss into x or same. */
static void fill(const char *name, const struct kv_loss *loss, size_t n,
                 float *x, uint8_t *same)
{
    for (size_t i = 0; i < n; i++)
        switch (*name) {
        case 'n':
            x[i] = loss[i].nll;
            break;
        case 'k':
            x[i] = loss[i].kl;
            break;
        case 'd':
            x[i] = loss[i].dp;
            break;
        default:
            same[i] = loss[i].same;
        }
}

int kvppl_records_row(struct kvppl_run *r, const struct kvppl_args *a,
                      const struct kv_spec *spec, const struct kv_ppl_row *row,
                      struct kv_err *e)
{
    static const struct plane planes[] = {{"nll", KV_H5_F32},
                                          {"kl", KV_H5_F32},
                                          {"dp", KV_H5_F32},
                                          {"same", KV_H5_U8}};
    struct kv_h5 *h = r->study->records;
    size_t first, n, dims[2] = {r->text.n, 0};
    char at[KV_H5_NAME_CHARS / 2], name[KV_H5_NAME_CHARS];
    const bool kl = !isnan(row->score.kl_mean);
    float *x;
    int rc = 0;

    if (!h)
        return 0;
    scored(r, &first, &dims[1]);
    n = dims[0] * dims[1];
    snprintf(at, sizeof(at), "/row_%03zu", r->study->n_records++);
    kv_h5_group(h, at);
    kv_h5_put_text(h, at, "spec", spec->text);
    kv_h5_put_int(h, at, "set", (int64_t)r->study->n_sets - 1);
    kv_h5_put_text(h, at, "calib_hash",
                   r->calib && kv_spec_calibrated(spec) ? r->calib->hash : "");
    kv_h5_put_real(h, at, "bits", row->bits.bytes * 8 / row->bits.values);
    if (kl && a->jitter)
        kv_h5_put_real(h, at, "kl_jitter", kvppl_kl_jitter(row, a->jitter));
    x = kv_alloc(n, sizeof(*x));
    for (size_t i = 0; i < (kl ? 4 : 1) && !rc; i++) {
        fill(planes[i].name, row->loss, n, x, (uint8_t *)x);
        snprintf(name, sizeof(name), "%s/%s", at, planes[i].name);
        kv_h5_dataset(h, name, planes[i].type, 2, dims);
        rc = kv_h5_write(h, name, planes[i].type, NULL, NULL, x, e);
    }
    free(x);
    return rc;
}

int kvppl_records_close(struct kvppl_study *s, struct kv_err *e)
{
    struct kv_h5 *h = s->records;

    s->records = NULL;
    return h ? kv_h5_commit(h, e) : 0;
}
