/* Device memory that is made when it is wanted, and kept. */
#ifndef KV_DEVICE_ROOM_H
#define KV_DEVICE_ROOM_H

#include "lib/base/err.h"

#include <stddef.h>

/* All zero: none yet. */
struct kv_device_workspace {
    void *p; /* the device's */
    size_t bytes;
};

/* At least so many bytes; what was there is lost where there were fewer.
 * Fails as kv_device_alloc() does, and then has none. */
int kv_device_workspace_want(struct kv_device_workspace *r, size_t bytes,
                             struct kv_err *e);
void kv_device_workspace_clear(struct kv_device_workspace *r);

#endif
