#include "eval/loop_jitter.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <stdlib.h>

/* The perturbation as a share of each value, about the error of a sum in
 * f32. */
static const double SIZE = 1e-6;

enum { STREAM = 0x6a69 }; /* apart from the seed's other random numbers */

/* Makes a perturbed copy of the keys, or of the values, of all windows.  Keys
 * before and after RoPE get the same perturbation. */
static float *moved(const struct kv_qkv *x, const float *from, size_t window,
                    uint64_t key)
{
    const size_t row = x->shape->n_kv_heads * x->shape->head_dim;
    const size_t n = x->n * row;
    float *to = kv_alloc(x->n_windows * n, sizeof(*to));

#pragma omp parallel for collapse(2) schedule(static)
    for (size_t w = 0; w < x->n_windows; w++)
        for (size_t i = 0; i < n; i++) {
            const uint64_t of = kv_mix(key, window + w);
            const double e = kv_random_normal(of, x->first * row + i);

            to[w * n + i] = (float)((double)from[w * n + i] * (1 + SIZE * e));
        }
    return to;
}

void kv_jittered_new(struct kv_jittered *j, const struct kv_qkv *x,
                     size_t window, uint64_t seed, size_t repeat)
{
    const uint64_t key = kv_mix(kv_mix(kv_mix(seed, STREAM), repeat), x->layer);

    j->k = moved(x, x->k, window, kv_mix(key, KV_K));
    j->k_pre = x->k_pre ? moved(x, x->k_pre, window, kv_mix(key, KV_K)) : NULL;
    j->v = x->v == x->k /* k and v are one array, the latent */
               ? NULL
               : moved(x, x->v, window, kv_mix(key, KV_V));
    j->x = *x;
    j->x.k = j->k;
    j->x.k_pre = j->k_pre;
    j->x.v = j->v ? j->v : j->k;
}

void kv_jittered_clear(struct kv_jittered *j)
{
    free(j->k);
    free(j->k_pre);
    free(j->v);
}
