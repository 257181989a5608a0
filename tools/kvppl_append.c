/* kvppl --resume, --append: rows that the file already has are not measured
 * again. */
#include "lib/spec_columns.h"
#include "tools/kvppl.h"

#include <string.h>

/* The columns that tell rows apart; the spec, which differs most often, comes
 * first. */
static const char *const key[] = {KV_CONDITION_KEYS, "places", NULL};

static int check_options(const struct kvppl_args *a, struct kv_err *e)
{
    const char *option = a->append ? "append" : "resume";

    if (!a->common.output)
        return kv_fail(e, "--%s wants -o FILE, whose rows are kept", option);
    if (a->common.columns)
        return kv_fail(e,
                       "--columns does not go with --%s: the others tell "
                       "which rows are there",
                       option);
    if (a->kl_read)
        return kv_fail(e,
                       "--kl-divergence does not go with --%s: no column "
                       "says which file a row is compared with",
                       option);
    return 0;
}

int kvppl_open_table(struct kvppl_study *s, const struct kvppl_args *a,
                     const char *const *columns, const struct kv_spec *specs,
                     size_t n, struct kv_err *e)
{
    struct kv_results_form form = kv_common_form(&a->common);
    char **params;
    int rc;

    if (a->append || a->resume) {
        if (check_options(a, e))
            return -1;
        form.keys = &s->keys;
        form.append = a->append;
        s->keys = (struct kv_results_keys){
            .key = key,
            .lead = a->no_base ? NULL : "f32:r0s0",
            .full = a->jitter ? "kl_jitter"
                    : a->kl   ? "kl_mean"
                              : "dnll",
            .alike = {{"tool", "kvppl"}, {"version", kv_version()}}};
    }
    params = kv_spec_columns(specs, n);
    form.params = params;
    rc = kv_results_open(&s->table, &form, columns, e);
    kv_spec_columns_free(params);
    return rc;
}

bool kvppl_find_row(struct kvppl_run *r, const struct kv_spec *spec,
                    const struct kv_spec *base)
{
    kv_results_clear_row(r->study->table);
    kvppl_put_conditions(r, r->study->table, spec);
    return kv_results_find_row(r->study->table,
                               base && strcmp(spec->text, base->text));
}
