/* The windows of a dump, stored by a spec that codes all layers together
 * (kv_spec_spans()), and read layer by layer. */
#ifndef KV_MEASURE_SPAN_H
#define KV_MEASURE_SPAN_H

#include "eval/measure.h"

struct kv_measure_span;

/* Encodes and decodes every window; decoded rows are in a temporary file.
 * Fails if the dump lacks layers or keys before RoPE, when kv_codec_new() or
 * kv_cache_append() does, and when interrupted. */
int kv_measure_span_new(struct kv_measure_span **out,
                        const struct kv_measure_plan *p,
                        const struct kv_spec *spec, struct kv_err *e);
void kv_measure_span_free(struct kv_measure_span *m); /* NULL is fine */

/* The codecs [KV_SIDES], of all layers together; m owns them. */
struct kv_codec *const *kv_measure_span_codecs(const struct kv_measure_span *m);

/* Reads the decoded rows of one side of a window in a layer into stored, and
 * compares them with the dump's rows x; both [ctx][n_kv_heads][head_dim], keys
 * before RoPE if the codec stores them so.  Adds the error and the layer's
 * share of the bits (layers have equal shares) to sums.  Thread-safe. */
int kv_measure_span_side(const struct kv_measure_span *m, size_t window,
                         size_t layer, enum kv_side side, const float *x,
                         float *stored, struct kv_measured *sums,
                         struct kv_err *e);

#endif
