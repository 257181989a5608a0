/* Checks that a calibration fits an evaluation: it was made for the same model,
 * on other text. */
#ifndef KV_CALIB_CHECK_H
#define KV_CALIB_CHECK_H

#include "lib/base/err.h"
#include "lib/calib.h"

#include <stdbool.h>

/* The model and text of an evaluation. */
struct kv_evaluated {
    const char *model_hash;
    const struct kv_shape *shape;
    const struct kv_sketch *sketch; /* the sketch of the text's tokens,
                                     * sorted */
};

/* Loads path and checks it: fails for another model, and when its text holds
 * more than 1 % of the sketch, unless allow_leakage.  *leak: the overlap, 0
 * to 1.  *c is the caller's, for kv_calib_free(). */
int kv_calibration_load(struct kv_calib **c, double *leak, const char *path,
                        const struct kv_evaluated *what, bool allow_leakage,
                        struct kv_err *e);

/* Checks a text that comes later, by its sketch (sorted): fails when the
 * calibration's text holds more than 1 % of it.  A text too short to tell
 * passes. */
int kv_calibration_apart(const struct kv_calib *c,
                         const struct kv_sketch *sketch, struct kv_err *e);

/* Calls kv_calibration_load() for the text of a dump.  path NULL: *c becomes
 * NULL. */
int kv_calibration_for_dump(struct kv_calib **c, double *leak, const char *path,
                            struct kv_dump *dump, bool allow_leakage,
                            struct kv_err *e);

#endif
