#include "eval/measure_tensors.h"
#include "lib/codec_place.h"
#include "lib/mixed.h"
#include "lib/scheme.h"

#include <string.h>

int kv_measure_codecs(const struct kv_measure_plan *p,
                      const struct kv_spec *spec, size_t layer,
                      struct kv_codecs **cs, struct kv_err *e)
{
    if (kv_codecs_new(cs, spec, &kv_dump_info(p->dump)->shape, layer, 1,
                      p->calib, e))
        return -1;
    if (spec->policy.policy && p->backend) {
        kv_fail(e, "%s: tokens are dropped on the CPU alone", spec->text);
        return 1;
    }
    for (int side = 0; side < KV_SIDES && p->backend; side++) {
        struct kv_codec *c = kv_codecs_at(*cs, layer)[side];

        if (strcmp(c->scheme->name, "f32") != 0 &&
            kv_codec_place(c, p->backend, e))
            return 1;
    }
    return 0;
}

int kv_measure_on_gpu(const struct kv_measure_plan *p,
                      const struct kv_spec *spec, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(p->dump);
    int rc = 0;

    for (size_t l = info->first_layer; l <= info->last_layer && !rc; l++) {
        struct kv_codecs *cs = NULL;

        rc = kv_measure_codecs(p, spec, l, &cs, e);
        kv_codecs_free(cs);
    }
    return rc;
}
