/* kvppl --ranks: divides the windows, or with --split layers the layers, among
 * the ranks of mpirun. */
#include "lib/base/alloc.h"
#include "lib/mixed.h"
#include "tools/kvppl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvppl_check_ranks(const struct kvppl_args *a, struct kv_err *e)
{
    const char *other = a->own       ? "--own"
                        : a->kl_base ? "--kl-divergence-base"
                                     : NULL;

    if (a->ranks && other)
        return kv_fail(e, "%s does not go with --ranks", other);
    if (!a->split)
        return 0;
    if (strcmp(a->split, "windows") != 0 && strcmp(a->split, "layers") != 0)
        return kv_fail(e, "--split %s: expected windows or layers", a->split);
    if (!a->ranks)
        return kv_fail(e, "--split goes with --ranks");
    return kvppl_by_layers(a) && a->common.on_gpu
               ? kv_fail(e, "--split layers does not go with --device %s",
                         a->common.device)
               : 0;
}

bool kvppl_by_layers(const struct kvppl_args *a)
{
    return a->split && !strcmp(a->split, "layers");
}

/* Refuses specs whose codes depend on layers of another rank. */
static int check_specs(const struct kvppl_run *r, struct kv_err *e)
{
    for (size_t i = 0; i < r->n_specs; i++)
        if (kv_spec_reads_below(&r->spec[i]) || kv_spec_spans(&r->spec[i]))
            return kv_fail(e,
                           "spec '%s' makes its codes of several layers, "
                           "which does not go with --split layers",
                           r->spec[i].text);
    return 0;
}

/* The settings that must agree on all ranks, a line each. */
static char *make_key(const struct kvppl_run *r, const struct kvppl_args *a)
{
    const struct kv_conditions *c = &r->conditions;
    char *key = NULL;
    size_t n;
    FILE *f = open_memstream(&key, &n);

    if (!f)
        return kv_strdup("");
    fprintf(f, "version %s\nmodel's hash %s\n", kv_version(), c->model_hash);
    fprintf(f, "text's hash %s\ncalibration's hash %s\n", c->text_hash,
            r->calib ? r->calib->hash : "none");
    fprintf(f, "protocol %s\n--gemm %s\n--device %s\n", c->protocol, c->gemm,
            c->device);
    fprintf(f, "windows' tokens %zu\nnumber of windows %zu\n", c->ctx,
            c->windows);
    fprintf(f, "--places %s\n", r->places);
    fprintf(f, "BOS %d\nspecial tokens %d\n", (int)c->reading.bos,
            (int)c->reading.special);
    fprintf(f, "--seed %llu\n--memory %zu\n--kl %d\n--no-base %d\n",
            (unsigned long long)a->common.seed, a->common.memory, a->kl,
            a->no_base);
    fprintf(f, "--split %s\n", kvppl_by_layers(a) ? "layers" : "windows");
    if (kvppl_by_layers(a)) /* these decide which windows are grouped */
        fprintf(f, "--threads %zu\n", r->conditions.threads);
    fprintf(f, "--jitter %zu\n--records %d\n", a->jitter, a->records != NULL);
    fprintf(f, "number of rows %zu\n", r->n_specs);
    for (size_t i = 0; i < r->n_specs; i++)
        fprintf(f, "spec %s\n", r->spec[i].text);
    fclose(f);
    return key;
}

int kvppl_meet_ranks(struct kvppl_run *r, const struct kvppl_args *a,
                     struct kv_err *e)
{
    char *key;
    int rc;

    if (r->study->ranks.n == 1)
        return 0;
    if (kvppl_by_layers(a) && check_specs(r, e))
        return -1;
    if (!kvppl_by_layers(a) && r->study->ranks.n > r->text.n)
        return kv_fail(e,
                       "--ranks: %zu ranks for %zu window%s: expected a window "
                       "for each",
                       r->study->ranks.n, r->text.n, r->text.n == 1 ? "" : "s");
    key = make_key(r, a);
    rc = kv_ranks_meet(&r->study->ranks, key, r->there, r->n_specs, e);
    free(key);
    return rc;
}
