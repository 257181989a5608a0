/* HDF5 trusts a file's metadata.  With a bad file it may crash, run for minutes
 * or take gigabytes.  For h5.c alone. */
#ifndef KV_H5_TRIAL_H
#define KV_H5_TRIAL_H

#include "lib/base/err.h"

#include <stdint.h>

/* Reads the file's metadata, without the values, in a child process
 * (lib/base/trial.h).  Its limits are 2 s and 10 ms for each MiB of the
 * file, and 100 MiB.  Fails when the child does not return.  Does not fail on
 * an error of HDF5, since HDF5 reports it again when the file is read. */
int kv_h5_try(const char *path, uint64_t file_bytes, struct kv_err *e);

#endif
