/* kvquant --codes and --codes-in. */
#ifndef KV_KVQUANT_CODES_H
#define KV_KVQUANT_CODES_H

#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/seq/codes_file.h"
#include "tools/common.h"

/* --codes: creates a file for the codes of all windows of a dump.  calib NULL:
 * none. */
int kvquant_codes_create(struct kv_codes **c, const char *path,
                         const struct kv_dump_info *dump,
                         const struct kv_calib *calib, uint64_t seed,
                         bool keep_window, struct kv_err *e);

/* --codes-in: opens such a file.  specs: the file's specs, valid until c is
 * closed; the caller calls kv_strings_clear().  Fails if a spec names a file in
 * a folder, which kvquant --codes never writes. */
int kvquant_codes_open(struct kv_codes_in **c, const char *path,
                       struct kv_strings *specs, struct kv_err *e);

/* Fails if the codes come from another dump or calibration. */
int kvquant_codes_check(const struct kv_codes_in *c, struct kv_dump *dump,
                        const struct kv_calib *calib, struct kv_err *e);

#endif
