#include "eval/calib_check.h"
#include "lib/base/progress.h"
#include "lib/dump.h"

#include <math.h>

/* If more than this share of the evaluated text's shingles is in the
 * calibration's text, a result cannot be trusted. */
static const double max_leak = 0.01;

static int check_leak(double leak, const char *path, struct kv_err *e)
{
    return leak > max_leak
               ? kv_fail(e,
                         "%s was calibrated on text that holds %.1f %% of the "
                         "evaluated text (limit %.0f %%): use other text, or "
                         "--allow-leakage",
                         path, 100 * leak, 100 * max_leak)
               : 0;
}

int kv_calibration_apart(const struct kv_calib *c,
                         const struct kv_sketch *sketch, struct kv_err *e)
{
    return check_leak(kv_sketch_overlap(&c->sketch, sketch), c->path, e);
}

int kv_calibration_load(struct kv_calib **out, double *leak, const char *path,
                        const struct kv_evaluated *what, bool allow_leakage,
                        struct kv_err *e)
{
    struct kv_calib *c;

    if (kv_calib_load(&c, path, e))
        return -1;
    if (kv_calib_check_model(c, path, what->model_hash, what->shape, e))
        goto fail;
    *leak = kv_sketch_overlap(&c->sketch, what->sketch);
    if (isnan(*leak) && !allow_leakage) {
        kv_fail(e,
                "the evaluated text is too short to tell whether %s was "
                "calibrated on it: use more text, or --allow-leakage",
                path);
        goto fail;
    }
    if (!allow_leakage && check_leak(*leak, path, e))
        goto fail;
    if (!c->norms)
        kv_note("%s is of an older version: its training took massive tokens "
                "in",
                path);
    *out = c;
    return 0;
fail:
    kv_calib_free(c);
    return -1;
}

int kv_calibration_for_dump(struct kv_calib **c, double *leak, const char *path,
                            struct kv_dump *dump, bool allow_leakage,
                            struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    struct kv_sketch sketch = {0};
    int rc;

    *c = NULL;
    if (!path)
        return 0;
    if (kv_sketch_dump(&sketch, dump, e))
        return -1;
    rc = kv_calibration_load(
        c, leak, path,
        &(struct kv_evaluated){info->model_hash, &info->shape, &sketch},
        allow_leakage, e);
    kv_sketch_clear(&sketch);
    return rc;
}
