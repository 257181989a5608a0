/* HDF5 trusts a file's metadata: a bad file may make it crash, run for minutes
 * or take gigabytes.  For h5.c alone. */
#ifndef KV_H5_TRIAL_H
#define KV_H5_TRIAL_H

#include "lib/base/err.h"

#include <stdint.h>

/* Goes through all that the file holds, but for values, in a process of its own
 * (lib/base/trial.h), which may take 500 ms, a second more for each GiB of the
 * file, and 100 MiB.  Fails when that does not return; not where HDF5 gives an
 * error, as it will again when the file is read. */
int kv_h5_try(const char *path, uint64_t file_bytes, struct kv_err *e);

#endif
