/* A dump of random tensors, to calibrate without a model.  Tables trained on it
 * have the right shape and random content, which suffices for timing. */
#ifndef KV_RANDOM_DUMP_H
#define KV_RANDOM_DUMP_H

#include "lib/base/err.h"
#include "lib/dump.h"

enum { KV_RANDOM_WINDOWS = 8, KV_RANDOM_CTX = 512 };

/* Makes standard normal k, k_pre, v and q and squared normal Fisher
 * information, KV_RANDOM_WINDOWS windows of KV_RANDOM_CTX tokens; shape has one
 * layer.  Uses a file in $TMPDIR or /tmp, removed before this returns; *dump is
 * the caller's, for kv_dump_close().  Fails when it cannot be written. */
int kv_random_dump(struct kv_dump **dump, const struct kv_shape *shape,
                   uint64_t seed, struct kv_err *e);

#endif
