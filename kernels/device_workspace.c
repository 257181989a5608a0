#include "kernels/device_workspace.h"
#include "kernels/device.h"

int kv_device_workspace_want(struct kv_device_workspace *r, size_t bytes,
                             struct kv_err *e)
{
    if (bytes <= r->bytes)
        return 0;
    kv_device_workspace_clear(r);
    if (kv_device_alloc(&r->p, bytes, e))
        return -1;
    r->bytes = bytes;
    return 0;
}

void kv_device_workspace_clear(struct kv_device_workspace *r)
{
    kv_device_free(r->p);
    *r = (struct kv_device_workspace){NULL, 0};
}
