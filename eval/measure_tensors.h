/* The tensors of the dump and the codecs that measuring a layer needs. */
#ifndef KV_MEASURE_TENSORS_H
#define KV_MEASURE_TENSORS_H

#include "eval/measure.h"
#include "lib/codec.h"
#include "lib/dump.h"

/* Those that the plan and the codecs of its specs' keys [n_specs] need in a
 * layer.  Fails, naming kvdump's option, where the dump lacks one. */
int kv_measure_tensors(const struct kv_measure_plan *p,
                       const struct kv_codec *const *key, bool want[KV_TENSORS],
                       struct kv_err *e);

/* A layer's codecs, on the plan's backend if it has one.  f32 is stored
 * unchanged: nothing is encoded.  Frees nothing when it fails; 1: for what the
 * backend lacks. */
int kv_measure_codecs(const struct kv_measure_plan *p,
                      const struct kv_spec *spec, size_t layer,
                      struct kv_codecs **cs, struct kv_err *e);

/* Fails where a window that was decoded from a file of codes, which may be any
 * bytes, is not finite.  x: [ctx][n_kv_heads][head_dim]. */
int kv_measure_decoded(const struct kv_measure_plan *p, size_t layer,
                       enum kv_side side, const float *x, struct kv_err *e);

#endif
