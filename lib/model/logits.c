#include "lib/model/pass.h"

/* Products of rows of x with a panel of the head. */
struct panel {
    struct kv_model *m;
    const float *x;
    size_t n, first, columns;
    const void *head; /* NULL: no tile of rows wants it widened */
    float *logits;
};

/* Whether the head stays stored for a tile of so many rows. */
static bool is_few(const struct kv_backend *b, size_t rows)
{
    return b->on_host && rows <= KV_FEW_ROWS;
}

/* The head's bias, where it has one. */
static int add_bias(const struct panel *p, float *to, size_t rows,
                    struct kv_err *e)
{
    const float *bias = kv_layers_head_bias(p->m->layers);

    for (size_t i = 0; bias && i < rows; i++)
        if (p->m->backend->add(to + i * p->m->config.n_vocab, bias + p->first,
                               1, p->columns, e))
            return -1;
    return 0;
}

static int panel_tile(const void *arg, size_t i, size_t thread,
                      struct kv_err *e)
{
    const struct panel *p = arg;
    const struct kv_backend *b = p->m->backend;
    const size_t t = i * b->tile, h = p->m->config.hidden;
    const size_t rows = p->n - t < b->tile ? p->n - t : b->tile;
    const size_t n_vocab = p->m->config.n_vocab;
    const float cap = p->m->config.logit_cap;
    float *to = p->logits + t * n_vocab + p->first;
    const struct kv_stored_part stored =
        kv_layers_stored_head(p->m->layers, p->first, p->columns);
    const void *a;

    (void)thread;
    if (b->to_input(b, p->x + t * h, rows * h, p->m->workspace[KV_WORK_INPUT].p,
                    &a, e) ||
        b->multiply(b,
                    &(struct kv_product){.rows = rows,
                                         .outputs = p->columns,
                                         .inputs = h,
                                         .a = a,
                                         .w = is_few(b, rows) ? NULL : p->head,
                                         .c = to,
                                         .c_row = n_vocab,
                                         .stored = &stored,
                                         .n_stored = 1},
                    e) ||
        add_bias(p, to, rows, e))
        return -1;
    return cap > 0 ? b->cap(to, rows, p->columns, n_vocab, cap, e) : 0;
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
        rc = (!is_few(b, n) && kv_layers_head(m->layers, p.first, p.columns,
                                              &panel, &p.head, e)) ||
             b->each((n + b->tile - 1) / b->tile, panel_tile, &p, e);
    }
    kv_workspace_clear(b, &panel);
    return rc ? -1 : 0;
}

/* Logits of n rows of the host's, to the backend. */
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

int kv_model_losses(struct kv_model *m, const float *hidden, const float *base,
                    size_t n, const int32_t *target, struct kv_loss *loss,
                    struct kv_err *e)
{
    const struct kv_backend *b = m->backend;
    const size_t h = m->config.hidden, n_vocab = m->config.n_vocab;
    const size_t max = kv_backend_logit_rows(b, n_vocab);
    struct kv_workspace *mine = &m->workspace[KV_WORK_LOGITS];
    struct kv_workspace *its = &m->workspace[KV_WORK_BASE_LOGITS];
    int rc = 0;

    for (size_t t = 0; t < n && !rc; t += max) {
        const size_t rows = n - t < max ? n - t : max;
        const size_t bytes = rows * n_vocab * sizeof(float);

        rc = kv_workspace_want(b, mine, bytes, e) ||
             make_logits(m, hidden + t * h, rows, mine->p, e) ||
             (base && (kv_workspace_want(b, its, bytes, e) ||
                       make_logits(m, base + t * h, rows, its->p, e))) ||
             b->loss(b, mine->p, base ? its->p : NULL, target + t, rows,
                     n_vocab, loss + t, e) ||
             kv_interrupted(e);
    }
    return rc ? -1 : 0;
}
