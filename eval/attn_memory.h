/* The host memory that attention over caches (attn_bench.h) takes, counted
 * before any of it is allocated. */
#ifndef KV_ATTN_MEMORY_H
#define KV_ATTN_MEMORY_H

#include "eval/attn_bench.h"

/* Bytes of the inputs' arrays; shape, n_batch, n, nq, want_all_q and has_k_pre
 * are set.  A double, so that products of absurd sizes do not wrap around. */
double kv_attn_inputs_bytes(const struct kv_attn_inputs *in);

/* The most bytes that making and running a step of the spec over these inputs
 * takes: caches, tiles, outputs, the tokens decoded at a time, and the tokens
 * that a policy holds and keeps.  codec: [KV_SIDES], the spec's.  generic: also
 * counts the path "generic". */
double kv_attn_step_bytes(const struct kv_attn_bench *b,
                          const struct kv_attn_inputs *in,
                          const struct kv_spec *spec,
                          struct kv_codec *const *codec, bool generic);

/* Fails when `bytes` are more than `memory`; what: the purpose of these bytes,
 * for the sentence of the error. */
int kv_attn_memory_check(const struct kv_attn_inputs *in, const char *what,
                         double bytes, size_t memory, struct kv_err *e);

#endif
