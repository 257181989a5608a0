/* Shared by calibrate.c and tables.c. */
#ifndef KV_CALIBRATE_IMPL_H
#define KV_CALIBRATE_IMPL_H

#include "lib/calib.h"
#include "lib/dump.h"

/* Makes an empty calibration of the dump's model and text, with room for n_sets
 * sets; kv_calib_free() frees it. */
struct kv_calib *kv_calib_start(struct kv_dump *dump, size_t n_sets);

/* Sets c->norms.  *counts: [layers of the dump][its tokens], whether training
 * uses the token; the caller frees it, also after a failure. */
int kv_calib_massive(struct kv_calib *c, struct kv_dump *dump, bool **counts,
                     struct kv_err *e);

#endif
