/* Gemma 3n: alternating updates (AltUp), a learned residual (Laurel), and
 * sparse MLPs, in which few gates are active.
 *
 * There are n streams s_0 .. s_{n-1}, [n][tokens][hidden].  At the start s_0 is
 * the embedding x and s_i = P_i x, scaled to x's root mean square.  A layer
 * computes its output y from s_0 alone:
 *
 *   m(x) = tanh(R norm(x) / hidden)                  n values
 *   s_j += sum_i (C m(s_0))_{j n + i} s_i            before the layer
 *   s_j += (y - s_0) (1 + (K m(y))_j)                after the layer
 *
 * At the end x is the mean of s_0 and of U_i s_i, each scaled to s_0's root
 * mean square.  Laurel adds a + norm(B A a), where a is the normalised input of
 * attention, to the stream after attention, and divides the stream by sqrt(2).
 * A sparse layer subtracts from its gates their mean plus `cut` standard
 * deviations, and sets negative gates to 0. */
#include "kernels/vecops/vecops.h"
#include "lib/model/pass.h"

#include <math.h>
#include <string.h>

/* The workspace of a tile, behind the workspace of per_layer.c. */
struct work {
    float *x;             /* [rows][hidden] */
    float *mode, *factor; /* [rows][n], [rows][n n] */
};

static struct work work_of(const struct kv_pass *p, const struct kv_tile *t)
{
    const struct kv_config *c = &p->m->config;
    float *x = t->wide + t->rows * (p->hidden + 3 * c->layer_embed);
    float *mode = x + t->rows * p->hidden;

    return (struct work){x, mode, mode + t->rows * c->n_streams};
}

static float *stream(const struct kv_pass *p, const struct kv_tile *t, size_t i)
{
    return p->streams + (i * p->n_windows * p->n + t->at) * p->hidden;
}

static const float *vector(const struct kv_pass *p, enum kv_part part)
{
    return kv_layers_vector(p->m->layers, part);
}

static float mean_square(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)(sum / (double)n);
}

/* Scales each row of y to the root mean square of the same row of x. */
static void scale_like(const float *x, size_t rows, size_t n, float *y)
{
    for (size_t i = 0; i < rows; i++, x += n, y += n)
        kv_row_scale(y, n,
                     sqrtf(mean_square(x, n)) /
                         sqrtf(fmaxf(mean_square(y, n), 1e-5F)));
}

/* y = x times a matrix outside of layers, which is used in its stored form. */
static int project(const struct kv_pass *p, const struct kv_tile *t,
                   const struct kv_weight *w, const float *x, float *y,
                   struct kv_err *e)
{
    const struct kv_stored_part stored = {.rows = kv_weight_rows(w),
                                          .outputs = p->hidden};
    struct kv_product product = {.rows = t->rows,
                                 .outputs = p->hidden,
                                 .inputs = p->hidden,
                                 .c = y,
                                 .c_row = p->hidden,
                                 .stored = &stored,
                                 .n_stored = 1};

    return p->b->to_input(p->b, x, t->rows * p->hidden, t->input, &product.a,
                          e) ||
           p->b->multiply(p->b, &product, e);
}

static int spread_tile(const void *arg, size_t i, size_t thread,
                       struct kv_err *e)
{
    const struct kv_pass *p = arg;
    const struct kv_tile t = kv_pass_tile(p, i, thread);
    const float *x = p->x + t.at * p->hidden;

    for (size_t s = 1; s < p->m->config.n_streams; s++) {
        float *y = stream(p, &t, s);

        if (project(p, &t, p->m->weights.spread[s - 1], x, y, e))
            return -1;
        scale_like(x, t.rows, p->hidden, y);
    }
    return 0;
}

int kv_pass_spread(struct kv_pass *p, struct kv_err *e)
{
    const size_t n = p->n_windows * p->n * p->hidden;
    struct kv_workspace *w = &p->m->workspace[KV_WORK_STREAMS];

    if (kv_workspace_want(p->b, w,
                          (p->m->config.n_streams + 1) * n * sizeof(float), e))
        return -1;
    p->streams = w->p;
    p->laurel = p->streams + p->m->config.n_streams * n;
    return kv_pass_each(p, spread_tile, p, e);
}

int kv_pass_gather(const struct kv_pass *p, const struct kv_tile *t,
                   struct kv_err *e)
{
    const size_t n = p->m->config.n_streams, all = t->rows * p->hidden;
    float *x = p->x + t->at * p->hidden, *first = stream(p, t, 0);
    float *y = t->wide;

    memcpy(first, x, all * sizeof(*x));
    for (size_t s = 1; s < n; s++) {
        if (project(p, t, p->m->weights.gather[s - 1], stream(p, t, s), y, e))
            return -1;
        scale_like(first, t->rows, p->hidden, y);
        kv_row_add(x, y, all);
    }
    kv_row_scale(x, all, 1 / (float)n);
    return 0;
}

/* w->factor = the matrix times m(x). */
static int factors(const struct kv_pass *p, const struct kv_tile *t,
                   const struct work *w, enum kv_part part, const float *x,
                   size_t outputs, struct kv_err *e)
{
    const size_t n = p->m->config.n_streams, all = t->rows * p->hidden;
    const void *a;

    if (kv_pass_norm(p, vector(p, KV_P_ALTUP_NORM), NULL, x, t->rows,
                     KV_TYPE_F32, w->x, e))
        return -1;
    kv_row_scale(w->x, all, 1 / (float)p->hidden);
    if (p->b->to_input(p->b, w->x, all, t->input, &a, e) ||
        kv_pass_multiply(p, t, KV_P_ALTUP_ROUTER, a, p->hidden, w->mode, n,
                         false, e))
        return -1;
    for (size_t i = 0; i < t->rows * n; i++)
        w->mode[i] = tanhf(w->mode[i]);
    return p->b->to_input(p->b, w->mode, t->rows * n, t->input, &a, e) ||
                   kv_pass_multiply(p, t, part, a, n, w->factor, outputs, false,
                                    e)
               ? -1
               : 0;
}

/* Stores a + norm(B A a), where a is the normalised input of attention. */
static int keep_laurel(const struct kv_pass *p, const struct kv_tile *t,
                       const struct work *w, struct kv_err *e)
{
    const size_t rank = p->m->config.laurel_rank, all = t->rows * p->hidden;
    const float *x = p->x + t->at * p->hidden;
    float *to = p->laurel + t->at * p->hidden, *low = t->wide;
    const void *a;

    if (kv_pass_norm(p, vector(p, KV_P_ATTN_NORM), NULL, x, t->rows,
                     KV_TYPE_F32, w->x, e) ||
        p->b->to_input(p->b, w->x, all, t->input, &a, e) ||
        kv_pass_multiply(p, t, KV_P_LAUREL_DOWN, a, p->hidden, low, rank, false,
                         e) ||
        p->b->to_input(p->b, low, t->rows * rank, t->input, &a, e) ||
        kv_pass_multiply(p, t, KV_P_LAUREL_UP, a, rank, to, p->hidden, false,
                         e) ||
        kv_pass_norm(p, vector(p, KV_P_LAUREL_NORM), NULL, to, t->rows,
                     KV_TYPE_F32, to, e))
        return -1;
    kv_row_add(to, w->x, all);
    return 0;
}

int kv_pass_predict(const struct kv_pass *p, const struct kv_tile *t,
                    struct kv_err *e)
{
    const size_t n = p->m->config.n_streams, h = p->hidden;
    const struct work w = work_of(p, t);
    float *x = p->x + t->at * h, old[KV_MAX_STREAMS];

    if (factors(p, t, &w, KV_P_ALTUP_PREDICT, x, n * n, e))
        return -1;
    memcpy(stream(p, t, 0), x, t->rows * h * sizeof(*x));
    for (size_t i = 0; i < t->rows * h; i++) {
        const float *by = w.factor + i / h * n * n;

        for (size_t s = 0; s < n; s++)
            old[s] = stream(p, t, s)[i];
        for (size_t to = 0; to < n; to++) {
            float sum = 0;

            for (size_t s = 0; s < n; s++)
                sum += by[to * n + s] * old[s];
            stream(p, t, to)[i] = sum + old[to];
        }
    }
    memcpy(x, stream(p, t, 0), t->rows * h * sizeof(*x));
    return keep_laurel(p, t, &w, e);
}

void kv_pass_add_laurel(const struct kv_pass *p, const struct kv_tile *t)
{
    float *x = p->x + t->at * p->hidden;

    kv_row_add(x, p->laurel + t->at * p->hidden, t->rows * p->hidden);
    kv_row_scale(x, t->rows * p->hidden, sqrtf(0.5F));
}

int kv_pass_correct(const struct kv_pass *p, const struct kv_tile *t,
                    const float **scaled, struct kv_err *e)
{
    const size_t n = p->m->config.n_streams, h = p->hidden;
    const float *scale = vector(p, KV_P_ALTUP_SCALE);
    const struct work w = work_of(p, t);
    float *x = p->x + t->at * h, *first = stream(p, t, 0);

    if (factors(p, t, &w, KV_P_ALTUP_CORRECT, x, n, e))
        return -1;
    for (size_t i = 0; i < t->rows * h; i++) {
        const float *by = w.factor + i / h * n, more = x[i] - first[i];

        for (size_t s = 1; s < n; s++)
            stream(p, t, s)[i] += more * (by[s] + 1);
        x[i] = first[i] + more * (by[0] + 1);
        w.x[i] = x[i] * scale[i % h];
    }
    *scaled = w.x;
    return 0;
}

void kv_pass_add_to_others(const struct kv_pass *p, const struct kv_tile *t,
                           const float *y)
{
    for (size_t s = 1; s < p->m->config.n_streams; s++)
        kv_row_add(stream(p, t, s), y, t->rows * p->hidden);
}

void kv_pass_cut_gates(const struct kv_pass *p, size_t rows, float *x)
{
    const struct kv_config *c = &p->m->config;
    const size_t n = p->inter;

    if (!kv_layer_bit(c->sparse, p->loaded))
        return;
    for (size_t i = 0; i < rows; i++, x += 2 * n) {
        double mean = 0, square = 0;

        for (size_t j = 0; j < n; j++)
            mean += (double)x[j] / (double)n;
        for (size_t j = 0; j < n; j++)
            square += ((double)x[j] - mean) * ((double)x[j] - mean);

        const float cut =
            (float)(mean + (double)c->sparse_cut * sqrt(square / (double)n));

        for (size_t j = 0; j < n; j++)
            x[j] = fmaxf(x[j] - cut, 0);
    }
}
