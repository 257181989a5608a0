/* Construction of mixed specs, shared by lib/mixed.c and lib/mixed_file.c. */
#ifndef KV_MIXED_IMPL_H
#define KV_MIXED_IMPL_H

#include "lib/mixed.h"

/* The index of this member, which is added if it is new. */
size_t kv_mixed_add_member(struct kv_mixed *m, const struct kv_spec *spec);

/* Sets m->hash, from a line "0 K kivi:b2g32r128s0\n" for every layer and side
 * in order. */
void kv_mixed_hash_places(struct kv_mixed *m);

/* The permanent mixed spec that equals *m.  Takes ownership of m's memory.
 */
const struct kv_mixed *kv_mixed_keep(struct kv_mixed *m);

void kv_mixed_clear(struct kv_mixed *m);

#endif
