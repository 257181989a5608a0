#include "lib/schemes/klt_pred.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/schemes/klt_short.h"

#include <stdlib.h>
#include <string.h>

size_t kv_klt_sources(size_t n_below, size_t layer, enum kv_side side)
{
    return KV_SIDES * (layer < n_below ? layer : n_below) + (side == KV_V);
}

int kv_klt_pred_load(struct kv_klt_pred *p, const struct kv_codec *c,
                     const struct kv_calib_set *set, struct kv_err *e)
{
    const size_t row = kv_codec_row(c);
    const size_t n = kv_klt_sources(c->layered->n_below, c->layer, c->side);
    const size_t dims[] = {n * row, row};
    const struct kv_table *t;

    *p = (struct kv_klt_pred){.row = row, .n_sources = n};
    if (!n)
        return 0;
    p->matrix = kv_lines(n * row, row * sizeof(float));
    if (kv_klt_is_short(&c->spec))
        return kv_klt_short_predictor(c, set, n, p->matrix, e);
    if (!(t = kv_calib_want(c, set, "predictor", 0, 2, dims, e)))
        return -1;
    memcpy(p->matrix, t->data, n * row * row * sizeof(float));
    return 0;
}

void kv_klt_pred_clear(struct kv_klt_pred *p)
{
    free(p->matrix);
}

/* Lists the sources of a prediction in the order of its matrix. */
static size_t list_sources(const struct kv_neighbours *at,
                           const float *source[KV_KLT_SOURCES])
{
    size_t n = 0;

    for (size_t i = 0; i < KV_MAX_BELOW && at->below[i][KV_K]; i++)
        for (int side = 0; side < KV_SIDES; side++)
            source[n++] = at->below[i][side];
    if (at->own_k)
        source[n++] = at->own_k;
    return n;
}

void kv_klt_pred_add(const struct kv_klt_pred *p,
                     const struct kv_neighbours *at, size_t first, size_t n,
                     float *x)
{
    const size_t row = p->row;
    const float *source[KV_KLT_SOURCES];
    const size_t n_sources = list_sources(at, source);

    for (size_t i = 0; i < n_sources && i < p->n_sources; i++)
        kv_vecops_times(source[i] + first * row, row, n,
                        p->matrix + i * row * row, row, row, row, x, row);
}
