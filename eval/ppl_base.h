/* The base line of a run in a file, for runs that compare with the same one. */
#ifndef KV_PPL_BASE_H
#define KV_PPL_BASE_H

#include "eval/ppl.h"
#include "lib/h5.h"

/* Writes what kv_ppl_run() left of the base line, its row with the losses, into
 * a new group, to which the caller adds what the run was:
 *   states f32 [windows][scored][hidden], hidden states of scored positions
 *   nll    f32 [windows][scored]
 *   bits   f64 [12], struct kv_bits, and the pairs of struct kv_prefill
 * Before any other run; not with ranks. */
int kv_ppl_base_save(const struct kv_ppl *p, const struct kv_ppl_row *row,
                     struct kv_h5 *h, const char *group, struct kv_err *e);

/* In the place of the base line's run: the next runs are compared with what was
 * saved.  row: as kv_ppl_run() fills it; seconds are of reading. */
int kv_ppl_base_load(struct kv_ppl *p, struct kv_h5 *h, const char *group,
                     struct kv_ppl_row *row, struct kv_err *e);

#endif
