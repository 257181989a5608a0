#include "kernels/loss.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/pass.h"

#include <stdlib.h>

/* Products of rows of x with a panel of the head. */
struct panel {
    struct kv_model *m;
    const float *x;
    size_t n, first, columns;
    const void *head; /* NULL if no tile of rows needs it */
    float *logits;
};

/* Whether a tile with this many rows uses the stored head directly. */
static bool is_few(const struct kv_backend *b, size_t rows)
{
    return b->on_host && rows <= KV_FEW_ROWS;
}

/* Adds the head's bias, if it has one. */
static int add_bias(const struct panel *p, float *c, size_t c_row, size_t rows,
                    struct kv_err *e)
{
    const float *bias = kv_layers_head_bias(p->m->layers);

    for (size_t i = 0; bias && i < rows; i++)
        if (p->m->backend->add(c + i * c_row, bias + p->first, 1, p->columns,
                               e))
            return -1;
    return 0;
}

/* c [rows][c_row] = the tile of x from row t on, times the panel. */
static int multiply_tile(const struct panel *p, size_t t, float *c,
                         size_t c_row, struct kv_err *e)
{
    const struct kv_backend *b = p->m->backend;
    const size_t h = p->m->config.hidden;
    const size_t rows = p->n - t < b->tile ? p->n - t : b->tile;
    const struct kv_stored_part stored =
        kv_layers_stored_head(p->m->layers, p->first, p->columns);
    const float cap = p->m->config.logit_cap;
    const void *a;

    if (b->to_input(b, p->x + t * h, rows * h, p->m->workspace[KV_WORK_INPUT].p,
                    &a, e) ||
        b->multiply(b,
                    &(struct kv_product){.rows = rows,
                                         .outputs = p->columns,
                                         .inputs = h,
                                         .a = a,
                                         .w = is_few(b, rows) ? NULL : p->head,
                                         .c = c,
                                         .c_row = c_row,
                                         .stored = &stored,
                                         .n_stored = 1},
                    e) ||
        add_bias(p, c, c_row, rows, e))
        return -1;
    return cap > 0 ? b->cap(c, rows, p->columns, c_row, cap, e) : 0;
}

static int panel_tile(const void *arg, size_t i, size_t thread,
                      struct kv_err *e)
{
    const struct panel *p = arg;
    const size_t t = i * p->m->backend->tile, n_vocab = p->m->config.n_vocab;

    (void)thread;
    return multiply_tile(p, t, p->logits + t * n_vocab + p->first, n_vocab, e);
}

/* Loads the panel of the head, unless no tile of rows needs it widened. */
static int want_head(struct panel *p, struct kv_workspace *w, struct kv_err *e)
{
    return is_few(p->m->backend, p->n)
               ? 0
               : kv_layers_head(p->m->layers, p->first, p->columns, w, &p->head,
                                e);
}

int kv_pass_logits(struct kv_model *m, const float *x, size_t n, float *logits,
                   struct kv_err *e)
{
    const struct kv_backend *b = m->backend;
    const size_t n_vocab = m->config.n_vocab;
    const size_t max = is_few(b, n) ? n_vocab : kv_layers_panel(m->layers);
    struct kv_workspace panel = {NULL, 0};
    struct panel p = {.m = m, .x = x, .n = n, .logits = logits};
    int rc = 0;

    if (!b->on_host)
        rc = kv_workspace_want(
            b, &m->workspace[KV_WORK_INPUT],
            n * m->config.hidden * kv_type_bytes(b->input_type), e);
    for (; p.first < n_vocab && !rc; p.first += max) {
        p.columns = n_vocab - p.first < max ? n_vocab - p.first : max;
        rc = want_head(&p, &panel, e) ||
             b->each((n + b->tile - 1) / b->tile, panel_tile, &p, e);
    }
    kv_workspace_clear(b, &panel);
    return rc ? -1 : 0;
}

/* Computes the logits of n rows of host memory into the backend's memory. */
static int make_logits(struct kv_model *m, const float *hidden, size_t n,
                       float *logits, struct kv_err *e)
{
    const void *x;

    return kv_backend_take(m->backend, &m->workspace[KV_WORK_X], hidden,
                           n * m->config.hidden * sizeof(*hidden), &x, e) ||
           kv_pass_logits(m, x, n, logits, e);
}

int kv_model_logits(struct kv_model *m, const float *hidden, size_t n,
                    float *logits, struct kv_err *e)
{
    const struct kv_backend *b = m->backend;
    const size_t h = m->config.hidden, n_vocab = m->config.n_vocab;
    const size_t max = b->on_host ? n : kv_backend_logit_rows(b, n_vocab);

    for (size_t t = 0; t < n; t += max) {
        const size_t rows = n - t < max ? n - t : max;
        const size_t bytes = rows * n_vocab * sizeof(*logits);
        float *to = logits + t * n_vocab;
        void *at;

        if (kv_backend_place(b, &m->workspace[KV_WORK_LOGITS], to, bytes, &at,
                             e) ||
            make_logits(m, hidden + t * h, rows, at, e) ||
            kv_backend_give(b, to, at, bytes, e))
            return -1;
    }
    return kv_interrupted(e);
}

/* ---- losses -------------------------------------------------------------- */

/* Multiplies rows of several hidden states, and of a base (or NULL), by a panel
 * of the head, on the CPU. */
struct losses {
    struct panel of; /* x: one of hidden; the member logits is not used */
    const float *const *hidden;
    size_t n_hidden;
    const float *base;
    const int32_t *target;
    struct kv_loss_sum *sum; /* [n_hidden][n] */
    float *work;             /* [threads][work_floats] */
    size_t work_floats;
    struct kv_loss_base *part; /* [threads][tile] */
};

/* One tile: the base's logits are computed once for all hidden states. */
static int losses_tile(const void *arg, size_t i, size_t thread,
                       struct kv_err *e)
{
    const struct losses *l = arg;
    const size_t tile = l->of.m->backend->tile, t = i * tile;
    const size_t rows = l->of.n - t < tile ? l->of.n - t : tile;
    const size_t columns = l->of.columns;
    float *mine = l->work + thread * l->work_floats;
    float *its = l->base ? mine + rows * columns : NULL;
    float *p = its ? its + rows * columns : NULL;
    struct kv_loss_base *part = its ? l->part + thread * tile : NULL;
    struct panel of = l->of;

    of.x = l->base;
    if (part && multiply_tile(&of, t, its, columns, e))
        return -1;
    for (size_t r = 0; part && r < rows; r++)
        part[r] = kv_loss_base(its + r * columns, columns, p + r * columns);
    for (size_t h = 0; h < l->n_hidden; h++) {
        of.x = l->hidden[h];
        if (multiply_tile(&of, t, mine, columns, e))
            return -1;
        for (size_t r = 0; r < rows; r++)
            kv_loss_add(&l->sum[h * l->of.n + t + r], mine + r * columns,
                        part ? &part[r] : NULL, columns, l->target[t + r]);
    }
    return 0;
}

/* Works panel by panel, so that no row of logits is ever whole: with a
 * vocabulary of 262,144 they would take 128 MiB for a tile. */
static int sum_losses(struct losses *l, struct kv_err *e)
{
    struct panel *p = &l->of;
    const struct kv_backend *b = p->m->backend;
    const size_t n_vocab = p->m->config.n_vocab;
    const size_t max = kv_layers_panel(p->m->layers);
    struct kv_workspace panel = {NULL, 0};
    int rc = 0;

    for (; p->first < n_vocab && !rc; p->first += max) {
        p->columns = n_vocab - p->first < max ? n_vocab - p->first : max;
        rc = want_head(p, &panel, e) ||
             b->each((p->n + b->tile - 1) / b->tile, losses_tile, l, e) ||
             kv_interrupted(e);
    }
    kv_workspace_clear(b, &panel);
    return rc ? -1 : 0;
}

static int losses_on_host(struct kv_model *m, const struct kv_states *s,
                          const int32_t *target, struct kv_loss *const *loss,
                          struct kv_err *e)
{
    const struct kv_backend *b = m->backend;
    const size_t rows = s->n < b->tile ? s->n : b->tile;
    const size_t n_vocab = m->config.n_vocab, max = kv_layers_panel(m->layers);
    const size_t columns = n_vocab < max ? n_vocab : max;
    struct losses l = {
        .of = {.m = m, .n = s->n},
        .hidden = s->hidden,
        .n_hidden = s->n_hidden,
        .base = s->base,
        .target = target,
        .sum = kv_alloc(s->n_hidden * s->n, sizeof(*l.sum)),
        .work_floats = (s->base ? 3 : 1) * rows * columns,
        .part = kv_alloc(b->threads() * b->tile, sizeof(*l.part)),
    };
    int rc;

    l.work = kv_alloc(b->threads() * l.work_floats, sizeof(*l.work));
    rc = sum_losses(&l, e);
    for (size_t h = 0; h < s->n_hidden && !rc; h++)
        for (size_t i = 0; i < s->n; i++)
            loss[h][i] = kv_loss_end(&l.sum[h * s->n + i], s->base);
    free(l.part);
    free(l.work);
    free(l.sum);
    return rc;
}

/* The losses of rows [t, t + rows), on a device. */
static int losses_on_device(struct kv_model *m, const struct kv_states *s,
                            size_t t, size_t rows, const int32_t *target,
                            struct kv_loss *const *loss, struct kv_err *e)
{
    const struct kv_backend *b = m->backend;
    const size_t h = m->config.hidden, n_vocab = m->config.n_vocab;
    const size_t bytes = rows * n_vocab * sizeof(float);
    struct kv_workspace *mine = &m->workspace[KV_WORK_LOGITS];
    struct kv_workspace *its = &m->workspace[KV_WORK_BASE_LOGITS];

    if (kv_workspace_want(b, mine, bytes, e) ||
        (s->base && (kv_workspace_want(b, its, bytes, e) ||
                     make_logits(m, s->base + t * h, rows, its->p, e))))
        return -1;
    for (size_t i = 0; i < s->n_hidden; i++)
        if (make_logits(m, s->hidden[i] + t * h, rows, mine->p, e) ||
            b->loss(b, mine->p, s->base ? its->p : NULL, target + t, rows,
                    n_vocab, loss[i] + t, e))
            return -1;
    return kv_interrupted(e);
}

int kv_model_losses(struct kv_model *m, const struct kv_states *s,
                    const int32_t *target, struct kv_loss *const *loss,
                    struct kv_err *e)
{
    const size_t max = kv_backend_logit_rows(m->backend, m->config.n_vocab);

    if (m->backend->on_host)
        return losses_on_host(m, s, target, loss, e);
    for (size_t t = 0; t < s->n; t += max)
        if (losses_on_device(m, s, t, s->n - t < max ? s->n - t : max, target,
                             loss, e))
            return -1;
    return 0;
}
