/* Specs measured on a dump: reconstruction error, bits, and attention error. */
#ifndef KV_MEASURE_H
#define KV_MEASURE_H

#include "eval/attn_error.h"
#include "eval/reconstruction.h"
#include "kernels/backend.h"
#include "lib/base/err.h"
#include "lib/seq/bits.h"
#include "lib/spec.h"

#include <stdint.h>

struct kv_calib;
struct kv_codes;
struct kv_codes_in;
struct kv_dump;

/* Sums of one spec over windows of one layer, or of several layers. */
struct kv_measured {
    struct kv_reconstruction reconstruction[KV_SIDES];
    struct kv_bits bits[KV_SIDES]; /* without shared_bytes and nominal */
    struct kv_attn_error attn;

    /* For schemes with coefficients(), over quantized tokens: the squared error
     * of their coefficients, and the least error possible for Gaussians of the
     * same mean power at the codec's rate (eval/rd_bound.h), layer by layer.  0
     * for other schemes. */
    double rd_error[KV_SIDES], rd_bound[KV_SIDES];
};

/* Receives the decoded keys or values of a window in a layer, keys before RoPE
 * if the codec is pre_rope.  x: [ctx][n_kv_heads][head_dim]; put() may change
 * it. */
struct kv_decoded_sink {
    int (*put)(void *arg, const struct kv_codec *c, size_t window, float *x,
               struct kv_err *e);
    void *arg;
};

struct kv_measure_plan {
    struct kv_dump *dump;
    const struct kv_spec *spec; /* [n_specs], fitted to the dump's shape */
    size_t n_specs;
    const struct kv_calib *calib; /* NULL: none */
    uint64_t seed;
    size_t memory;            /* bytes of tensors read at a time, at least one
                               * window */
    size_t n_queries;         /* query positions per window for attention error;
                               * 0: it is not measured */
    struct kv_codes *codes;   /* receives the codes; NULL: not written */
    struct kv_codes_in *from; /* the codes of the dump's windows, read instead
                               * of encoding; NULL: encodes */
    const struct kv_decoded_sink *decoded; /* receives the last spec's windows,
                                            * layer by layer, each layer's in
                                            * order; NULL: none */
    const struct kv_backend *backend; /* backend that encodes and decodes all
                                       * schemes but f32; NULL: the CPU */
};

/* Returns 0 if the plan's backend encodes this spec on every layer and side,
 * else 1 with the reason.  Fails if the CPU cannot encode it either. */
int kv_measure_on_gpu(const struct kv_measure_plan *p,
                      const struct kv_spec *spec, struct kv_err *e);

/* Appends every window of every layer to an empty cache of every spec and
 * compares the cache's output with its input.  Keys of a pre_rope codec are
 * compared before RoPE, and rotated for attention.  Schemes with an attend()
 * use their own attention.
 *
 * A window of a spec with a policy enters the cache by kv_policy_protocol().
 * Only its attention and its bits are measured (policy_error.h), not its
 * reconstruction, and it needs queries.
 *
 * If one code holds all layers (kv_spec_spans()), each layer counts an equal
 * part of the code's bits.
 *
 * out: [n_specs][layers of the dump], cleared here.  Any number of threads and
 * any memory give the same bits.
 *
 * Fails if the dump lacks a needed k_pre or q, or holds a NaN or an infinity,
 * without a needed calibration, if the device fails, and when interrupted. */
int kv_measure(const struct kv_measure_plan *p, struct kv_measured *out,
               struct kv_err *e);

void kv_measured_merge(struct kv_measured *into, const struct kv_measured *m);

#endif
