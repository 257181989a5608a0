/* The tensors of the dump and the codecs that measuring a layer needs. */
#ifndef KV_MEASURE_TENSORS_H
#define KV_MEASURE_TENSORS_H

#include "eval/measure.h"
#include "lib/codec.h"
#include "lib/dump.h"

/* Sets want[t] for each tensor of a layer that the plan or its specs' key
 * codecs [n_specs] need.  Fails, naming kvdump's option, if the dump lacks
 * one. */
int kv_measure_tensors(const struct kv_measure_plan *p,
                       const struct kv_codec *const *key, bool want[KV_TENSORS],
                       struct kv_err *e);

/* Opens a layer's codecs, on the plan's backend if it has one.  f32 is stored
 * unchanged and needs no kernel.  On failure it frees nothing.  Returns 1 if
 * the backend lacks a kernel or memory. */
int kv_measure_codecs(const struct kv_measure_plan *p,
                      const struct kv_spec *spec, size_t layer,
                      struct kv_codecs **cs, struct kv_err *e);

/* Fails if a window decoded from a file of codes holds a value that is not
 * finite; such a file may hold any bytes.  x: [ctx][n_kv_heads][head_dim]. */
int kv_measure_decoded(const struct kv_measure_plan *p, size_t layer,
                       enum kv_side side, const float *x, struct kv_err *e);

#endif
