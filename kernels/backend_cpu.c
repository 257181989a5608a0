#include "kernels/attend.h"
#include "kernels/backend.h"
#include "kernels/gemm.h"
#include "kernels/rope.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* The CPU ignores arguments that other backends need. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { TILE = 128, LOGIT_TILES = 8, LOGIT_BYTES = 1 << 24 };

static void close_cpu(struct kv_backend *b)
{
    free(b);
}

static int alloc(void **p, size_t bytes, struct kv_err *e)
{
    *p = kv_alloc(bytes, 1);
    return 0;
}

static int copy(void *to, const void *from, size_t bytes, struct kv_err *e)
{
    if (bytes)
        memcpy(to, from, bytes);
    return 0;
}

static void load_piece(const struct kv_load *l, size_t first, size_t n)
{
    kv_stored_read(&l->from, l->first + first, n, l->to_type,
                   (uint8_t *)l->to + first * kv_type_bytes(l->to_type));
}

/* Uses one parallel region or none: on a busy machine its barrier costs more
 * than a small layer. */
static int cpu_load(const struct kv_load *part, size_t n_parts,
                    struct kv_err *e)
{
    const size_t piece = 1 << 16, small = 1 << 20;
    size_t all = 0;

    for (size_t i = 0; i < n_parts; i++)
        all += part[i].n;
#pragma omp parallel if (all > small)
    for (size_t i = 0; i < n_parts; i++) {
        const size_t n = part[i].n;

#pragma omp for schedule(static) nowait
        for (size_t j = 0; j < n; j += piece)
            load_piece(&part[i], j, n - j < piece ? n - j : piece);
    }
    return 0;
}

static size_t threads(void)
{
    return (size_t)omp_get_max_threads();
}

/* Gives the error of the lowest item that fails, on whichever thread.  A single
 * item runs outside any parallel region: a region inside a region of one thread
 * would start its threads anew each time. */
static int each(size_t n, kv_tile_work *work, const void *arg, struct kv_err *e)
{
    size_t bad = n;

    if (n == 1)
        return work(arg, 0, (size_t)omp_get_thread_num(), e);
#pragma omp parallel for schedule(dynamic) if (n > 1 && !omp_in_parallel())
    for (size_t i = 0; i < n; i++) {
        struct kv_err mine;

        if (!work(arg, i, (size_t)omp_get_thread_num(), &mine))
            continue;
#pragma omp critical(kv_backend_each)
        if (i < bad) {
            bad = i;
            *e = mine;
        }
    }
    return bad < n ? -1 : 0;
}

static int cpu_norm(const struct kv_norm *norm, const float *x, size_t rows,
                    enum kv_type type, void *out, struct kv_err *e)
{
    const size_t n = norm->n;
    float *to = out;

    for (size_t t = 0; t < rows; t++, x += n, to += n)
        if (norm->centers)
            kv_layer_norm(x, norm->weight, norm->bias, n, norm->eps, to);
        else
            kv_rms_norm(x, norm->weight, n, norm->eps, to);
    return 0;
}

static int to_input(const struct kv_backend *b, const float *x, size_t n,
                    void *workspace, const void **a, struct kv_err *e)
{
    *a = x;
    return 0;
}

/* Outputs that a thread takes at a time; products below SMALL values of the
 * matrix are not worth a parallel region. */
enum { OUTPUTS = 64, SMALL = 1 << 17 };

/* Computes n outputs of a product with a stored matrix, from output `first` on;
 * c: where that output begins. */
static void multiply_some(const struct kv_product *p, enum kv_type type,
                          const struct kv_stored_part *w, size_t first,
                          size_t n, float *c)
{
    float few[KV_FEW_ROWS * OUTPUTS], *y = few;

    if (p->rows > KV_FEW_ROWS)
        y = kv_alloc(p->rows * OUTPUTS, sizeof(*y));
    kv_stored_rows_times(&w->rows, w->first + first, n, type, p->a, p->rows, y,
                         OUTPUTS);
    for (size_t r = 0; r < p->rows; r++)
        for (size_t i = 0; i < n; i++)
            c[r * p->c_row + i] =
                y[r * OUTPUTS + i] + (p->add ? c[r * p->c_row + i] : 0);
    if (y != few)
        free(y);
}

static void multiply_stored(const struct kv_product *p, enum kv_type type)
{
    const bool small = p->outputs * p->inputs < SMALL;

#pragma omp parallel if (!small && !omp_in_parallel())
    {
        float *c = p->c;

        for (size_t w = 0; w < p->n_stored; c += p->stored[w++].outputs) {
            const struct kv_stored_part *part = &p->stored[w];

#pragma omp for schedule(static) nowait
            for (size_t i = 0; i < part->outputs; i += OUTPUTS)
                multiply_some(p, type, part, i,
                              part->outputs - i < OUTPUTS ? part->outputs - i
                                                          : OUTPUTS,
                              c + i);
        }
    }
}

/* Returns a of p, rounded to bf16; the caller frees it. */
static float *rounded(const struct kv_product *p)
{
    const size_t n = p->rows * p->inputs;
    const float *a = p->a;
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = kv_bf16_to_f32(kv_f32_to_bf16(a[i]));
    return x;
}

static int cpu_multiply(const struct kv_backend *b, const struct kv_product *p,
                        struct kv_err *e)
{
    struct kv_product few = *p;
    float *a = NULL;

    if (!p->w) {
        if (b->stored_type == KV_TYPE_BF16)
            few.a = a = rounded(p);
        multiply_stored(&few, b->stored_type);
        free(a);
        return 0;
    }
    if (b->weight_type == KV_TYPE_BF16)
        kv_gemm_bf16(p->rows, p->outputs, p->inputs, p->a, p->w, p->add, p->c,
                     p->c_row);
    else
        kv_gemm(true, p->rows, p->outputs, p->inputs, 1, p->a, p->inputs, p->w,
                p->inputs, p->add ? 1 : 0, p->c, p->c_row);
    return 0;
}

static int cpu_add(float *x, const float *bias, size_t rows, size_t n,
                   struct kv_err *e)
{
    for (size_t t = 0; t < rows; t++)
        kv_row_add(x + t * n, bias, n);
    return 0;
}

static int cpu_scale(float *x, size_t n, float by, struct kv_err *e)
{
    kv_row_scale(x, n, by);
    return 0;
}

/* Norms each head of x [rows][heads] by itself, or all heads of a row together;
 * does nothing if w is NULL. */
static void norm_heads(const struct kv_heads *h, const float *w,
                       const float *bias, float *x, size_t heads)
{
    const size_t n = heads * h->head_dim;
    const size_t one = h->norm_of == KV_NORM_OF_TOKEN ? n : h->head_dim;

    for (size_t i = 0; w && i < h->rows * n; i += one) {
        const size_t own = h->norm_of == KV_NORM_OF_OWN_HEAD ? i % n : 0;

        if (h->norm_centers)
            kv_layer_norm(x + i, w + own, bias ? bias + own : NULL, one, h->eps,
                          x + i);
        else
            kv_rms_norm(x + i, w + own, one, h->eps, x + i);
    }
}

static void norm_both(const struct kv_heads *h, float *k)
{
    norm_heads(h, h->q_norm, h->q_norm_bias, h->q, h->n_heads);
    norm_heads(h, h->k_norm, h->k_norm_bias, k, h->n_kv_heads);
}

static void clip(float *x, size_t n, float end)
{
    for (size_t i = 0; i < n; i++)
        x[i] = fminf(fmaxf(x[i], -end), end);
}

/* Scales the channels of x [rows][heads] that RoPE rotates. */
static void scale_turning(const struct kv_heads *h, float *x, size_t heads)
{
    for (size_t i = 0; h->rope_scale != 1 && i < h->rows * heads; i++)
        kv_row_scale(x + i * h->head_dim, 2 * h->pairs.n, h->rope_scale);
}

/* Rotates the heads of x, each token by its position; back: rotates back. */
static void turn(const struct kv_heads *h, bool back, float *x, size_t heads)
{
    const size_t row = heads * h->head_dim, angles = 2 * h->pairs.n;
    float *mirrored = back ? kv_alloc(angles, sizeof(*mirrored)) : NULL;

    for (size_t i = 0, some; i < h->rows; i += some) {
        const size_t at = (h->first + i) % h->n;
        const float *rope = h->rope + at * angles;

        some = back ? 1 : h->rows - i < h->n - at ? h->rows - i : h->n - at;
        for (size_t j = 0; j < (back ? angles : 0); j++)
            mirrored[j] = j < h->pairs.n ? rope[j] : -rope[j];
        kv_rotate_heads(back ? mirrored : rope, h->pairs, x + i * row, some,
                        heads, h->head_dim);
    }
    free(mirrored);
}

static int heads(const struct kv_heads *h, struct kv_err *e)
{
    const size_t q_dim = h->n_heads * h->head_dim;
    const size_t kv_dim = h->n_kv_heads * h->head_dim;
    const size_t all = q_dim + 2 * kv_dim;

    if (h->bias)
        cpu_add(h->qkv, h->bias, h->rows, all, e);
    if (h->clip > 0)
        clip(h->qkv, h->rows * all, h->clip);
    for (size_t i = 0; i < h->rows; i++) {
        const float *row = h->qkv + i * all;

        memcpy(h->q + i * q_dim, row, q_dim * sizeof(*row));
        memcpy(h->k_pre + i * kv_dim, row + q_dim, kv_dim * sizeof(*row));
        memcpy(h->v + i * kv_dim, row + q_dim + kv_dim, kv_dim * sizeof(*row));
    }
    if (!h->norm_late)
        norm_both(h, h->k_pre);
    norm_heads(h, h->v_norm, NULL, h->v, h->n_kv_heads);
    scale_turning(h, h->q, h->n_heads);
    scale_turning(h, h->k_pre, h->n_kv_heads);
    memcpy(h->k, h->k_pre, h->rows * kv_dim * sizeof(*h->k));
    turn(h, false, h->q, h->n_heads);
    turn(h, false, h->k, h->n_kv_heads);
    if (!h->norm_late)
        return 0;
    norm_both(h, h->k);
    memcpy(h->k_pre, h->k, h->rows * kv_dim * sizeof(*h->k));
    turn(h, true, h->k_pre, h->n_kv_heads);
    return 0;
}

/* gelu(g) = g * sigmoid(t) = silu(t) * g / t, where t = sqrt(8 / pi) * (g +
 * 0.044715 g^3); the factor g / t goes into `up`. */
static void gelu_to_silu(float *g, float *up, size_t n)
{
    const float root = 1.5957691216057308f, cube = 0.044715f;

    for (size_t i = 0; i < n; i++) {
        const float factor = root * (1 + cube * g[i] * g[i]);

        g[i] *= factor;
        up[i] /= factor;
    }
}

/* g sigmoid(alpha g) is silu(alpha g) / alpha; this 1 / alpha goes into `up`.
 */
static void clamp_to_silu(const struct kv_activation *a, float *g, float *up)
{
    for (size_t i = 0; i < a->n; i++) {
        g[i] = a->alpha * fminf(g[i], a->limit);
        up[i] = (fmaxf(fminf(up[i], a->limit), -a->limit) + 1) / a->alpha;
    }
}

static int cpu_activate(const struct kv_activation *a, float *x, size_t rows,
                        enum kv_type type, void *out, struct kv_err *e)
{
    const size_t n = a->n, row = a->gated ? 2 * n : n;
    float *to = out;

    if (a->bias)
        cpu_add(x, a->bias, rows, row, e);
    assert(!a->gated || a->act == KV_ACT_SILU || a->act == KV_ACT_GELU_TANH);
    for (size_t t = 0; t < rows; t++, x += row, to += n) {
        if (a->gated && a->act == KV_ACT_GELU_TANH)
            gelu_to_silu(x, x + n, n);
        if (a->limit > 0)
            clamp_to_silu(a, x, x + n);
        if (a->gated)
            kv_silu_mul(x, x + n, n, to);
        else
            kv_activate(a->act, x, n, to);
    }
    return 0;
}

static int cap_rows(float *x, size_t rows, size_t n, size_t row, float cap,
                    struct kv_err *e)
{
    for (size_t t = 0; t < rows; t++)
        for (size_t i = 0; i < n; i++)
            x[t * row + i] = cap * tanhf(x[t * row + i] / cap);
    return 0;
}

static int cpu_rotate(const float *rope, struct kv_rope_pairs pairs, size_t n,
                      float *x, size_t rows, size_t heads, size_t head_dim,
                      struct kv_err *e)
{
    for (size_t i = 0; i < rows; i += n)
        kv_rotate_heads(rope, pairs, x + i * heads * head_dim, n, heads,
                        head_dim);
    return 0;
}

static int cpu_attend(const struct kv_backend *b,
                      const struct kv_attend_job *job,
                      const struct kv_attend_codes *codes, uint64_t seed,
                      struct kv_err *e)
{
    kv_attend(job);
    return 0;
}

struct kv_backend *kv_backend_cpu(enum kv_type weight)
{
    struct kv_backend *b = kv_alloc(1, sizeof(*b));

    *b = (struct kv_backend){
        .input_type = KV_TYPE_F32,
        .weight_type = weight,
        .stored_type = weight,
        .tile = TILE,
        .windows = true,
        .on_host = true,
        .logit_bytes = LOGIT_BYTES,
        .logit_unit = TILE,
        .logit_rows = LOGIT_TILES * TILE,
        .close = close_cpu,
        .alloc = alloc,
        .free = free,
        .upload = copy,
        .download = copy,
        .load = cpu_load,
        .threads = threads,
        .each = each,
        .norm = cpu_norm,
        .to_input = to_input,
        .multiply = cpu_multiply,
        .heads = heads,
        .add = cpu_add,
        .scale = cpu_scale,
        .activate = cpu_activate,
        .cap = cap_rows,
        .rotate = cpu_rotate,
        .attend = cpu_attend,
    };
    return b;
}
