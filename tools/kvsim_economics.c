/* kvsim economics: the conditions under which a spec pays.  There is no queue
 * and no other request, only the cost of sending, holding and reading one
 * sequence's cache. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "tools/columns_about.h"
#include "tools/kvsim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct args {
    struct kv_common common;
    struct kvsim_setting_args setting;
    struct kv_strings links, contexts;
    size_t batch;
};

struct economics {
    struct kvsim_setting setting;
    struct kvsim_scheme f16, *scheme;
    size_t n_schemes;
    double *link, *ctx; /* Gbit/s; tokens */
    size_t n_links, n_ctx;
};

static const char *const columns[] = {"tool",
                                      "version",
                                      "params",
                                      "params_hash",
                                      "set",
                                      "model",
                                      "gpu",
                                      "decode_gpu",
                                      "quant",
                                      "attn",
                                      "step",
                                      "spec",
                                      "bits",
                                      "bits_from",
                                      "measured",
                                      "link_gbits",
                                      "ctx",
                                      "batch",
                                      "encode_gb_s",
                                      "decode_gb_s",
                                      "send_ms",
                                      "send_over_f16",
                                      "pays_below_gbits",
                                      "pays_below_piped_gbits",
                                      "pays_from_ctx",
                                      "decoded_send_ms",
                                      "decoded_below_gbits",
                                      "decoded_below_piped_gbits",
                                      "decoded_from_ctx",
                                      "capacity_tokens",
                                      "capacity_over_f16",
                                      "step_a_us",
                                      "step_b_ns",
                                      "step_us",
                                      "step_over_f16",
                                      "step_even_ctx",
                                      "fit_off",
                                      NULL};

static void about_columns(void)
{
    kv_columns_about("kvsim economics", columns);
}

/* ---- a cache on its way --------------------------------------------------
 */

/* The fp16 bytes of a token, and the bytes that the spec sends for it. */
struct way {
    double f16, sent;
    struct kv_serving_coding encode, decode; /* NaN: not measured */
};

static struct kv_serving_coding coding(const struct kv_serving_model *m,
                                       const struct kv_measured_law *law,
                                       const struct kv_serving_parallel *at,
                                       bool coded)
{
    if (!coded)
        return (struct kv_serving_coding){0, 0};
    return law->rows ? kv_serving_coding(m, law, at)
                     : (struct kv_serving_coding){NAN, NAN};
}

static struct way way_of(const struct economics *r,
                         const struct kvsim_scheme *s)
{
    const struct kv_serving *is = &r->setting.serving;
    const double f16 = kv_serving_token_bytes(&is->model);
    const bool coded = s->is.bits < 16;

    return (struct way){
        .f16 = f16,
        .sent = f16 * s->is.bits / 16,
        .encode = coding(&is->model, &s->times.encode, &is->prefill_at, coded),
        .decode = coding(&is->model, &s->times.decode, &is->decode_at, coded)};
}

static double seconds(struct kv_serving_coding c, double tokens)
{
    return c.fixed + c.token * tokens;
}

/* The link speed, Gbit/s, below which the saved bytes are worth the work of
 * encoding, if encoding and sending follow each other. */
static double below(const struct way *w, double tokens, double work)
{
    return (w->f16 - w->sent) * tokens / work * 8e-9;
}

/* The link speed below which the spec pays if layers are encoded, sent and
 * decoded in parallel: f16 must take longer than the slowest of the three. */
static double below_piped(const struct way *w, double tokens, double slowest)
{
    return w->sent < w->f16 ? w->f16 * tokens / slowest * 8e-9 : NAN;
}

/* The number of tokens from which the spec pays on a link; NaN: never. */
static double from(const struct way *w, double link, double fixed, double token)
{
    const double gain = (w->f16 - w->sent) / (link / 8e-9) - token;

    return gain > 0 ? fmax(1, ceil(fixed / gain)) : NAN;
}

static void put_way(const struct way *w, double link, double tokens,
                    struct kv_results *t)
{
    const double encode = seconds(w->encode, tokens);
    const double decode = seconds(w->decode, tokens);
    const double send = w->sent * tokens / (link / 8e-9);
    const double plain = w->f16 * tokens / (link / 8e-9);
    const double bytes = w->f16 * tokens;

    kv_results_real(t, "send_ms", 1e3 * (encode + send));
    kv_results_real(t, "send_over_f16", (encode + send) / plain);
    kv_results_real(t, "decoded_send_ms", 1e3 * (encode + send + decode));
    if (!(w->sent < w->f16))
        return;
    kv_results_real(t, "encode_gb_s", bytes / encode * 1e-9);
    kv_results_real(t, "decode_gb_s", bytes / decode * 1e-9);
    kv_results_real(t, "pays_below_gbits", below(w, tokens, encode));
    kv_results_real(t, "pays_below_piped_gbits",
                    below_piped(w, tokens, encode));
    kv_results_real(t, "pays_from_ctx",
                    from(w, link, w->encode.fixed, w->encode.token));
    kv_results_real(t, "decoded_below_gbits",
                    below(w, tokens, encode + decode));
    if (!isnan(decode))
        kv_results_real(t, "decoded_below_piped_gbits",
                        below_piped(w, tokens, fmax(encode, decode)));
    kv_results_real(t, "decoded_from_ctx",
                    from(w, link, w->encode.fixed + w->decode.fixed,
                         w->encode.token + w->decode.token));
}

/* ---- a cache that is held and read ---------------------------------------
 */

/* The seconds of a decode step, a + b x length, for a batch of sequences of
 * this length. */
struct latency {
    double a, b;
};

static struct latency latency_of(const struct kv_cluster *c, double batch)
{
    const struct kv_step_cost *t = &c->step;
    const double wide = fmin(batch, t->side);
    struct latency l = {.a = t->fixed};

    for (size_t p = 0; p < KV_STEP_PARTS; p++) {
        l.a += t->per_request[p] * batch / wide;
        l.b += t->per_token[p] * batch / wide;
    }
    return l;
}

/* The length from which on a step is shorter than f16's; NaN: never, 0: always.
 */
static double even(struct latency l, struct latency f16)
{
    if (l.a <= f16.a && l.b <= f16.b && (l.a < f16.a || l.b < f16.b))
        return 0;
    return l.b < f16.b ? ceil((l.a - f16.a) / (f16.b - l.b)) : NAN;
}

static void put_held(const struct economics *r, const struct kvsim_scheme *s,
                     const struct args *a, double tokens, struct kv_results *t)
{
    const double batch = (double)a->batch;
    const struct latency l = latency_of(&s->cluster, batch);
    const struct latency f16 = latency_of(&r->f16.cluster, batch);
    const double step = l.a + l.b * tokens;

    kv_results_real(t, "capacity_tokens",
                    floor(s->cluster.room / s->cluster.kept));
    kv_results_real(t, "capacity_over_f16",
                    r->f16.cluster.kept / s->cluster.kept);
    kv_results_real(t, "step_a_us", 1e6 * l.a);
    kv_results_real(t, "step_b_ns", 1e9 * l.b);
    kv_results_real(t, "step_us", 1e6 * step);
    kv_results_real(t, "step_over_f16", step / (f16.a + f16.b * tokens));
    if (s->is.bits < 16)
        kv_results_real(t, "step_even_ctx", even(l, f16));
    if (s->times.step.rows)
        kv_results_real(t, "fit_off", s->times.step.off);
}

/* ---- rows ----------------------------------------------------------------
 */

static void put_setting(const struct economics *r, const struct args *a,
                        const struct kvsim_scheme *s, double link, double ctx,
                        struct kv_results *t)
{
    static const char *const rows[] = {"quant", "attn", "step"};
    const struct kvsim_setting_args *is = &a->setting;
    char *set = kvsim_changes(&is->changes), measured[64];

    kv_results_text(t, "tool", "kvsim economics");
    kv_results_text(t, "version", kv_version());
    kv_results_text(t, "params", kv_input_name(is->params));
    kv_results_text(t, "params_hash", r->setting.params_hash);
    kv_results_text(t, "set", set);
    free(set);
    kv_results_text(t, "model", is->model);
    kv_results_text(t, "gpu", is->gpu);
    kv_results_text(t, "decode_gpu", is->decode_gpu);
    for (size_t i = 0; i < KV_MEASURED_TABLES; i++)
        if (is->rows[i])
            kv_results_text(t, rows[i], is->rows[i]);
    kv_results_text(t, "spec", s->name);
    kv_results_real(t, "bits", s->is.bits);
    kv_results_text(t, "bits_from", s->bits_quant ? "kvquant" : "kvattn");
    kv_results_text(t, "measured", kvsim_scheme_measured(s, measured));
    kv_results_real(t, "link_gbits", link);
    kv_results_real(t, "ctx", ctx);
    kv_results_size(t, "batch", a->batch);
}

static int put_rows(const struct economics *r, const struct args *a,
                    struct kv_results *t, struct kv_err *e)
{
    for (size_t i = 0; i < r->n_schemes; i++) {
        const struct kvsim_scheme *s = &r->scheme[i];
        const struct way w = way_of(r, s);

        for (size_t k = 0; k < r->n_links * r->n_ctx; k++) {
            const double link = r->link[k / r->n_ctx];
            const double ctx = r->ctx[k % r->n_ctx];

            put_setting(r, a, s, link, ctx, t);
            put_way(&w, link, ctx, t);
            put_held(r, s, a, ctx, t);
            if (kv_results_row(t, e))
                return -1;
        }
    }
    return 0;
}

/* ---- options -------------------------------------------------------------
 */

/* Reads the numbers of a list option, or takes the usual ones. */
static int read_list(const struct kv_strings *given, const char *option,
                     const double *usual, size_t n_usual, double most,
                     double **list, size_t *n, struct kv_err *e)
{
    *n = given->n ? given->n : n_usual;
    *list = kv_alloc(*n, sizeof(**list));
    for (size_t i = 0; i < *n; i++) {
        char *end;

        if (!given->n) {
            (*list)[i] = usual[i];
            continue;
        }
        (*list)[i] = strtod(given->item[i], &end);
        if (end == given->item[i] || *end || !((*list)[i] > 0) ||
            (*list)[i] > most)
            return kv_fail(e, "--%s %s: expected more than 0 and at most %g",
                           option, given->item[i], most);
    }
    return 0;
}

static int check_options(const struct args *a, struct kv_err *e)
{
    const struct kvsim_setting_args *s = &a->setting;

    if (!s->params || !s->model || !s->gpu)
        return kv_fail(e, "--params, --model and --gpu are needed");
    if (!s->rows[KV_MEASURED_ATTN])
        return kv_fail(e, "--attn is needed: rows of kvattn");
    if (!s->schemes.n)
        return kv_fail(e, "specs are needed: -s SPEC");
    if (!a->batch || a->batch > 1000000)
        return kv_fail(e, "--batch %zu: expected 1 to 1000000", a->batch);
    return 0;
}

static int read_schemes(struct economics *r, const struct args *a,
                        struct kv_err *e)
{
    const struct kv_strings *s = &a->setting.schemes;

    if (kvsim_scheme_read(&r->setting, &a->setting, "f16:r0", &r->f16, e))
        return -1;
    r->n_schemes = s->n;
    r->scheme = kv_alloc(s->n, sizeof(*r->scheme));
    for (size_t i = 0; i < s->n; i++) {
        if (kvsim_scheme_read(&r->setting, &a->setting, s->item[i],
                              &r->scheme[i], e))
            return -1;
        if (!r->scheme[i].spec)
            return kv_fail(e,
                           "--scheme %s: %s has a scheme of this name, "
                           "economics are of specs",
                           s->item[i], a->setting.params);
    }
    return 0;
}

static int run(struct economics *r, const struct args *a, struct kv_err *e)
{
    static const double links[] = {10, 100, 400},
                        contexts[] = {1024, 8192, 32768, 131072};
    struct kv_results_form form = kv_common_form(&a->common);
    struct kv_results *t;

    if (check_options(a, e) ||
        read_list(&a->links, "link", links, 3, 1e6, &r->link, &r->n_links, e) ||
        read_list(&a->contexts, "ctx", contexts, 4, 1e9, &r->ctx, &r->n_ctx,
                  e) ||
        kvsim_setting_read(&r->setting, &a->setting, e) ||
        read_schemes(r, a, e))
        return -1;
    for (size_t i = 0; i < r->n_ctx; i++)
        if (r->ctx[i] > r->setting.serving.model.longest)
            return kv_fail(e, "--ctx %g: %s takes %g tokens", r->ctx[i],
                           a->setting.model, r->setting.serving.model.longest);
    if (kv_results_open(&t, &form, columns, e))
        return -1;
    if (put_rows(r, a, t, e)) {
        kv_results_discard(t);
        return -1;
    }
    return kv_results_close(t, e);
}

static const char *const row_key[] = {
    "spec",       "params_hash",     "set",     "model", "gpu",
    "decode_gpu", "quant",           "attn",    "step",  "bits",
    "bits_from",  "measured",        "ctx",     "batch", "link_gbits",
    "send_ms",    "decoded_send_ms", "step_us", NULL};

int kvsim_economics(int argc, char **argv)
{
    const struct kv_results_keys keys = {
        .key = row_key,
        .full = "bits",
        .alike = {{"tool", "kvsim economics"}, {"version", kv_version()}},
        .at_end = true};
    struct args a = {.common = {KV_COMMON_DEFAULTS, .keys = &keys},
                     .setting = {.missing = "refuse"},
                     .batch = 1};
    struct economics r = {0};
    struct kv_err e = {""};
    const struct kv_opt opts[] = {
        KVSIM_SETTING_OPTS(a.setting),
        KV_LIST('s', "scheme", &a.setting.schemes, "SPEC",
                "a spec, as the rows have it; repeatable"),
        KV_WORDS(0, "link", &a.links, "GBITS,...",
                 "of a replica's network, Gbit/s; a list or repeated\n"
                 "(10, 100, 400)"),
        KV_WORDS(0, "ctx", &a.contexts, "N,...",
                 "tokens of a sequence; a list or repeated (1024,\n8192, "
                 "32768, 131072)"),
        KV_SIZE(0, "batch", &a.batch, "N", "sequences in a step (1)"),
        KV_APPEND(a.common),
        KV_COMMON_OPTS(a.common),
        KV_OPT_DONE,
    };
    const struct kv_opt_about about = {
        .usage = "-p FILE -m MODEL -g GPU --attn FILE -s SPEC... [options]",
        .before = kv_common_no_cache_types,
        .columns = about_columns,
        .brief = "From which link, context and length on a spec pays, by times "
                 "that were measured.",
        .more =
            "pays_below_gbits: the link below which encoding and sending is "
            "faster than\nsending f16; piped: layers are encoded and sent side "
            "by side; decoded_*: with\ndecoding on arrival.  pays_from_ctx: on "
            "this link, from that length on.\nstep = a + b x length.  "
            "step_even_ctx: the length from which on it is shorter\nthan "
            "f16's; 0: always, blank: never.\n\n"
            "  kvsim economics -p data/serving/today.json -m llama-3.1-8b -g "
            "H200 --attn\n  results/gpu/nvidia-h200-2/decode.csv --step "
            "results/gpu/nvidia-h200-2/step.csv\n  -s kivi:b2g128r0",
    };
    const int first = kv_opt_parse(argc, argv, &about, opts);

    kv_common_no_operands(argv + first, argc - first);
    kv_common_start(&a.common);
    if (!a.setting.decode_gpu)
        a.setting.decode_gpu = a.setting.gpu;

    const int rc = run(&r, &a, &e);

    kvsim_setting_clear(&r.setting);
    free(r.scheme);
    free(r.link);
    free(r.ctx);
    kv_strings_clear(&a.setting.schemes);
    kv_strings_clear(&a.setting.changes);
    kv_strings_clear(&a.links);
    kv_strings_clear(&a.contexts);
    if (rc)
        kv_die("%s", e.msg);
    kv_close_stdout();
    return KV_EXIT_OK;
}
