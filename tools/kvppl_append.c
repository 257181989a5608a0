/* kvppl --append: rows that the output has are not measured again. */
#include "lib/base/alloc.h"
#include "lib/spec_columns.h"
#include "tools/kvppl.h"

#include <string.h>

/* What tells rows apart, as --resume has it; the spec, which differs most
 * often, first. */
static const char *const key[] = {
    "spec",    "text_hash",  "ctx",    "windows", "protocol",
    "weights", "calib_hash", "device", "seed",    "bos",
    "special", "gemm",       NULL};

static int check_options(const struct kvppl_args *a, struct kv_err *e)
{
    if (!a->common.output)
        return kv_fail(e, "--append wants -o FILE, to which rows are added");
    if (a->common.columns)
        return kv_fail(e, "--columns does not go with --append: the others "
                          "tell which rows are there");
    if (a->kl_read)
        return kv_fail(e, "--kl-divergence does not go with --append: no "
                          "column says which file a row is compared with");
    return 0;
}

int kvppl_open_table(struct kvppl_run *r, const struct kvppl_args *a,
                     const char *const *columns, struct kv_err *e)
{
    struct kv_results_form form = kv_common_form(&a->common);
    char **params;
    int rc;

    if (a->append && check_options(a, e))
        return -1;
    r->append = (struct kv_results_append){
        .key = key,
        .full = a->kl ? "kl_mean" : "dnll",
        .alike = {{"tool", r->conditions.tool},
                  {"version", kv_version()},
                  {"model_hash", r->conditions.model_hash}}};
    params = kv_spec_columns(r->spec, r->n_all);
    form.params = params;
    form.append = a->append ? &r->append : NULL;
    rc = kv_results_open(&r->table, &form, columns, e);
    kv_spec_columns_free(params);
    return rc;
}

void kvppl_find_there(struct kvppl_run *r, const struct kvppl_args *a,
                      const struct kv_spec *base)
{
    r->there = kv_alloc(r->n_specs, sizeof(*r->there));
    for (size_t i = 0; i < r->n_specs && a->append; i++) {
        const struct kv_spec *s = &r->spec[i];

        kv_results_conditions(r->table, &r->conditions, s,
                              kv_spec_calibrated(s) ? r->calib : NULL, r->leak);
        r->there[i] =
            kv_results_has(r->table, base && strcmp(s->text, base->text));
    }
}
