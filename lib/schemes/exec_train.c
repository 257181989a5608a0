#include "lib/schemes/exec_train.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/schemes/exec_pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The header before the tokens of a TRAIN request. */
struct lesson {
    uint64_t n_tokens, seed;
};

static enum kv_tensor exec_tensor(const struct kv_exec_place *p,
                                  enum kv_side side)
{
    return side == KV_V                  ? KV_T_V
           : kv_exec_layout(p)->pre_rope ? KV_T_K_PRE
                                         : KV_T_K;
}

static int open_place(struct kv_exec_place **p, const struct kv_spec *s,
                      const struct kv_dump_info *info, size_t layer,
                      enum kv_side side, struct kv_err *e)
{
    const struct kv_shape shape = kv_shape_layer(&info->shape, layer);

    return kv_exec_place_new(p, s, &shape, layer, side, NULL, 0, e);
}

static int exec_check_dump(const struct kv_spec *s, struct kv_dump *dump,
                           struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    int rc = 0;

    for (enum kv_side side = KV_K; side < KV_SIDES && !rc; side++) {
        struct kv_exec_place *p;

        if (open_place(&p, s, info, info->first_layer, side, e))
            return -1;
        rc = kv_exec_layout(p)->trains
                 ? kv_dump_want(dump, exec_tensor(p, side), e)
                 : 0;
        kv_exec_place_free(p);
    }
    return rc;
}

/* Moves the tokens that count to the front; returns their number. */
static size_t keep_counted(const struct kv_calib_set *set,
                           const struct kv_dump_info *info, size_t layer,
                           float *x)
{
    const bool *counts = kv_calib_counts(set, info, layer);
    const size_t row = info->shape.n_kv_heads * info->shape.head_dim;
    const size_t n = info->n_windows * info->ctx;
    size_t kept = 0;

    if (!counts)
        return n;
    for (size_t t = 0; t < n; t++)
        if (counts[t])
            memmove(x + kept++ * row, x + t * row, row * sizeof(*x));
    return kept;
}

static int check_tables(const float *x, size_t bytes, struct kv_err *e)
{
    if (!bytes || bytes % sizeof(*x))
        return kv_fail(e, "it answers %zu bytes: expected tables of f32",
                       bytes);
    for (size_t i = 0; i < bytes / sizeof(*x); i++)
        if (!isfinite(x[i]))
            return kv_fail(e, "it answers a NaN or an infinity");
    return 0;
}

/* Sends a TRAIN request with the tokens x of a layer and side; *tables: the
 * answer. */
static int ask(const struct kv_exec_place *p, const float *x, size_t n,
               size_t row, uint64_t seed, float **tables, size_t *n_tables,
               struct kv_err *e)
{
    const struct lesson head = {n, seed};
    const struct kv_exec_request r = {.kind = KV_EXEC_TRAIN,
                                      .head = &head,
                                      .head_bytes = sizeof(head),
                                      .data = x,
                                      .bytes = n * row * sizeof(*x),
                                      .at_most = (size_t)1 << 30};
    void *answer;
    size_t bytes;

    if (kv_exec_ask(p, &r, &answer, &bytes, e))
        return -1;
    if (check_tables(answer, bytes, e)) {
        struct kv_err why = *e;

        free(answer);
        return kv_exec_wrong(p, KV_EXEC_TRAIN, e, "%.400s", why.msg);
    }
    *tables = answer;
    *n_tables = bytes / sizeof(**tables);
    return 0;
}

static int train_place(const struct kv_exec_place *p, struct kv_dump *dump,
                       size_t layer, enum kv_side side, uint64_t seed,
                       struct kv_calib_set *out, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t n = info->n_windows * info->ctx;
    const size_t row = info->shape.n_kv_heads * info->shape.head_dim;
    float *x = kv_alloc(n, row * sizeof(*x)), *tables = NULL;
    size_t n_tables = 0;
    int rc = kv_interrupted(e) ||
             kv_dump_read(dump, layer, exec_tensor(p, side), 0, n, x, e);

    if (!rc)
        rc = ask(p, x, keep_counted(out, info, layer, x), row, seed, &tables,
                 &n_tables, e);
    if (!rc) {
        struct kv_table *t = kv_calib_add(out, KV_EXEC_TABLES, (int)side,
                                          (int)layer, KV_ALL, 1, &n_tables);

        memcpy(t->data, tables, n_tables * sizeof(*tables));
    }
    free(tables);
    free(x);
    return rc ? -1 : 0;
}

static int exec_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                          uint64_t seed, struct kv_calib_set *out,
                          struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const int n_sides = kv_shape_sides(&info->shape);
    int rc = 0;

    for (size_t layer = info->first_layer; layer <= info->last_layer; layer++)
        for (enum kv_side side = KV_K; (int)side < n_sides; side++) {
            struct kv_exec_place *p;

            if (open_place(&p, s, info, layer, side, e))
                return -1;
            if (kv_exec_layout(p)->trains)
                rc = train_place(p, dump, layer, side, seed, out, e);
            kv_exec_place_free(p);
            if (rc)
                return -1;
        }
    if (!out->n_tables)
        snprintf(out->warning, sizeof(out->warning),
                 "%.200s: its process asks for no training", s->given);
    return 0;
}

const struct kv_training kv_exec_training = {
    .check_dump = exec_check_dump,
    .calibrate = exec_calibrate,
};
