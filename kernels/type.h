/* Types of values in memory that a kernel reads or writes. */
#ifndef KV_TYPE_H
#define KV_TYPE_H

#include <stddef.h>

enum kv_type { KV_TYPE_F16, KV_TYPE_BF16, KV_TYPE_F32 };

static inline size_t kv_type_bytes(enum kv_type t)
{
    return t == KV_TYPE_F32 ? 4 : 2;
}

#endif
