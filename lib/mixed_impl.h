/* A mixed spec as it is made: lib/mixed.c, lib/mixed_file.c. */
#ifndef KV_MIXED_IMPL_H
#define KV_MIXED_IMPL_H

#include "lib/mixed.h"

/* The index of this member, added where it is new. */
size_t kv_mixed_add_member(struct kv_mixed *m, const struct kv_spec *spec);

/* "0 K kivi:b2g32r128s0\n" of every place in order, into m->hash. */
void kv_mixed_hash_places(struct kv_mixed *m);

/* The one that is kept for good and equals *m.  Takes ownership of m's memory.
 */
const struct kv_mixed *kv_mixed_keep(struct kv_mixed *m);

void kv_mixed_clear(struct kv_mixed *m);

#endif
