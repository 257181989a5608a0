/* Random numbers from explicit seeds.
 *
 * kv_random() has no state: the number is a function of a key and a counter,
 * the same in C and CUDA, so any loop may run in any order.  A key is built by
 * mixing the indices that the number belongs to: kv_mix(kv_mix(seed, layer),
 * head). */
#ifndef KV_BASE_RNG_H
#define KV_BASE_RNG_H

#include <stdint.h>

#ifdef __CUDACC__
#define KV_HOST_DEVICE __host__ __device__
#else
#define KV_HOST_DEVICE
#endif

/* The finalizer of splitmix64. */
KV_HOST_DEVICE static inline uint64_t kv_mix64(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* kv_mix(key, x + 1) = kv_mix(key + KV_MIX_STEP, x). */
#define KV_MIX_STEP 0x9e3779b97f4a7c15u

KV_HOST_DEVICE static inline uint64_t kv_mix(uint64_t key, uint64_t x)
{
    return kv_mix64(key + KV_MIX_STEP * (x + 1));
}

/* 64 uniform bits. */
KV_HOST_DEVICE static inline uint64_t kv_random(uint64_t key, uint64_t counter)
{
    return kv_mix64(kv_mix(key, counter));
}

/* Uniform in [0, 1), a multiple of 2^-24 (exact in float). */
KV_HOST_DEVICE static inline float kv_random_unit(uint64_t key,
                                                  uint64_t counter)
{
    return (float)(kv_random(key, counter) >> 40) * 0x1p-24f;
}

/* Standard normal (Box-Muller, cosine branch); uses only this counter. */
double kv_random_normal(uint64_t key, uint64_t counter);

/* The x below which a standard normal variable lies with probability p, limited
 * to [-10, 10]. */
double kv_normal_quantile(double p);

#endif
