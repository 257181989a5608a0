/* kvquant --decoded: writes keys and values as a spec decodes them.
 *
 * .h5: the dump (lib/dump.h) with these k, v and, where it has one, k_pre.
 * .npz and .safetensors: layers.N.keys, after RoPE, and layers.N.values, f32
 * [windows][heads][tokens][channels], a batch of transformers' cache, with the
 * model's own order of channels. */
#ifndef KV_KVQUANT_DECODED_H
#define KV_KVQUANT_DECODED_H

#include "eval/measure.h"

struct kvquant_decoded;

/* spec: the spec that decodes the tensors.  Fails on any other suffix. */
int kvquant_decoded_create(struct kvquant_decoded **d, const char *path,
                           struct kv_dump *dump, const struct kv_spec *spec,
                           struct kv_err *e);
struct kv_decoded_sink kvquant_decoded_sink(struct kvquant_decoded *d);
int kvquant_decoded_commit(struct kvquant_decoded *d, struct kv_err *e);
void kvquant_decoded_discard(struct kvquant_decoded *d); /* NULL is fine */

#endif
