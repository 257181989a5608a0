#include "tools/kvquant_codes.h"
#include "lib/base/alloc.h"
#include "lib/h5_head.h"
#include "lib/mixed.h"

#include <stdio.h>
#include <string.h>

int kvquant_codes_create(struct kv_codes **c, const char *path,
                         const struct kv_dump_info *dump,
                         const struct kv_calib *calib, uint64_t seed,
                         bool keep_window, struct kv_err *e)
{
    struct kv_codes_info info = {.shape = dump->shape,
                                 .n_windows = dump->n_windows,
                                 .ctx = dump->ctx,
                                 .first_layer = dump->first_layer,
                                 .last_layer = dump->last_layer,
                                 .seed = seed,
                                 .keep_window = keep_window};

    memcpy(info.model, dump->model, sizeof(info.model));
    memcpy(info.model_hash, dump->model_hash, sizeof(info.model_hash));
    memcpy(info.text, dump->text, sizeof(info.text));
    memcpy(info.text_hash, dump->text_hash, sizeof(info.text_hash));
    if (calib)
        memcpy(info.calib_hash, calib->hash, sizeof(info.calib_hash));
    return kv_codes_create(c, path, &info, e);
}

int kvquant_codes_open(struct kv_codes_in **c, const char *path,
                       struct kv_strings *specs, struct kv_err *e)
{
    const char *const *texts;

    if (kv_codes_open(c, path, e))
        return -1;
    specs->n = kv_codes_specs(*c, &texts);
    specs->item = kv_alloc(specs->n, sizeof(*specs->item));
    for (size_t i = 0; i < specs->n; i++) {
        const char *file = kv_mixed_file(texts[i]);

        if (file && strchr(file, '/'))
            return kv_fail(e, "%s: the spec %s names a file in another folder",
                           path, texts[i]);
        specs->item[i] = texts[i];
    }
    return 0;
}

static int check_dump(const struct kv_codes_info *is, const char *path,
                      struct kv_dump *dump, struct kv_err *e)
{
    const struct kv_dump_info *want = kv_dump_info(dump);

    if (strcmp(is->model_hash, want->model_hash) != 0 ||
        strcmp(is->text_hash, want->text_hash) != 0)
        return kv_fail(e,
                       "%s holds codes of %s on %s (%s, %s), and %s is %s on "
                       "%s (%s, %s)",
                       path, is->model, is->text, is->model_hash, is->text_hash,
                       kv_dump_path(dump), want->model, want->text,
                       want->model_hash, want->text_hash);
    if (kv_shape_same(&is->shape, &want->shape, e))
        return kv_fail_in(e, "%s holds codes of another model than %s", path,
                          kv_dump_path(dump));
    if (is->n_windows == want->n_windows && is->ctx == want->ctx &&
        is->first_layer == want->first_layer &&
        is->last_layer == want->last_layer)
        return 0;
    return kv_fail(e,
                   "%s holds %zu windows of %zu tokens, layers %zu to %zu: "
                   "%s has %zu of %zu, layers %zu to %zu",
                   path, is->n_windows, is->ctx, is->first_layer,
                   is->last_layer, kv_dump_path(dump), want->n_windows,
                   want->ctx, want->first_layer, want->last_layer);
}

int kvquant_codes_check(const struct kv_codes_in *c, struct kv_dump *dump,
                        const struct kv_calib *calib, struct kv_err *e)
{
    const struct kv_codes_info *is = kv_codes_about(c);
    const char *path = kv_codes_path(c), *hash = calib ? calib->hash : "";

    if (check_dump(is, path, dump, e))
        return -1;
    if (!strcmp(is->calib_hash, hash))
        return 0;
    if (!calib)
        return kv_fail(e, "%s was coded with calibration %s: give it by -C",
                       path, is->calib_hash);
    return kv_fail(e, "%s was coded with calibration %s, and %s is %s", path,
                   *is->calib_hash ? is->calib_hash : "none", calib->path,
                   hash);
}
