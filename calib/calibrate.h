/* A calibration: every scheme trains on one dump, the results in one file. */
#ifndef KV_CALIBRATE_H
#define KV_CALIBRATE_H

#include "lib/base/err.h"
#include "lib/calib.h"

/* factors: another calibration of the model, whose smoothing factors all specs
 * take; they must have some, and its text then counts as trained on.  Or NULL.
 *
 * Trains each spec (fitted to the dump's shape), and each member of a mixed
 * one, whose scheme or policy has something to calibrate, once for each key, in
 * the order given; names specs without anything to calibrate on stderr, and
 * prints schemes' warnings there.  Fails when no spec is left, and before the
 * first is trained when the dump lacks what any of them needs.  *c is the
 * caller's, for kv_calib_free().
 *
 * The same dump, specs and seed give the same tables for any number of
 * threads. */
int kv_calib_run(struct kv_calib **c, struct kv_dump *dump,
                 const struct kv_spec *specs, size_t n_specs,
                 const struct kv_calib *factors, uint64_t seed,
                 struct kv_err *e);

/* One of n parts of a calibration.  It has all sets, and of their tables those
 * of its own layers, which follow each other, and whole sets where layers are
 * trained together (lib/scheme.h).  Together the parts have all tables, the
 * same as kv_calib_run() gives them. */
struct kv_calib_part {
    size_t self, n;
};
/* As kv_calib_run().  Afterwards the dump may have fewer layers. */
int kv_calib_run_part(struct kv_calib **c, struct kv_calib_part part,
                      struct kv_dump *dump, const struct kv_spec *specs,
                      size_t n_specs, const struct kv_calib *factors,
                      uint64_t seed, struct kv_err *e);

/* The tables and warnings of a part as bytes, which the caller frees. */
size_t kv_calib_pack(const struct kv_calib *part, uint8_t **bytes);
/* Adds them to another part's.  Fails where they are not such bytes. */
int kv_calib_unpack(struct kv_calib *c, const uint8_t *bytes, size_t n,
                    struct kv_err *e);

#endif
