#include "kernels/attend_grad.h"
#include "kernels/attend.h"
#include "kernels/gemm.h"
#include "kernels/vecops/vecops.h"

#include <string.h>

/* Queries processed together. */
enum { TILE = 64 };

size_t kv_attend_grad_scratch(size_t n)
{
    return 3 * TILE * n;
}

/* p [i1 - i0][i1]: the softmax of each query over the tokens it sees, else 0.
 * steep, of the same shape: with a cap, the cap's derivative for each score. */
static void weights(const struct kv_attend_grad_job *a, const float *q,
                    size_t i0, size_t i1, float *p, float *steep)
{
    const struct kv_attend_view view = {.n_heads = 1,
                                        .n_kv_heads = 1,
                                        .n = a->n,
                                        .nq = a->n,
                                        .cap = a->cap,
                                        .window = a->window};
    const size_t n = i1;

    kv_gemm(true, i1 - i0, n, a->head_dim, a->scale, q, a->q_stride, a->k,
            a->k_stride, 0, p, n);
    for (size_t i = i0; i < i1; i++) {
        const size_t begin = kv_attend_begin(&view, i);
        float *row = p + (i - i0) * n;

        if (a->cap != 0)
            kv_attend_logits(&view, 0, 0, i, begin, i + 1, row + begin);
        for (size_t j = begin; j <= i && a->cap != 0; j++)
            steep[(i - i0) * n + j] = 1 - row[j] / a->cap * (row[j] / a->cap);
        memset(row, 0, begin * sizeof(*row));
        kv_softmax(row + begin, i + 1 - begin);
        memset(row + i + 1, 0, (n - i - 1) * sizeof(*row));
    }
}

/* Computes the gradients of queries i0 to i1 of head h of the group.  With
 * scores s = scale q k', weights p = softmax(s) and out = p v:
 *
 *   dv += p' dout,  dp = dout v',  ds = p (dp - sum(p dp)) steep,
 *   dq  = scale ds k,  dk += scale ds' q. */
static void one_tile(const struct kv_attend_grad_job *a, size_t h, size_t i0,
                     size_t i1, float *scratch)
{
    const size_t rows = i1 - i0, n = i1, d = a->head_dim;
    const size_t at = i0 * a->q_stride + h * d;
    const float *q = a->q + at, *dout = a->out_grad + at;
    float *p = scratch, *ds = scratch + TILE * n;
    float *steep = scratch + 2 * TILE * n;

    weights(a, q, i0, i1, p, steep);
    kv_gemm_a_trans(n, d, rows, 1, p, n, dout, a->q_stride, 1, a->v_grad,
                    a->k_stride);
    kv_gemm(true, rows, n, d, 1, dout, a->q_stride, a->v, a->k_stride, 0, ds,
            n);
    for (size_t i = 0; i < rows; i++)
        kv_softmax_grad(p + i * n, ds + i * n, n, ds + i * n);
    for (size_t i = 0; i < rows && a->cap != 0; i++)
        for (size_t j = 0; j < n; j++) /* unseen tokens have no gradient */
            ds[i * n + j] *= p[i * n + j] > 0 ? steep[i * n + j] : 0;
    kv_gemm_a_trans(n, d, rows, a->scale, ds, n, q, a->q_stride, 1, a->k_grad,
                    a->k_stride);
    if (a->q_grad) /* comes last, since it may overwrite q */
        kv_gemm(false, rows, d, n, a->scale, ds, n, a->k, a->k_stride, 0,
                a->q_grad + at, a->q_stride);
}

void kv_attend_grad(const struct kv_attend_grad_job *a, float *scratch)
{
    const size_t bytes = a->head_dim * sizeof(float);

    for (size_t t = 0; t < a->n; t++) {
        memset(a->k_grad + t * a->k_stride, 0, bytes);
        memset(a->v_grad + t * a->k_stride, 0, bytes);
    }
    for (size_t h = 0; h < a->group; h++)
        for (size_t i = 0; i < a->n; i += TILE)
            one_tile(a, h, i, i + TILE < a->n ? i + TILE : a->n, scratch);
}
