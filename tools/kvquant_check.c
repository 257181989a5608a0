#include "tools/kvquant_check.h"
#include "calib/calibrate.h"
#include "eval/law.h"
#include "eval/random_dump.h"
#include "lib/base/alloc.h"
#include "lib/base/release.h"
#include "lib/results.h"
#include "tools/columns_about.h"
#include "tools/shape_option.h"

#include <stdlib.h>

static const char *const columns[] = {"tool",  "version", "spec", "side",
                                      "check", "holds",   "what", NULL};

void kvquant_about_check(void)
{
    kv_columns_about("kvquant --check", columns);
}

enum { TOKENS = 141 }; /* more if a block is longer */

int kvquant_check_dump(struct kv_dump **dump, uint64_t seed, struct kv_err *e)
{
    struct kv_attn_inputs in;
    size_t batch;

    return kv_shape_option("1,4,2,64,1", &in, &batch, e) ||
                   kv_random_dump(dump, &in.shape, seed, e)
               ? -1
               : 0;
}

/* Trains the specs that need tables on the dump itself, since the law needs no
 * separate text. */
static int train(const struct kvquant_check *a, struct kv_calib **calib,
                 struct kv_err *e)
{
    struct kv_spec *wanting = kv_alloc(a->n_specs, sizeof(*wanting));
    size_t n = 0;
    int rc = 0;

    for (size_t i = 0; i < a->n_specs; i++)
        if (kv_spec_calibrated(&a->spec[i]))
            wanting[n++] = a->spec[i];
    if (n)
        rc = kv_calib_run(calib, a->dump, wanting, n, NULL, a->common->seed, e);
    free(wanting);
    return rc;
}

static int read_tensor(const struct kvquant_check *a, enum kv_tensor t,
                       size_t n, float **x, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(a->dump);
    const struct kv_shape s = kv_shape_layer(&info->shape, info->first_layer);
    const size_t heads = t == KV_T_Q ? s.n_heads : s.n_kv_heads;

    *x = NULL;
    if (!info->have[t])
        return 0;
    *x = kv_alloc(n, heads * s.head_dim * sizeof(**x));
    return kv_dump_read(a->dump, info->first_layer, t, 0, n, *x, e);
}

static int put_rows(struct kv_results *t, const struct kv_spec *spec,
                    const struct kv_law_verdict (*v)[KV_SIDES], size_t *broken,
                    struct kv_err *e)
{
    static const char *const side_name[] = {"K", "V"};

    for (int side = 0; side < KV_SIDES; side++)
        for (int part = 0; part < KV_LAW_PARTS; part++) {
            const struct kv_law_verdict *one = &v[part][side];

            kv_results_text(t, "tool", "kvquant");
            kv_results_text(t, "version", kv_version());
            kv_results_text(t, "spec", spec->text);
            kv_results_params(t, spec);
            kv_results_text(t, "side", side_name[side]);
            kv_results_text(t, "check", kv_law_name((enum kv_law_part)part));
            kv_results_text(t, "holds", one->holds ? "yes" : "no");
            kv_results_text(t, "what",
                            one->holds ? kv_law_says((enum kv_law_part)part)
                                       : one->why);
            *broken += !one->holds;
            if (kv_results_row(t, e))
                return -1;
        }
    return 0;
}

/* Checks every spec.  x: the tensors, by enum kv_tensor, of n tokens. */
static int check_specs(const struct kvquant_check *a, struct kv_results *t,
                       const struct kv_calib *calib, float *const *x, size_t n,
                       size_t *broken, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(a->dump);
    struct kv_law_verdict verdict[KV_LAW_PARTS][KV_SIDES];

    for (size_t i = 0; i < a->n_specs; i++) {
        const struct kv_law_plan plan = {.spec = &a->spec[i],
                                         .shape = &info->shape,
                                         .layer = info->first_layer,
                                         .calib = calib,
                                         .seed = a->common->seed,
                                         .tokens = {.n = n,
                                                    .q = x[KV_T_Q],
                                                    .k = x[KV_T_K],
                                                    .k_pre = x[KV_T_K_PRE],
                                                    .v = x[KV_T_V]}};

        if (kv_law_check(&plan, verdict, e) ||
            put_rows(t, &a->spec[i],
                     (const struct kv_law_verdict(*)[KV_SIDES])verdict, broken,
                     e))
            return -1;
    }
    return 0;
}

int kvquant_check(const struct kvquant_check *a, size_t *broken,
                  struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(a->dump);
    const size_t n = info->ctx < TOKENS ? info->ctx : TOKENS;
    float *x[KV_TENSORS] = {NULL};
    struct kv_calib *own = NULL;
    struct kv_results *t = NULL;
    int rc = kv_spec_alone(a->spec, a->n_specs, "kvquant --check", e);

    if (!rc && n < 2)
        rc = kv_fail(e, "%s has windows of one token: --check wants several",
                     kv_dump_path(a->dump));
    for (int i = KV_T_Q; i <= KV_T_K_PRE && !rc; i++)
        rc = read_tensor(a, (enum kv_tensor)i, n, &x[i], e);
    if (!rc && !a->calib)
        rc = train(a, &own, e);
    if (!rc)
        rc = kv_common_table(&t, a->common, a->common->output, columns, a->spec,
                             a->n_all, e);
    if (!rc)
        rc = check_specs(a, t, a->calib ? a->calib : own, x, n, broken, e);
    for (int i = 0; i < KV_TENSORS; i++)
        free(x[i]);
    kv_calib_free(own);
    if (!rc)
        return kv_results_close(t, e);
    kv_results_discard(t);
    return -1;
}
