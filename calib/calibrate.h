/* Makes a calibration: all schemes train on one dump, and their tables go into
 * one file. */
#ifndef KV_CALIBRATE_H
#define KV_CALIBRATE_H

#include "lib/base/err.h"
#include "lib/calib.h"

/* factors: another calibration of the model, or NULL.  All specs take their
 * smoothing factors from it, and every spec must have such factors; its text
 * counts as trained on.
 *
 * Trains each spec (fitted to the dump's shape) and each member of a mixed spec
 * whose scheme or policy has something to calibrate, in the given order.  Specs
 * with the same key are trained once.  Names specs without anything to
 * calibrate on stderr, and prints schemes' warnings there.  Fails when no spec
 * is left, and, before any training, if the dump lacks tensors that a spec
 * needs.  *c is the caller's, for kv_calib_free().
 *
 * The same dump, specs and seed give the same tables for any number of
 * threads. */
int kv_calib_run(struct kv_calib **c, struct kv_dump *dump,
                 const struct kv_spec *specs, size_t n_specs,
                 const struct kv_calib *factors, uint64_t seed,
                 struct kv_err *e);

/* One of n parts of a calibration.  It has all sets, with the tables of its own
 * consecutive layers; a set whose layers are trained together (lib/scheme.h) is
 * whole in one part.  Together the parts have all tables, the same as
 * kv_calib_run() makes. */
struct kv_calib_part {
    size_t self, n;
};
/* Like kv_calib_run(), but afterwards the dump may have fewer layers. */
int kv_calib_run_part(struct kv_calib **c, struct kv_calib_part part,
                      struct kv_dump *dump, const struct kv_spec *specs,
                      size_t n_specs, const struct kv_calib *factors,
                      uint64_t seed, struct kv_err *e);

/* The tables and warnings of a part as bytes, which the caller frees. */
size_t kv_calib_pack(const struct kv_calib *part, uint8_t **bytes);
/* Adds these bytes to another part.  Fails on other bytes. */
int kv_calib_unpack(struct kv_calib *c, const uint8_t *bytes, size_t n,
                    struct kv_err *e);

#endif
