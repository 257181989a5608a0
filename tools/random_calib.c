#include "tools/random_calib.h"
#include "calib/calibrate.h"
#include "eval/random_dump.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/mixed.h"

#include <stdlib.h>

int kv_random_calibration(struct kv_calib **calib, const struct kv_spec *specs,
                          size_t n, const struct kv_shape *shape, uint64_t seed,
                          struct kv_err *e)
{
    struct kv_spec *wanting = kv_alloc(n, sizeof(*wanting));
    struct kv_dump *dump = NULL;
    size_t n_wanting = 0;
    int rc = 0;

    for (size_t i = 0; i < n; i++)
        if (kv_spec_calibrated(&specs[i]))
            wanting[n_wanting++] = specs[i];
    if (n_wanting) {
        kv_note("training %zu spec%s on random tensors, for their speed alone",
                n_wanting, n_wanting == 1 ? "" : "s");
        rc = kv_random_dump(&dump, shape, seed, e) ||
             kv_calib_run(calib, dump, wanting, n_wanting, NULL, seed, e);
    }
    kv_dump_close(dump);
    free(wanting);
    return rc ? -1 : 0;
}
