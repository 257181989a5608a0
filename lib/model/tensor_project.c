#include "lib/model/tensor_project.h"
#include "kernels/gemm.h"
#include "lib/base/alloc.h"

#include <stdio.h>
#include <stdlib.h>

/* Makes an F32 tensor with t's rows and `cols` columns; values:
 * [rows][cols]. */
static struct kv_weight widened(const struct kv_weight *t, size_t cols,
                                const float *values)
{
    const size_t n = t->dims[0] * cols;
    struct kv_weight w = *t;

    w.dtype = "F32";
    w.type = KV_STORED_F32;
    w.dims[1] = cols;
    w.n = n;
    w.data = (const uint8_t *)values;
    w.bytes = n * sizeof(*values);
    return w;
}

void kv_tensor_project(struct kv_model_weights *m, const struct kv_config *c,
                       struct kv_weight made[2])
{
    const size_t h = c->hidden, n = c->n_embed, v = c->n_vocab;
    float *w = kv_alloc(v * n, sizeof(*w)), *by = kv_alloc(n * h, sizeof(*by));
    float *embed = kv_alloc(2 * v * h, sizeof(*embed)), *head = embed + v * h;

    kv_weight_dequantize(m->head, 0, v * n, w);
    kv_weight_dequantize(m->project_out, 0, n * h, by);
    kv_gemm(false, v, h, n, 1, w, n, by, h, 0, head, h);
    kv_weight_dequantize(m->embed, 0, v * n, w);
    kv_weight_dequantize(m->project_in, 0, n * h, by);
    kv_gemm(true, v, h, n, 1, w, n, by, n, 0, embed, h);
    free(w);
    free(by);
    made[0] = widened(m->embed, h, embed);
    made[1] = widened(m->head, h, head);
    m->embed = &made[0];
    m->head = &made[1];
    m->projected = embed;
}

/* Cuts matrix i out of all [streams - 1][hidden][hidden], as the next
 * tensor. */
static const struct kv_weight *cut(const struct kv_weight *all, size_t i,
                                   struct kv_weight **made)
{
    struct kv_weight *mine = (*made)++;

    *mine = *all;
    mine->n_dims = 2;
    mine->dims[0] = mine->dims[1];
    mine->dims[1] = mine->dims[2];
    mine->n /= all->dims[0];
    mine->bytes /= all->dims[0];
    mine->data += i * mine->bytes;
    return mine;
}

/* Binds the streams' matrices: one tensor in GGUF files, else one for each
 * stream. */
static int bind_streams(const struct kv_weight **out, const struct kv_config *c,
                        const struct kv_weights *w, const char *before,
                        const char *dir, struct kv_weight **made,
                        struct kv_err *e)
{
    const size_t n = c->n_streams - 1;
    const size_t one[3] = {c->hidden, c->hidden};
    const size_t every[3] = {n, c->hidden, c->hidden};
    const struct kv_weight *all = NULL;
    char name[168];

    if (w->gguf.n_parts && kv_tensor_bind(&all, w, before, every, dir, e))
        return -1;
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s%zu.weight", before, i);
        if (all)
            out[i] = cut(all, i, made);
        else if (kv_tensor_bind(&out[i], w, name, one, dir, e))
            return -1;
    }
    return 0;
}

int kv_tensor_streams(struct kv_model_weights *m, const struct kv_config *c,
                      const struct kv_weights *w, const char *prefix,
                      const char *dir, struct kv_weight **made,
                      struct kv_err *e)
{
    const struct kv_tensor_names *names = c->arch->names;
    char spread[160], gather[160];

    if (!c->n_streams)
        return 0;
    snprintf(spread, sizeof(spread), "%s%s", prefix, names->spread);
    snprintf(gather, sizeof(gather), "%s%s", prefix, names->gather);
    return bind_streams(m->spread, c, w, spread, dir, made, e) ||
                   bind_streams(m->gather, c, w, gather, dir, made, e)
               ? -1
               : 0;
}
