/* kvcalib --ranks: the ranks of mpirun divide the layers among themselves. */
#include "calib/calibrate.h"
#include "lib/base/alloc.h"
#include "lib/dump.h"
#include "tools/kvcalib.h"

#include <stdio.h>
#include <stdlib.h>

/* The settings that must agree on all ranks, a line each. */
static char *make_key(const struct kvcalib_args *a,
                      const struct kv_dump_info *info,
                      const struct kv_spec *specs, size_t n_specs,
                      const struct kv_calib *factors)
{
    char *key = NULL;
    size_t n;
    FILE *f = open_memstream(&key, &n);

    if (!f)
        return kv_strdup("");
    fprintf(f, "version %s\nmodel's hash %s\ntext's hash %s\n", kv_version(),
            info->model_hash, info->text_hash);
    fprintf(f, "layers %zu to %zu\nwindows' tokens %zu\n", info->first_layer,
            info->last_layer, info->ctx);
    fprintf(f, "number of windows %zu\n--factors' hash %s\n--seed %llu\n",
            info->n_windows, factors ? factors->hash : "none",
            (unsigned long long)a->common.seed);
    fprintf(f, "number of specs %zu\n", n_specs);
    for (size_t i = 0; i < n_specs; i++)
        fprintf(f, "spec %s\n", specs[i].text);
    fclose(f);
    return key;
}

/* Gathers all tables on the first rank. */
static int join(struct kv_ranks *r, struct kv_calib *c, struct kv_err *e)
{
    struct kv_message *part = kv_alloc(r->n, sizeof(*part));
    uint8_t *bytes = NULL;
    const size_t n = r->self ? kv_calib_pack(c, &bytes) : 0;
    int rc = kv_ranks_collect(r, bytes, n, part, e);

    for (size_t i = 1; i < r->n; i++) {
        if (!rc && !r->self)
            rc = kv_calib_unpack(c, part[i].bytes, part[i].n, e);
        free(part[i].bytes);
    }
    free(part);
    return rc;
}

int kvcalib_train(struct kv_calib **c, struct kv_ranks *r,
                  const struct kvcalib_args *a, struct kv_dump *dump,
                  const struct kv_spec *specs, size_t n_specs,
                  const struct kv_calib *factors, struct kv_err *e)
{
    const struct kv_calib_part part = {r->self, r->n};
    char *key;
    int rc = 0;

    if (r->n > 1) {
        key = make_key(a, kv_dump_info(dump), specs, n_specs, factors);
        rc = kv_ranks_meet(r, key, NULL, 0, e);
        free(key);
    }
    if (rc || kv_calib_run_part(c, part, dump, specs, n_specs, factors,
                                a->common.seed, e))
        return -1;
    return r->n > 1 ? join(r, *c, e) : 0;
}
