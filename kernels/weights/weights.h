/* Weights as files store them: blocks of values in few bits.
 *
 * The types of GGUF, named as there; a block is the least that can be decoded.
 * Every version gives the same bits as the gguf package of Python: products and
 * sums in f32, each rounded. */
#ifndef KV_WEIGHTS_H
#define KV_WEIGHTS_H

#include <stddef.h>

enum kv_stored {
    KV_STORED_F32,
    KV_STORED_F16,
    KV_STORED_BF16,
    KV_STORED_Q4_0,
    KV_STORED_Q4_1,
    KV_STORED_Q5_0,
    KV_STORED_Q5_1,
    KV_STORED_Q8_0,
    KV_STORED_Q2_K,
    KV_STORED_Q3_K,
    KV_STORED_Q4_K,
    KV_STORED_Q5_K,
    KV_STORED_Q6_K,
    KV_STORED_IQ4_NL,
    KV_STORED_IQ4_XS,
    KV_STORED_MXFP4,
    KV_STORED_OTHER /* integers and the like: no weights */
};

/* Not of KV_STORED_OTHER, as all below. */
const char *kv_stored_name(enum kv_stored type); /* "q4_k" */
size_t kv_stored_values(enum kv_stored type);    /* of a block */
size_t kv_stored_bytes(enum kv_stored type);     /* of a block */

/* n values, whole blocks, from any address. */
void kv_stored_decode(enum kv_stored type, const void *blocks, size_t n,
                      float *x);

#endif
