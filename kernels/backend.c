#include "kernels/backend.h"

void kv_backend_free(struct kv_backend *b)
{
    if (b)
        b->close(b);
}

size_t kv_backend_logit_rows(const struct kv_backend *b, size_t n_vocab)
{
    const size_t rows = b->logit_bytes / (n_vocab * sizeof(float));
    const size_t max = rows < b->logit_rows ? rows : b->logit_rows;

    return max < b->logit_unit ? b->logit_unit
                               : max / b->logit_unit * b->logit_unit;
}

int kv_workspace_want(const struct kv_backend *b, struct kv_workspace *w,
                      size_t bytes, struct kv_err *e)
{
    if (bytes <= w->bytes)
        return 0;
    kv_workspace_clear(b, w);
    if (b->alloc(&w->p, bytes, e))
        return -1;
    w->bytes = bytes;
    return 0;
}

void kv_workspace_clear(const struct kv_backend *b, struct kv_workspace *w)
{
    b->free(w->p);
    *w = (struct kv_workspace){NULL, 0};
}

int kv_backend_take(const struct kv_backend *b, struct kv_workspace *w,
                    const void *host, size_t bytes, const void **at,
                    struct kv_err *e)
{
    *at = host;
    if (b->on_host)
        return 0;
    if (kv_workspace_want(b, w, bytes, e) || b->upload(w->p, host, bytes, e))
        return -1;
    *at = w->p;
    return 0;
}

int kv_backend_place(const struct kv_backend *b, struct kv_workspace *w,
                     void *host, size_t bytes, void **at, struct kv_err *e)
{
    *at = host;
    if (b->on_host)
        return 0;
    if (kv_workspace_want(b, w, bytes, e))
        return -1;
    *at = w->p;
    return 0;
}

int kv_backend_give(const struct kv_backend *b, void *host, const void *at,
                    size_t bytes, struct kv_err *e)
{
    return b->on_host ? 0 : b->download(host, at, bytes, e);
}
