/* kvsim: simulates serving with a quantized cache and separate prefill and
 * decode.
 */
#include "tools/kvsim.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 4096 }; /* number of sampled requests that give the capacity */

/* Below RPS_LEAST requests/s, arrival times are so large that they swallow a
 * request's own times. */
static const double RPS_LEAST = 1e-6, LOAD_MOST = 1000;

static void release(struct kvsim_run *r)
{
    kv_out_discard(&r->used);
    kvsim_setting_clear(&r->setting);
    free(r->trace);
    free(r->scheme);
    free(r->rate);
}

static int check_options(const struct kvsim_args *a, struct kv_err *e)
{
    if (!a->setting.params)
        return kv_fail(e, "parameters are needed: -p FILE");
    if (a->dataset && a->trace)
        return kv_fail(e,
                       "--dataset %s goes without --trace, which has the "
                       "lengths",
                       a->dataset);
    if (!a->setting.model || !a->setting.gpu || (!a->dataset && !a->trace))
        return kv_fail(e, "--model, --gpu and either --dataset or --trace are "
                          "needed; -p FILE names them");
    if (!isnan(a->rps) && a->loads.n)
        return kv_fail(e, "--rps goes without --load");
    if (!isnan(a->rps) && !(a->rps >= RPS_LEAST))
        return kv_fail(e, "--rps %g: expected %g or more", a->rps, RPS_LEAST);
    if (a->n < 10 || a->n >= UINT32_MAX)
        return kv_fail(e, "--requests %zu: expected 10 to %u", a->n,
                       UINT32_MAX);
    if (!a->seeds || a->seeds > 10000)
        return kv_fail(e, "--seeds %zu: expected 1 to 10000", a->seeds);
    return 0;
}

/* ---- what the file says ---------------------------------------------------
 */

static int read_dataset(struct kvsim_run *r, const struct kvsim_args *a,
                        struct kv_err *e)
{
    const double k = r->setting.serving.set.requests.concentration;
    struct kv_serving_dataset d;

    if (kv_serving_dataset(r->setting.params, a->dataset, &d, e))
        return kv_fail_in(e, "%s", a->setting.params);
    if (d.output_most >= r->setting.serving.model.longest)
        return kv_fail(e, "%s: answers of %g tokens, %s takes %g with a prompt",
                       a->dataset, d.output_most, a->setting.model,
                       r->setting.serving.model.longest);
    if (d.output_most + d.input_most > r->setting.serving.model.longest)
        kv_note("inputs are cut: %s takes %g tokens, %s has %g",
                a->setting.model, r->setting.serving.model.longest, a->dataset,
                d.input_most + d.output_most);
    r->arrivals.in =
        (struct kv_length_law){d.input_mean, d.input_least, d.input_most, k};
    r->arrivals.out =
        (struct kv_length_law){d.output_mean, d.output_least, d.output_most, k};
    r->setting.serving.mean_input =
        fmin(d.input_mean, r->setting.serving.model.longest);
    return 0;
}

static int read_trace(struct kvsim_run *r, const struct kvsim_args *a,
                      struct kv_err *e)
{
    size_t n;

    if (kv_trace_read(a->trace, r->arrivals.longest, &r->trace, &n, e))
        return -1;
    if (n < 10)
        return kv_fail(e, "%s: %zu requests, expected 10 or more", a->trace, n);
    if (r->trace[n - 1].time <= 0)
        return kv_fail(e, "%s: all requests arrive at one time", a->trace);
    r->arrivals.trace = r->trace;
    r->arrivals.n_trace = n;
    r->n = n < a->n ? n : a->n;
    for (size_t i = 0; i < n; i++)
        r->setting.serving.mean_input += r->trace[i].in / (double)n;
    return 0;
}

static bool is_same(const struct kvsim_scheme *a, const struct kvsim_scheme *b)
{
    return !strcmp(a->name, b->name) && a->is.bits == b->is.bits;
}

static int read_schemes(struct kvsim_run *r, const struct kvsim_args *a,
                        struct kv_err *e)
{
    static const char *const usual[] = {"baseline", "cachegen", "kvquant",
                                        "hack64"};
    const char *const *names =
        a->setting.schemes.n ? a->setting.schemes.item : usual;

    r->n_schemes = a->setting.schemes.n ? a->setting.schemes.n : 4;
    r->scheme = kv_alloc(r->n_schemes, sizeof(*r->scheme));
    for (size_t i = 0; i < r->n_schemes; i++) {
        if (kvsim_scheme_read(&r->setting, &a->setting, names[i], &r->scheme[i],
                              e))
            return -1;
        for (size_t j = 0; j < i; j++)
            if (is_same(&r->scheme[j], &r->scheme[i]))
                return kv_fail(e, "--scheme %s is given twice", names[i]);
    }
    return 0;
}

/* ---- load -----------------------------------------------------------------
 */

static int find_capacity(struct kvsim_run *r, const struct kvsim_args *a,
                         struct kv_err *e)
{
    const size_t n = r->trace ? r->arrivals.n_trace : SAMPLE;
    struct kv_arrival *sample = kv_alloc(n, sizeof(*sample));
    struct kv_serving_capacity *c = &r->capacity;
    struct kvsim_scheme base;
    int rc = kvsim_scheme_read(&r->setting, &a->setting, a->base, &base, e);

    if (rc) {
        kv_fail_in(e, "--base");
    } else {
        r->arrivals.rate = 1;
        kv_arrivals_fill(&r->arrivals, kv_mix(a->common.seed, 7), sample, n);
        *c = kv_serving_capacity(&r->setting.serving, &base.cluster, sample, n);
        r->most = fmin(c->prefill, fmin(c->network, c->decode));
        kv_note("capacity of %s in requests/s: prefill %.4g, network %.4g, "
                "decode %.4g",
                a->base, c->prefill, c->network, c->decode);
    }
    free(sample);
    return rc;
}

static int list_rates(struct kvsim_run *r, const struct kvsim_args *a,
                      struct kv_err *e)
{
    static const char *const usual[] = {"0.3", "0.5", "0.7", "0.9"};
    const char *const *loads = a->loads.n ? a->loads.item : usual;

    r->n_rates = !isnan(a->rps) ? 1 : a->loads.n ? a->loads.n : 4;
    r->rate = kv_alloc(r->n_rates, sizeof(*r->rate));
    for (size_t i = 0; i < r->n_rates; i++) {
        char *end;
        const double load =
            isnan(a->rps) ? strtod(loads[i], &end) : a->rps / r->most;

        if (isnan(a->rps) &&
            (end == loads[i] || *end || !(load > 0) || load > LOAD_MOST))
            return kv_fail(e, "--load %s: expected more than 0 and at most %g",
                           loads[i], LOAD_MOST);
        r->rate[i] = load * r->most;
        if (isnan(a->rps) && r->rate[i] < RPS_LEAST)
            return kv_fail(e, "--load %s is %g requests/s: expected %g or more",
                           loads[i], r->rate[i], RPS_LEAST);
        if (load >= 1)
            kv_warn("load %.4g is beyond the capacity of %s: the queue grows "
                    "without bound, and times with the number of requests",
                    load, a->base);
    }
    return 0;
}

/* --used: writes the parameters, with --set's changes.  The file gets its name
 * at the end. */
static int write_used(struct kvsim_run *r, const struct kvsim_args *a,
                      struct kv_err *e)
{
    if (!a->used)
        return 0;
    if (kv_out_open(&r->used, a->used, true, e))
        return -1;
    json_dumpf(r->setting.params, r->used.file,
               JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    fputc('\n', r->used.file);
    return 0;
}

static int run(struct kvsim_run *r, const struct kvsim_args *a,
               struct kv_err *e)
{
    r->n = a->n;
    r->setting.serving.prefills = a->prefills;
    r->setting.serving.decodes = a->decodes;
    if (check_options(a, e) || kvsim_setting_read(&r->setting, &a->setting, e))
        return -1;
    r->arrivals.longest = (uint32_t)r->setting.serving.model.longest;
    if ((a->trace ? read_trace(r, a, e) : read_dataset(r, a, e)) ||
        read_schemes(r, a, e) || find_capacity(r, a, e) ||
        list_rates(r, a, e) || write_used(r, a, e) || kvsim_rows(r, a, e))
        return -1;
    return a->used ? kv_out_commit(&r->used, e) : 0;
}

int main(int argc, char **argv)
{
    /* No column identifies the measured rows (--attn) or a run's first scheme.
     * So jct and ratio belong to the key: a row with another value is another
     * row. */
    static const char *const key[] = {
        "scheme",     "params_hash", "set",       "model",     "gpu",
        "decode_gpu", "dataset",     "bits_sent", "bits_kept", "prefills",
        "decodes",    "load",        "rps",       "requests",  "seeds",
        "seed",       "measured",    "jct",       "ratio",     NULL};
    const struct kv_results_keys keys = {
        .key = key,
        .full = "jct",
        .alike = {{"tool", "kvsim"}, {"version", kv_version()}},
        .at_end = true};
    struct kvsim_args a = {
        .common = {KV_COMMON_DEFAULTS, .keys = &keys},
        .setting = {.decode_gpu = "A100", .missing = "refuse"},
        .base = "baseline",
        .rps = NAN,
        .n = 2000,
        .seeds = 4};
    struct kvsim_run r = {0};
    struct kv_err e = {""};
    const struct kv_opt opts[] = {
        KVSIM_SETTING_OPTS(a.setting),
        KV_STR(0, "dataset", &a.dataset, "NAME", "lengths of the file"),
        KV_IN(0, "trace", &a.trace, "FILE",
              "instead: requests in Mooncake's or Azure's\ncolumns"),
        KV_LIST('s', "scheme", &a.setting.schemes, "NAME[=BITS]",
                "a scheme of the file, with other bits a value;\n"
                "or a spec, as the rows have it; repeatable\n"
                "(baseline, cachegen, kvquant, hack64)"),
        KV_FLAG(0, "unpack", &a.setting.unpack,
                "specs: decoded on arrival, then as f16"),
        KV_WORDS(0, "load", &a.loads, "X,...",
                 "requests/s over what the narrowest part can take;\n"
                 "a list or repeated (0.3, 0.5, 0.7, 0.9)"),
        KV_REAL(0, "rps", &a.rps, "R", "requests/s, instead"),
        KV_STR(0, "base", &a.base, "NAME",
               "the scheme whose capacity is load 1 (baseline)"),
        KV_SIZE('n', "requests", &a.n, "N", "requests of a run (2000)"),
        KV_SIZE(0, "seeds", &a.seeds, "N",
                "runs, whose spread is the error (4)"),
        KV_SIZE(0, "prefills", &a.prefills, "N",
                "replicas of prefill (what the instances make)"),
        KV_SIZE(0, "decodes", &a.decodes, "N", "replicas of decode"),
        KV_OUT(0, "used", &a.used, "FILE",
               "writes the parameters, changes applied"),
        KV_OUT(0, "each", &a.requests, "FILE",
               "writes a row for each request of the first run"),
        KV_APPEND(a.common),
        KV_COMMON_OPTS(a.common),
        KV_OPT_DONE,
    };
    const struct kv_opt_about about = {
        .usage = "-p FILE -m MODEL -g GPU --dataset NAME [-s NAME]... "
                 "[options]",
        .before = kv_common_no_cache_types,
        .columns = kvsim_about_columns,
        .brief = "Simulates serving where prefill and decode are on different "
                 "machines and the\nKV cache is sent between them, quantized: "
                 "a row for each scheme and load.",
        .more =
            "jct (job completion time) = queue + prefill + quantize + wait + "
            "communication +\nunpack + join + step + read + products + "
            "vector, in seconds; shares and use are\nin per cent.  ratio: jct "
            "over the run's first scheme's at this load.  Errors\n(_se) are "
            "over seeds; all schemes see the same requests.  With --trace all "
            "seeds\ndo, and errors are of ties of dispatch alone.\n\n"
            "  kvsim -p data/serving/hack.json -m L -g A10G --dataset Cocktail "
            "--load 0.75\n\nkvsim economics: from which link, context and "
            "length on a spec pays (--help).",
    };

    if (argc > 1 && !strcmp(argv[1], "economics")) {
        argv[1] = (char[]){"kvsim economics"};
        return kvsim_economics(argc - 1, argv + 1);
    }

    const int first = kv_opt_parse(argc, argv, &about, opts);

    kv_common_no_operands(argv + first, argc - first);
    kv_common_start(&a.common);

    const int rc = run(&r, &a, &e);

    release(&r);
    kv_strings_clear(&a.setting.schemes);
    kv_strings_clear(&a.setting.changes);
    kv_strings_clear(&a.loads);
    if (rc)
        kv_die("%s", e.msg);
    kv_close_stdout();
    return KV_EXIT_OK;
}
