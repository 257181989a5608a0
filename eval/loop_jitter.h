/* Keys and values moved a little, as another machine's rounding might move
 * them: how far a row's numbers follow is an error that windows do not show. */
#ifndef KV_LOOP_JITTER_H
#define KV_LOOP_JITTER_H

#include "lib/model/model.h"

/* x in host memory, its k, k_pre and v times 1 + 1e-6 e, e standard normal by
 * seed, repeat, window, layer, side and place; window: the number of the first
 * one.  The same for any grouping of windows and number of threads. */
struct kv_jittered {
    struct kv_qkv x;
    float *k, *k_pre, *v;
};

void kv_jittered_new(struct kv_jittered *j, const struct kv_qkv *x,
                     size_t window, uint64_t seed, size_t repeat);
void kv_jittered_clear(struct kv_jittered *j);

#endif
