#include "eval/measure_tensors.h"
#include "lib/mixed.h"
#include "lib/seq/codes_file.h"

#include <math.h>
#include <string.h>

int kv_measure_tensors(const struct kv_measure_plan *p,
                       const struct kv_codec *const *key, bool want[KV_TENSORS],
                       struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(p->dump);
    const char *path = kv_dump_path(p->dump);

    memset(want, 0, KV_TENSORS * sizeof(*want));
    want[KV_T_K] = want[KV_T_V] = true;
    want[KV_T_Q] = p->n_queries > 0;
    for (size_t s = 0; s < p->n_specs; s++) {
        const struct kv_spec *spec = &p->spec[s];

        if (kv_spec_reads_below(spec) && info->first_layer)
            return kv_fail(e,
                           "%s begins with layer %zu: %s is predicted from the "
                           "layers below",
                           path, info->first_layer, spec->text);
        if (kv_spec_needs_queries(spec) || spec->policy.policy) {
            want[KV_T_Q] = true;
            if (!info->have[KV_T_Q])
                return kv_fail(e,
                               "%s has no queries, which %s needs: make it "
                               "with kvdump --what q,k,v",
                               path, spec->text);
        }
        if (kv_dump_tensor(key[s]) != KV_T_K_PRE)
            continue;
        want[KV_T_K_PRE] = true;
        if (!info->have[KV_T_K_PRE])
            return kv_fail(e,
                           "%s has no keys before RoPE, which %s stores: make "
                           "it with kvdump --rope pre,post",
                           path, spec->text);
    }
    for (int t = 0; t < KV_TENSORS; t++)
        if (want[t] && !info->have[t])
            return kv_fail(e,
                           "%s has no %s: make it with kvdump --what q,k,v%s",
                           path, kv_tensor_name((enum kv_tensor)t),
                           t == KV_T_K ? " --rope pre,post" : "");
    return 0;
}

int kv_measure_decoded(const struct kv_measure_plan *p, size_t layer,
                       enum kv_side side, const float *x, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(p->dump);
    const struct kv_shape *s = &info->shape;
    const size_t n =
        info->ctx * kv_shape_kv_heads(s, layer) * kv_shape_dim(s, layer);

    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return kv_fail(e,
                           "%s: layer %zu, %c: codes of values that are not "
                           "finite",
                           kv_codes_path(p->from), layer, kv_side_name(side));
    return 0;
}
