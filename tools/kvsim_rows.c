#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "tools/columns_about.h"
#include "tools/kvsim.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define X(name) #name,
static const char *const columns[] = {"tool",
                                      "version",
                                      "params",
                                      "params_hash",
                                      "set",
                                      "model",
                                      "gpu",
                                      "decode_gpu",
                                      "dataset",
                                      "scheme",
                                      "bits_sent",
                                      "bits_kept",
                                      "prefills",
                                      "decodes",
                                      "capacity_prefill",
                                      "capacity_network",
                                      "capacity_decode",
                                      "load",
                                      "rps",
                                      "requests",
                                      "seeds",
                                      "seed",
                                      "jct_se",
                                      "ratio",
                                      "ratio_se",
                                      KV_SERVING_TIMES(X) "measured",
                                      NULL};
static const char *const names[] = {KV_SERVING_TIMES(X)};
#undef X

/* Columns of --each. */
static const char *const each_columns[] = {"scheme",
                                           "load",
                                           "request",
                                           "arrives",
                                           "in",
                                           "out",
                                           "jct",
                                           "queue",
                                           "prefill",
                                           "wait",
                                           "communication",
                                           "join",
                                           "step",
                                           "read",
                                           "products",
                                           "vector",
                                           "ttft",
                                           "tpot",
                                           "prefill_replica",
                                           "decode_replica",
                                           "quantize",
                                           "unpack",
                                           NULL};

void kvsim_about_columns(void)
{
    kv_columns_about("kvsim", columns);
    kv_columns_about("kvsim --each", each_columns);
}
static const enum kv_serving_time each_times[] = {
    KV_SERVING_jct,      KV_SERVING_queue,         KV_SERVING_prefill,
    KV_SERVING_wait,     KV_SERVING_communication, KV_SERVING_join,
    KV_SERVING_step,     KV_SERVING_read,          KV_SERVING_products,
    KV_SERVING_vector,   KV_SERVING_ttft,          KV_SERVING_tpot,
    KV_SERVING_quantize, KV_SERVING_unpack};

static uint64_t seed_of(const struct kvsim_args *a, size_t i)
{
    return kv_mix(a->common.seed, i);
}

/* Simulates one run; fills request [r->n] and the figures. */
static int simulate(const struct kvsim_run *r, const struct kvsim_args *a,
                    const struct kv_cluster *c, double rate, size_t seed,
                    struct kv_request *request, struct kv_serving_figures *f,
                    struct kv_err *e)
{
    const struct kv_serving_settings *set = &r->setting.serving.set;
    const size_t first = (size_t)(set->requests.warm_up * (double)r->n);
    const size_t last = (size_t)(set->requests.cool_down * (double)r->n);
    struct kv_arrival *arrival = kv_alloc(r->n, sizeof(*arrival));
    struct kv_arrivals from = r->arrivals;
    struct kv_cluster_use use;
    int rc;

    from.rate = rate;
    kv_arrivals_fill(&from, seed_of(a, seed), arrival, r->n);
    for (size_t i = 0; i < r->n; i++)
        request[i].is = arrival[i];
    free(arrival);
    rc = kv_cluster_run(c, seed_of(a, seed), request, r->n, &use, e);
    if (!rc)
        kv_serving_report(request, first,
                          last + first < r->n ? r->n - last : first + 1, &use,
                          kv_serving_memory(&r->setting.serving),
                          kv_serving_replica_bytes(&r->setting.serving), f);
    return rc;
}

/* Simulates all seeds of a scheme at a rate; keep: NULL, or [r->n], receives
 * the first run's requests. */
static int simulate_seeds(const struct kvsim_run *r, const struct kvsim_args *a,
                          const struct kv_cluster *c, double rate,
                          struct kv_request *keep, struct kv_serving_figures *f,
                          struct kv_err *e)
{
    const size_t bytes =
        r->n * (sizeof(struct kv_request) + sizeof(struct kv_arrival));
    const size_t fit = a->common.memory / bytes;
    const size_t most = a->seeds < fit ? a->seeds : fit;
    int bad = 0;

    if (!fit)
        return kv_fail(e, "--memory: %zu requests take %.3g GB", r->n,
                       (double)bytes / 1e9);
#pragma omp parallel for schedule(dynamic) \
    num_threads(most < a->common.threads ? most : a->common.threads)
    for (size_t i = 0; i < a->seeds; i++) {
        struct kv_request *own =
            !i && keep ? keep : kv_alloc(r->n, sizeof(*own));
        struct kv_err err = {""};

        if (simulate(r, a, c, rate, i, own, &f[i], &err)) {
#pragma omp critical
            {
                bad = -1;
                *e = err;
            }
        }
        if (own != keep)
            free(own);
    }
    return bad;
}

/* Writes the conditions of a row. */
static void put_setting(const struct kvsim_run *r, const struct kvsim_args *a,
                        const struct kvsim_scheme *s, double rate,
                        struct kv_results *t)
{
    char *set = kvsim_changes(&a->setting.changes), measured[64];

    kv_results_text(t, "tool", "kvsim");
    kv_results_text(t, "version", kv_version());
    kv_results_text(t, "params", kv_input_name(a->setting.params));
    kv_results_text(t, "params_hash", r->setting.params_hash);
    kv_results_text(t, "set", set);
    free(set);
    kv_results_text(t, "model", a->setting.model);
    kv_results_text(t, "gpu", a->setting.gpu);
    kv_results_text(t, "decode_gpu", a->setting.decode_gpu);
    kv_results_text(t, "dataset",
                    a->trace ? kv_input_name(a->trace) : a->dataset);
    kv_results_text(t, "scheme", s->name);
    kv_results_text(t, "measured", kvsim_scheme_measured(s, measured));
    kv_results_real(t, "bits_sent", kv_serving_bits(&s->is, false));
    kv_results_real(t, "bits_kept", kv_serving_bits(&s->is, true));
    kv_results_size(t, "prefills", s->cluster.prefills);
    kv_results_size(t, "decodes", s->cluster.decodes);
    kv_results_real(t, "capacity_prefill", r->capacity.prefill);
    kv_results_real(t, "capacity_network", r->capacity.network);
    kv_results_real(t, "capacity_decode", r->capacity.decode);
    kv_results_real(t, "load", rate / r->most);
    kv_results_real(t, "rps", rate);
    kv_results_size(t, "requests", r->n);
    kv_results_size(t, "seeds", a->seeds);
    kv_results_size(t, "seed", a->common.seed);
}

/* Writes the figures.  f: [seeds], this scheme's; base: [seeds], the first
 * scheme's. */
static void put_figures(const struct kvsim_args *a,
                        const struct kv_serving_figures *f,
                        const struct kv_serving_figures *base,
                        struct kv_results *t)
{
    const size_t stride = KV_SERVING_FIGURES;
    double *ratio = kv_alloc(a->seeds, sizeof(*ratio)), se;

    for (size_t k = 0; k < KV_SERVING_FIGURES; k++)
        kv_results_real(t, names[k],
                        kv_serving_mean(&f->at[k], stride, a->seeds, &se));
    kv_serving_mean(&f->at[KV_SERVING_jct], stride, a->seeds, &se);
    kv_results_real(t, "jct_se", se);
    for (size_t i = 0; i < a->seeds; i++)
        ratio[i] = f[i].at[KV_SERVING_jct] / base[i].at[KV_SERVING_jct];
    kv_results_real(t, "ratio", kv_serving_mean(ratio, 1, a->seeds, &se));
    kv_results_real(t, "ratio_se", se);
    free(ratio);
}

static int put_each(const struct kvsim_run *r, const struct kvsim_scheme *s,
                    double rate, const struct kv_request *request,
                    struct kv_results *t, struct kv_err *e)
{
    for (size_t i = 0; i < r->n; i++) {
        struct kv_serving_figures f;

        kv_serving_request(&request[i], &f);
        kv_results_text(t, "scheme", s->name);
        kv_results_real(t, "load", rate / r->most);
        kv_results_size(t, "request", i);
        kv_results_real(t, "arrives", request[i].is.time);
        kv_results_size(t, "in", request[i].is.in);
        kv_results_size(t, "out", request[i].is.out);
        for (size_t k = 0; k < sizeof(each_times) / sizeof(*each_times); k++)
            kv_results_real(t, names[each_times[k]], f.at[each_times[k]]);
        kv_results_size(t, "prefill_replica", request[i].prefill);
        kv_results_size(t, "decode_replica", request[i].decode);
        if (kv_results_row(t, e))
            return -1;
    }
    return 0;
}

static int put_rows(struct kvsim_run *r, const struct kvsim_args *a,
                    struct kv_results *t, struct kv_results *each,
                    struct kv_err *e)
{
    struct kv_serving_figures *f = kv_alloc(2 * a->seeds, sizeof(*f));
    struct kv_request *keep = each ? kv_alloc(r->n, sizeof(*keep)) : NULL;
    int rc = 0;

    for (size_t i = 0; i < r->n_rates * r->n_schemes && !rc; i++) {
        const struct kvsim_scheme *s = &r->scheme[i % r->n_schemes];
        const double rate = r->rate[i / r->n_schemes];
        struct kv_serving_figures *own =
            i % r->n_schemes ? f + a->seeds : f; /* f keeps the first scheme's
                                                  * figures */

        rc = simulate_seeds(r, a, &s->cluster, rate, keep, own, e);
        if (rc)
            break;
        put_setting(r, a, s, rate, t);
        put_figures(a, own, f, t);
        rc = kv_results_row(t, e) ||
                     (each && put_each(r, s, rate, keep, each, e))
                 ? -1
                 : 0;
    }
    free(f);
    free(keep);
    return rc;
}

int kvsim_rows(struct kvsim_run *r, const struct kvsim_args *a,
               struct kv_err *e)
{
    struct kv_results_form form = kv_common_form(&a->common);
    struct kv_results *t, *each = NULL;

    if (kv_results_open(&t, &form, columns, e))
        return -1;
    form.path = a->requests;
    form.chosen = NULL;
    form.keys = NULL;
    form.append = false;
    if ((a->requests && kv_results_open(&each, &form, each_columns, e)) ||
        put_rows(r, a, t, each, e)) {
        kv_results_discard(t);
        if (each)
            kv_results_discard(each);
        return -1;
    }
    if (each && kv_results_close(each, e)) {
        kv_results_discard(t);
        return -1;
    }
    return kv_results_close(t, e);
}
