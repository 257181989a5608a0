/* The transport of builds without MPI; it never starts. */
#include "eval/transfer/transport.h"

#include <stdlib.h>

int kv_transport_start(struct kv_transport **t, struct kv_err *e)
{
    *t = NULL;
    return kv_fail(e, "this build has no MPI: Open MPI (libopenmpi-dev) and "
                      "meson's option -Dmpi=enabled bring it");
}

size_t kv_transport_ranks(const struct kv_transport *t)
{
    (void)t;
    return 1;
}

size_t kv_transport_self(const struct kv_transport *t)
{
    (void)t;
    return 0;
}

void kv_transport_send(struct kv_transport *t, size_t to, int tag,
                       uint8_t *bytes, size_t n)
{
    (void)t, (void)to, (void)tag, (void)n;
    free(bytes);
}

bool kv_transport_receive(struct kv_transport *t, struct kv_message *m,
                          double seconds)
{
    (void)t, (void)m, (void)seconds;
    return false;
}

double kv_transport_silence(struct kv_transport *t, size_t rank)
{
    (void)t, (void)rank;
    return 0;
}

void kv_transport_stop(struct kv_transport *t, bool together)
{
    (void)t, (void)together;
}
