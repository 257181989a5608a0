/* Perturbs keys and values a little, as another machine's rounding might.  A
 * row's numbers then change by an error that their spread over windows does not
 * show. */
#ifndef KV_LOOP_JITTER_H
#define KV_LOOP_JITTER_H

#include "lib/model/model.h"

/* Multiplies k, k_pre and v of x, in host memory, by 1 + 1e-6 e, where e is
 * standard normal and a function of seed, repeat, window, layer, side and
 * place.  window: the number of the first window.  Any grouping of windows and
 * number of threads gives the same values. */
struct kv_jittered {
    struct kv_qkv x;
    float *k, *k_pre, *v;
};

void kv_jittered_new(struct kv_jittered *j, const struct kv_qkv *x,
                     size_t window, uint64_t seed, size_t repeat);
void kv_jittered_clear(struct kv_jittered *j);

#endif
