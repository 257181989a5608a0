/* Shared by all fuzz drivers.
 *
 * A driver tests one parser: LLVMFuzzerTestOneInput() in fuzz_<name>.c, with
 * fuzz_seed_<name>(), which writes initial inputs.  -Dfuzz=true builds them
 * with clang; scripts/fuzz runs them. */
#ifndef KV_FUZZ_H
#define KV_FUZZ_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Writes the bytes to a file in a folder of this process; returns its path,
 * valid until the next call with the same name. */
const char *fuzz_file(const char *name, const uint8_t *data, size_t n);
/* The folder itself; removed when the program ends. */
const char *fuzz_folder(void);

/* Unless holds, ends the program, which libFuzzer reports as a finding. */
void fuzz_expect(int holds, const char *what);
/* Expects that a failure comes with a sentence. */
void fuzz_expect_sentence(int failed, const struct kv_err *e);

/* Called instead of fuzzing by --seeds=FOLDER: writes seeds into it by
 * fuzz_seed(). */
void fuzz_make_seeds(void);
void fuzz_seed(const char *name, const void *data, size_t n);
void fuzz_seed_file(const char *name, const char *path);

#endif
