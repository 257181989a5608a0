/* The gradient of causal attention, in f32.
 *
 * Given dL/d(output) of a loss L: dL/dq, dL/dk and dL/dv.  The softmax is
 * recomputed as in kv_attend(). */
#ifndef KV_ATTEND_GRAD_H
#define KV_ATTEND_GRAD_H

#include <stddef.h>

/* One KV head and the `group` query heads that share it, n tokens.  Query i
 * sees tokens 0 to i, or with a window the newest of these; scores are as in
 * attend.h.
 *
 * q, out_grad: rows of group heads of head_dim floats, q_stride apart.
 * k, v:        rows of head_dim floats, k_stride apart.
 * q_grad:      as q, and may be q; NULL: not wanted.
 * k_grad, v_grad: as k and v, written in full; must not be k or v. */
struct kv_attend_grad_job {
    const float *q, *out_grad, *k, *v;
    float *q_grad, *k_grad, *v_grad;
    size_t q_stride, k_stride, n, group, head_dim;
    float scale, cap;
    size_t window;
};

/* scratch: kv_attend_grad_scratch(n) floats, per thread.  The order is fixed,
 * so any number of threads gives the same bits. */
size_t kv_attend_grad_scratch(size_t n);
void kv_attend_grad(const struct kv_attend_grad_job *job, float *scratch);

#endif
