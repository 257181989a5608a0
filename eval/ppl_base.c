#include "eval/ppl_base.h"
#include "eval/ppl_impl.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BITS = 12 };

static void name_of(char name[KV_H5_NAME_CHARS], const char *group,
                    const char *set)
{
    snprintf(name, KV_H5_NAME_CHARS, "%s/%s", group, set);
}

/* ---- saved --------------------------------------------------------------- */

static int save_states(const struct kv_ppl *p, struct kv_h5 *h,
                       const char *name, struct kv_err *e)
{
    const size_t n = kv_ppl_scored(p), width = p->info->hidden;
    const size_t count[] = {1, n, width};
    float *x = kv_alloc(n, width * sizeof(*x));
    int rc = 0;

    for (size_t w = 0; w < p->plan.n_windows && !rc; w++) {
        const size_t first[] = {w, 0, 0};

        rc = kv_scratch_read(p->scored, kv_ppl_place(p, 0, w, 0), x,
                             n * width * sizeof(*x), e) ||
             kv_h5_write(h, name, KV_H5_F32, first, count, x, e);
    }
    free(x);
    return rc ? -1 : 0;
}

static int save_losses(const struct kv_loss *loss, size_t n, struct kv_h5 *h,
                       const char *name, struct kv_err *e)
{
    float *x = kv_alloc(n, sizeof(*x));
    int rc;

    for (size_t i = 0; i < n; i++)
        x[i] = loss[i].nll;
    rc = kv_h5_write(h, name, KV_H5_F32, NULL, NULL, x, e);
    free(x);
    return rc;
}

static void put_bits(const struct kv_bits *b, const struct kv_prefill *cost,
                     double x[BITS])
{
    const double all[BITS] = {
        b->bytes,           b->values,           b->kept_values,
        b->quantized_bytes, b->quantized_values, b->shared_bytes,
        b->nominal,         b->coded[KV_K],      b->coded[KV_V],
        b->clipped,         cost->pairs,         cost->all_pairs};

    for (size_t i = 0; i < BITS; i++)
        x[i] = all[i];
}

int kv_ppl_base_save(const struct kv_ppl *p, const struct kv_ppl_row *row,
                     struct kv_h5 *h, const char *group, struct kv_err *e)
{
    const size_t dims[] = {p->plan.n_windows, kv_ppl_scored(p),
                           p->info->hidden},
                 n_bits = BITS;
    char name[KV_H5_NAME_CHARS];
    double bits[BITS];

    kv_h5_group(h, group);
    name_of(name, group, "states");
    kv_h5_dataset(h, name, KV_H5_F32, 3, dims);
    if (save_states(p, h, name, e))
        return -1;
    name_of(name, group, "nll");
    kv_h5_dataset(h, name, KV_H5_F32, 2, dims);
    if (save_losses(row->loss, dims[0] * dims[1], h, name, e))
        return -1;
    put_bits(&row->bits, &row->prefill, bits);
    name_of(name, group, "bits");
    kv_h5_dataset(h, name, KV_H5_F64, 1, &n_bits);
    return kv_h5_write(h, name, KV_H5_F64, NULL, NULL, bits, e);
}

/* ---- loaded -------------------------------------------------------------- */

static int load_states(const struct kv_ppl *p, struct kv_h5 *h,
                       const char *name, struct kv_err *e)
{
    const size_t n = kv_ppl_scored(p), width = p->info->hidden;
    const size_t dims[] = {p->plan.n_windows, n, width};
    const size_t count[] = {1, n, width};
    float *x;
    int rc = 0;

    if (kv_h5_check(h, name, KV_H5_F32, 3, dims, e))
        return -1;
    x = kv_alloc(n, width * sizeof(*x));
    for (size_t w = 0; w < dims[0] && !rc; w++) {
        const size_t first[] = {w, 0, 0};

        rc = kv_h5_read(h, name, KV_H5_F32, first, count, x, e) ||
             kv_scratch_write(p->scored, kv_ppl_place(p, 0, w, 0), x,
                              n * width * sizeof(*x), e);
    }
    free(x);
    return rc ? -1 : 0;
}

static int load_losses(const struct kv_ppl *p, struct kv_h5 *h,
                       const char *name, struct kv_loss *loss, struct kv_err *e)
{
    const size_t dims[] = {p->plan.n_windows, kv_ppl_scored(p)};
    const size_t n = dims[0] * dims[1];
    float *x;
    int rc;

    if (kv_h5_check(h, name, KV_H5_F32, 2, dims, e))
        return -1;
    x = kv_alloc(n, sizeof(*x));
    rc = kv_h5_read(h, name, KV_H5_F32, NULL, NULL, x, e);
    for (size_t i = 0; i < n; i++)
        loss[i] = (struct kv_loss){.nll = x[i]};
    free(x);
    return rc;
}

static int load_bits(struct kv_h5 *h, const char *name, struct kv_ppl_row *row,
                     struct kv_err *e)
{
    const size_t n = BITS;
    double x[BITS];

    if (kv_h5_check(h, name, KV_H5_F64, 1, &n, e) ||
        kv_h5_read(h, name, KV_H5_F64, NULL, NULL, x, e))
        return -1;
    row->prefill.pairs = x[10];
    row->prefill.all_pairs = x[11];
    row->bits = (struct kv_bits){.bytes = x[0],
                                 .values = x[1],
                                 .kept_values = x[2],
                                 .quantized_bytes = x[3],
                                 .quantized_values = x[4],
                                 .shared_bytes = x[5],
                                 .nominal = x[6],
                                 .coded = {x[7], x[8]},
                                 .clipped = x[9]};
    return 0;
}

/* Computes the row's score, and the base losses that runs are compared with. */
static int score(struct kv_ppl *p, struct kv_ppl_row *row, struct kv_err *e)
{
    const size_t n = kv_ppl_scored(p);
    struct kv_score *s = kv_score_new();
    int rc = 0;

    for (size_t w = 0; w < p->plan.n_windows && !rc; w++) {
        const struct kv_loss *loss = row->loss + w * n;
        double sum = 0;

        for (size_t i = 0; i < n; i++)
            sum += (double)loss[i].nll;
        p->base_nll[w] = sum / (double)n;
        rc = kv_score_window(s, loss, n, NAN, false, w, p->first + 1, e);
    }
    row->score = kv_score_summary(s);
    kv_score_free(s);
    return rc;
}

int kv_ppl_base_load(struct kv_ppl *p, struct kv_h5 *h, const char *group,
                     struct kv_ppl_row *row, struct kv_err *e)
{
    const double start = kv_seconds();
    const size_t n = p->plan.n_windows * kv_ppl_scored(p);
    char name[KV_H5_NAME_CHARS];

    *row = (struct kv_ppl_row){.curve = {.n = kv_ppl_scored(p)},
                               .loss = kv_alloc(n, sizeof(*row->loss))};
    name_of(name, group, "states");
    if (load_states(p, h, name, e))
        return -1;
    name_of(name, group, "nll");
    if (load_losses(p, h, name, row->loss, e))
        return -1;
    name_of(name, group, "bits");
    if (load_bits(h, name, row, e) || score(p, row, e))
        return -1;
    p->has_base = true;
    row->seconds = kv_seconds() - start;
    return 0;
}
