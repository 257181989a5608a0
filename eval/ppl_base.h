/* A base line in a file, for runs that compare with the same base line. */
#ifndef KV_PPL_BASE_H
#define KV_PPL_BASE_H

#include "eval/ppl.h"
#include "lib/h5.h"

/* Writes the base line that kv_ppl_run() left, and its row with the losses,
 * into a new group; the caller adds the run's settings to the group:
 *   states f32 [windows][scored][hidden], hidden states of scored positions
 *   nll    f32 [windows][scored]
 *   bits   f64 [12], struct kv_bits, and the pairs of struct kv_prefill
 * The caller saves before any other run; not with ranks. */
int kv_ppl_base_save(const struct kv_ppl *p, const struct kv_ppl_row *row,
                     struct kv_h5 *h, const char *group, struct kv_err *e);

/* Replaces the base line's run: later runs are compared with the saved base
 * line.  row: as kv_ppl_run() fills it; seconds is the time of reading. */
int kv_ppl_base_load(struct kv_ppl *p, struct kv_h5 *h, const char *group,
                     struct kv_ppl_row *row, struct kv_err *e);

#endif
