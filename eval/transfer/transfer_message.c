#include "eval/transfer/transfer_impl.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

void kv_transfer_send(const struct kv_transfer *t, size_t to, int tag,
                      const void *head, size_t n, const void *more,
                      size_t n_more)
{
    uint8_t *bytes = kv_alloc(n + n_more, 1);

    if (n)
        memcpy(bytes, head, n);
    if (n_more)
        memcpy(bytes + n, more, n_more);
    kv_transport_send(t->transport, to, tag, bytes, n + n_more);
}

void kv_transfer_fail(const struct kv_transfer *t, struct kv_msg of,
                      bool elsewhere, const char *why)
{
    const struct kv_msg_failed f = {of, elsewhere};

    kv_transfer_send(t, 0, KV_TAG_FAILED, &f, sizeof(f), why, strlen(why));
}

size_t kv_transfer_layers(const struct kv_transfer *t)
{
    const struct kv_shape *s = &kv_model_info(t->generation.model)->shape;

    return s->n_layers + (s->n_states > 0);
}

bool kv_transfer_head(const struct kv_message *m, void *head, size_t n)
{
    if (m->n < n)
        return false;
    memcpy(head, m->bytes, n);
    return true;
}

int kv_transfer_fault_parse(struct kv_transfer_fault *f, const char *text,
                            struct kv_err *e)
{
    const char *colon = text ? strchr(text, ':') : NULL;
    char *end = NULL;
    size_t n;

    *f = (struct kv_transfer_fault){0};
    if (!text)
        return 0;
    n = colon && colon[1] != '-' ? strtoul(colon + 1, &end, 10) : 0;
    if (n && !*end && !strncmp(text, "alter:", 6))
        f->alter = n;
    else if (n && !*end && !strncmp(text, "end:", 4))
        f->end = n;
    else
        return kv_fail(e,
                       "--disaggregate-fault %s: expected alter:N or end:N, N "
                       "from 1 on",
                       text);
    return 0;
}
