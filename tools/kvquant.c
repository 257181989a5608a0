/* kvquant: bits and errors of schemes on the tensors of a dump. */
#include "eval/calib_check.h"
#include "eval/measure.h"
#include "eval/policy_error.h"
#include "eval/sweep.h"
#include "lib/base/alloc.h"
#include "lib/base/opt.h"
#include "lib/base/progress.h"
#include "lib/columns.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "lib/policy.h"
#include "lib/scheme.h"
#include "lib/seq/bits.h"
#include "tools/columns_about.h"
#include "tools/common.h"
#include "tools/kvquant_check.h"
#include "tools/kvquant_codes.h"
#include "tools/kvquant_decoded.h"
#include "tools/kvquant_inspect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const columns[] = {KV_CONDITION_COLUMNS,
                                      KV_BITS_COLUMNS,
                                      "kept",
                                      "side",
                                      "layer",
                                      "mse",
                                      "sqnr_db",
                                      "rel_err",
                                      "cosine",
                                      "max_err",
                                      "logit_err",
                                      "attn_kl",
                                      "attn_rel_err",
                                      "rd_gap_db",
                                      NULL};

static void about_columns(void)
{
    kv_columns_about("kvquant", columns);
    kvquant_about_check();
    kvquant_about_inspect();
}

struct args {
    struct kv_common common;
    struct kv_strings specs;
    const char *dump, *calib, *codes, *codes_in, *decoded;
    struct kv_shard shard;
    size_t queries; /* --queries; default QUERIES */
    bool keep_window, attention, allow_leakage, channels, codebooks, check;
};

enum { QUERIES = 64 };

/* Everything a row needs. */
struct run {
    struct kv_dump *dump;
    struct kv_calib *calib;
    double leak;
    struct kv_protocol protocol;
    struct kv_spec *spec; /* [n_all], the other shards' specs follow n_specs */
    size_t n_specs, n_all;
    struct kv_measured *measured; /* [n_specs][layers] */
    struct kv_conditions conditions;
    struct kv_results *table;
    struct kv_codes *codes;
    struct kv_codes_in *from; /* --codes-in */
    struct kvquant_decoded *decoded;
    struct kv_decoded_sink sink; /* the sink of `decoded` */
    struct kv_backend *backend;  /* NULL: the CPU */
    size_t left_out;             /* specs that the GPU does not encode */
};

enum { BOTH = KV_SIDES, ALL_LAYERS = KV_ALL };

/* Writes the bits of a side: KV_K, KV_V or BOTH. */
static void put_bits(struct run *r, const struct kv_spec *spec,
                     const struct kv_measured *m, int layer, int side)
{
    struct kv_bits sum = {0};

    for (int i = 0; i < KV_SIDES; i++)
        if (side == BOTH || side == i)
            kv_bits_add(&sum, &m->bits[i]);
    kv_bits_of_spec(&sum, spec, &kv_dump_info(r->dump)->shape, r->calib, layer,
                    side == BOTH ? KV_ALL : side);
    kv_results_bits(r->table, &sum);
    kv_results_real(r->table, "kept", sum.kept_values / sum.values);
}

static void put_reconstruction(struct kv_results *t,
                               const struct kv_reconstruction *r)
{
    kv_results_real(t, "mse", kv_reconstruction_mse(r));
    kv_results_real(t, "sqnr_db", kv_reconstruction_sqnr_db(r));
    kv_results_real(t, "rel_err", kv_reconstruction_rel_err(r));
    kv_results_real(t, "cosine", kv_reconstruction_cosine(r));
    kv_results_real(t, "max_err", kv_reconstruction_max_err(r));
}

static void put_attention(struct kv_results *t, const struct kv_attn_error *a,
                          int side)
{
    static const enum kv_attn_case stored[] = {KV_ATTN_K, KV_ATTN_V,
                                               KV_ATTN_BOTH};

    if (side == KV_K) { /* the weights depend only on keys */
        kv_results_real(t, "logit_err", kv_attn_error_logit(a));
        kv_results_real(t, "attn_kl", kv_attn_error_kl(a));
    }
    kv_results_real(t, "attn_rel_err", kv_attn_error_out(a, stored[side]));
}

/* Writes nothing if no coefficients were measured. */
static void put_rd_gap(struct kv_results *t, const struct kv_measured *m,
                       int side)
{
    double error = 0, bound = 0;

    for (int i = 0; i < KV_SIDES; i++)
        if (side == BOTH || side == i) {
            error += m->rd_error[i];
            bound += m->rd_bound[i];
        }
    kv_results_real(t, "rd_gap_db", 10 * log10(error / bound));
}

static int put_rows(struct run *r, const struct kv_spec *spec,
                    const struct kv_measured *m, int layer, struct kv_err *e)
{
    static const char *const names[] = {"K", "V", "KV"};
    const struct kv_policy *policy = spec->policy.policy;
    struct kv_conditions conditions = r->conditions;
    struct kv_protocol of;

    if (policy) {
        of = kv_policy_protocol(policy, conditions.ctx);
        conditions.protocol = of.text;
    }
    for (int side = 0; side <= BOTH; side++) {
        if (side == KV_V && kv_dump_info(r->dump)->shape.latent)
            continue; /* V is a part of K and has no row of its own */
        kv_results_conditions(r->table, &conditions, spec,
                              kv_spec_calibrated(spec) ? r->calib : NULL,
                              r->leak);
        put_bits(r, spec, m, layer, side);
        kv_results_text(r->table, "side", names[side]);
        if (layer == ALL_LAYERS)
            kv_results_text(r->table, "layer", "all");
        else
            kv_results_size(r->table, "layer", (uint64_t)layer);
        if (side != BOTH && !policy)
            put_reconstruction(r->table, &m->reconstruction[side]);
        put_attention(r->table, &m->attn, side);
        put_rd_gap(r->table, m, side);
        if (kv_results_row(r->table, e))
            return -1;
    }
    return 0;
}

static void note_stored(const struct kv_spec *spec, const struct kv_measured *m)
{
    struct kv_bits sum = {0};

    for (int side = 0; side < KV_SIDES; side++)
        kv_bits_add(&sum, &m->bits[side]);
    kv_common_note_stored(spec, &sum);
}

static int put_table(struct run *r, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(r->dump);
    const size_t n_layers = info->last_layer - info->first_layer + 1;

    for (size_t s = 0; s < r->n_specs; s++) {
        struct kv_measured all = {0};

        for (size_t i = 0; i < n_layers; i++) {
            const struct kv_measured *m = &r->measured[s * n_layers + i];

            if (put_rows(r, &r->spec[s], m, (int)(info->first_layer + i), e))
                return -1;
            kv_measured_merge(&all, m);
        }
        if (put_rows(r, &r->spec[s], &all, ALL_LAYERS, e))
            return -1;
        note_stored(&r->spec[s], &all);
    }
    return 0;
}

static struct kv_measure_plan plan_of(const struct run *r, const struct args *a)
{
    const struct kv_dump_info *info = kv_dump_info(r->dump);

    return (struct kv_measure_plan){.dump = r->dump,
                                    .spec = r->spec,
                                    .n_specs = r->n_specs,
                                    .calib = r->calib,
                                    .seed = a->common.seed,
                                    .memory = a->common.memory,
                                    .n_queries =
                                        info->have[KV_T_Q] ? a->queries : 0,
                                    .codes = r->codes,
                                    .from = r->from,
                                    .decoded = r->decoded ? &r->sink : NULL,
                                    .backend = r->backend};
}

/* Removes specs that the GPU cannot encode from the list, naming them. */
static int leave_out(struct run *r, const struct args *a, struct kv_err *e)
{
    const struct kv_measure_plan plan = plan_of(r, a);
    const size_t n = r->n_specs;

    r->n_specs = 0;
    for (size_t i = 0; i < n; i++) {
        const int rc = kv_measure_on_gpu(&plan, &r->spec[i], e);

        if (rc < 0)
            return -1;
        if (rc)
            kv_warn("%s: left out", e->msg);
        else
            r->spec[r->n_specs++] = r->spec[i];
    }
    r->left_out = n - r->n_specs;
    return 0;
}

/* Opens --codes-in; protocol and seed are the file's. */
static int open_codes(struct run *r, struct args *a, struct kv_err *e)
{
    const struct kv_codes_info *info;

    if (kvquant_codes_open(&r->from, a->codes_in, &a->specs, e))
        return -1;
    info = kv_codes_about(r->from);
    if (a->common.seed && a->common.seed != info->seed)
        return kv_fail(e, "--seed %llu: %s was coded with seed %llu",
                       (unsigned long long)a->common.seed, a->codes_in,
                       (unsigned long long)info->seed);
    a->common.seed = info->seed;
    a->keep_window = info->keep_window;
    return 0;
}

/* --decoded: writes the one spec after the base line, or the base line
 * itself. */
static int create_decoded(struct run *r, const struct args *a, struct kv_err *e)
{
    const size_t behind =
        r->n_specs && !strcmp(r->spec[0].scheme->name, "f32") ? 1 : 0;

    if (r->n_specs - behind > 1 || !r->n_specs)
        return kv_fail(e, "--decoded %s: expected one spec, not %zu",
                       a->decoded, r->n_specs - behind);
    if (kvquant_decoded_create(&r->decoded, a->decoded, r->dump,
                               &r->spec[r->n_specs - 1], e))
        return -1;
    r->sink = kvquant_decoded_sink(r->decoded);
    return 0;
}

static int prepare(struct run *r, struct args *a, struct kv_err *e)
{
    struct kv_sweep sweep = {.base = "f32",
                             .specs = &a->specs,
                             .protocol = &r->protocol,
                             .shard = a->shard};
    const struct kv_dump_info *info;

    if ((a->codes_in && open_codes(r, a, e)) ||
        kv_protocol_parse(&r->protocol, "all", a->keep_window, e) ||
        (a->dump ? kv_dump_open(&r->dump, a->dump, e)
                 : kvquant_check_dump(&r->dump, a->common.seed, e)))
        return -1;
    info = kv_dump_info(r->dump);
    if (a->check || a->codes_in)
        sweep.base = NULL;
    sweep.shape = &info->shape;
    if (kv_sweep_list(&sweep, &r->spec, &r->n_specs, &r->n_all, e) ||
        kv_policy_dense(r->spec, r->n_specs, e) ||
        kv_calibration_for_dump(&r->calib, &r->leak, a->calib, r->dump,
                                a->allow_leakage, e) ||
        (r->from && kvquant_codes_check(r->from, r->dump, r->calib, e)) ||
        kv_calib_adopt(r->calib, r->spec, r->n_specs, e))
        return -1;
    if (a->common.on_gpu)
        r->backend = kv_backend_cuda(&a->common.gpu, KV_TYPE_F32);
    if (r->backend && leave_out(r, a, e))
        return -1;
    for (size_t i = 0;
         i < r->n_specs && (a->channels || a->codebooks || a->check); i++)
        if (r->spec[i].policy.policy)
            return kv_fail(e,
                           "%s: --channels, --codebooks and --check are of "
                           "all tokens: expected a spec without a policy",
                           r->spec[i].text);
    kv_common_hadamard(r->spec, r->n_specs, &info->shape);
    if (a->attention && !info->have[KV_T_Q])
        return kv_fail(e,
                       "%s has no queries, which --attention needs: make it "
                       "with kvdump --what q,k,v",
                       a->dump);
    r->conditions = (struct kv_conditions){.tool = "kvquant",
                                           .model = info->model,
                                           .model_hash = info->model_hash,
                                           .weights = info->weights,
                                           .text = info->text,
                                           .text_hash = info->text_hash,
                                           .reading = info->reading,
                                           .ctx = info->ctx,
                                           .windows = info->n_windows,
                                           .protocol = r->protocol.text};
    kv_common_conditions(&a->common, &r->conditions);
    if (a->channels || a->codebooks || a->check)
        return 0;
    if (a->codes && kvquant_codes_create(&r->codes, a->codes, info, r->calib,
                                         a->common.seed, a->keep_window, e))
        return -1;
    if (a->decoded && create_decoded(r, a, e))
        return -1;
    return kv_common_table(&r->table, &a->common, a->common.output, columns,
                           r->spec, r->n_all, e);
}

static int measure(struct run *r, const struct args *a, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(r->dump);
    const struct kv_measure_plan plan = plan_of(r, a);

    if (plan.n_queries)
        kv_common_queries(plan.n_queries, QUERIES, info->ctx);
    if (plan.n_queries && plan.n_queries < info->ctx)
        kv_note("attention columns: %zu query positions of %zu in each window",
                plan.n_queries, info->ctx);
    r->measured =
        kv_alloc(r->n_specs * (info->last_layer - info->first_layer + 1),
                 sizeof(*r->measured));
    return kv_measure(&plan, r->measured, e);
}

/* The table comes last: rows written to stdout cannot be taken back. */
static int finish(struct run *r, struct kv_err *e)
{
    struct kv_codes *codes = r->codes;
    struct kvquant_decoded *decoded = r->decoded;
    struct kv_results *table = r->table;

    r->codes = NULL;
    r->decoded = NULL;
    if (codes && kv_codes_commit(codes, e)) {
        kvquant_decoded_discard(decoded);
        return -1;
    }
    if (decoded && kvquant_decoded_commit(decoded, e))
        return -1;
    if (put_table(r, e))
        return -1;
    r->table = NULL;
    return kv_results_close(table, e);
}

static int inspect(const struct run *r, const struct args *a, struct kv_err *e)
{
    const struct kvquant_inspect i = {.common = &a->common,
                                      .dump = r->dump,
                                      .calib = r->calib,
                                      .leak = r->leak,
                                      .spec = r->spec,
                                      .n_specs = r->n_specs,
                                      .n_all = r->n_all,
                                      .conditions = &r->conditions,
                                      .codebooks = a->codebooks};

    return kvquant_inspect(&i, e);
}

static int check(const struct run *r, const struct args *a, size_t *broken,
                 struct kv_err *e)
{
    const struct kvquant_check c = {.common = &a->common,
                                    .dump = r->dump,
                                    .calib = r->calib,
                                    .spec = r->spec,
                                    .n_specs = r->n_specs,
                                    .n_all = r->n_all};

    return kvquant_check(&c, broken, e);
}

static void clear(struct run *r)
{
    kv_codes_discard(r->codes);
    kv_codes_close(r->from);
    kvquant_decoded_discard(r->decoded);
    kv_results_discard(r->table);
    free(r->measured);
    free(r->spec);
    kv_calib_free(r->calib);
    kv_dump_close(r->dump);
    kv_backend_free(r->backend);
}

static void parse(int argc, char **argv, struct args *a)
{
    const struct kv_opt opts[] = {
        KV_SPECS(&a->specs, "scheme and parameters; repeats, and takes\n"
                            "sweeps in quotes: 'kivi:b{2,4}g{32,64}';\n"
                            "K-q8_0/V-q4_0: a scheme for each side"),
        KV_IN('C', "calib", &a->calib, "FILE", "calibration from kvcalib"),
        KV_OUT(0, "codes", &a->codes, "FILE",
               "also write the stored bytes here (HDF5)"),
        KV_IN(0, "codes-in", &a->codes_in, "FILE",
              "in place of -s: bytes that --codes wrote of this\n"
              "dump, read back"),
        KV_OUT(0, "decoded", &a->decoded, "FILE",
               "also write K and V as the one spec gives them\n"
               "back: .h5, the dump with these, for every tool;\n"
               ".npz, .safetensors: layers.N.keys (after RoPE)\n"
               "and layers.N.values, f32 [windows, KV heads,\n"
               "tokens, channels]"),
        KV_SHARD(&a->shard, NULL, NULL,
                 "every N-th spec from the I-th; the base line\n"
                 "is the first (without a value as a launcher\n"
                 "says, below)"),
        KV_FLAG(0, "keep-window", &a->keep_window,
                "keep each spec's sinks and residual (else s0 r0)"),
        KV_SIZE(0, "queries", &a->queries, "N",
                "query positions of a window that attention\n"
                "columns use, evenly spread (64; 0: none)"),
        KV_FLAG(0, "channels", &a->channels,
                "no errors: a row for each channel of what is\n"
                "quantized, keys transformed as the spec says"),
        KV_FLAG(0, "codebooks", &a->codebooks,
                "no errors: a row for each codebook, how its\n"
                "centroids are used"),
        KV_FLAG(0, "check", &a->check,
                "no errors: whether the specs keep the law of\n"
                "lib/codec.h; a dump is not needed"),
        KV_FLAG(0, "attention", &a->attention,
                "fail when the dump has no queries"),
        KV_FLAG(0, "allow-leakage", &a->allow_leakage,
                "take a calibration on the evaluated text"),
        KV_APPEND(a->common),
        KV_COMMON_OPTS(a->common),
        KV_OPT_DONE,
    };
    const struct kv_opt_about about = {
        .usage = "-s SPEC... [-C calib.h5] [options] dump.h5\n"
                 "       kvquant --codes-in codes.h5 [-C calib.h5] [options] "
                 "dump.h5",
        .brief =
            "What each scheme makes of the keys and values in a dump: error,\n"
            "measured bits, and the error of attention over what it stored.",
        .more =
            "Each window is stored whole and read back.  Rows: per layer and\n"
            "over all of them (layer \"all\"), for K, V and both (KV).\n"
            "mse, rel_err and sqnr_db compare what came back with what went\n"
            "in, cosine per head and token.  With queries in the dump:\n"
            "logit_err and attn_kl (K rows) compare attention logits and\n"
            "weights (nats), attn_rel_err the output with K, V or both\n"
            "stored.  K and V rows of hack attend over its dequantized codes;\n"
            "its own attention, on the codes, is in the KV rows.\n"
            "rd_gap_db (transform coding only) is how far the error of the\n"
            "coefficients stays above the Gaussian bound at the same rate.\n"
            "bits_total counts the calibration's tables in.\n"
            "POLICY+SPEC: the window comes token by token, with the spec's "
            "own\n"
            "s and r, or half of it is a prompt (the protocol says), and each\n"
            "query attends to what is kept then: logit_err of that, attn_kl\n"
            "-ln of its weight and the divergence over it; bits are over all\n"
            "tokens, kept is the share held at the end.\n"
            "--channels, over all windows: absmax, mean, std, skewness and\n"
            "kurtosis (0 and 3 of a Gaussian) of each channel of a KV head, "
            "and the head's\n"
            "singular values, the largest beside channel 0; of one layer:\n"
            "kvdump --layers.  --codebooks: the share of centroids that are\n"
            "used, and e to the entropy of the index.\n"
            "--check, for schemes of your own (exec): a row for each part of\n"
            "the law, of keys and of values, on 141 tokens of the dump's "
            "first\n"
            "layer or random ones; the exit status is 1 where one "
            "breaks.\n" KV_SHARD_HELP
            "\n--device cuda: blocks are encoded and decoded on the GPU, to "
            "the\n"
            "same bytes and the same values (kivi, absmax, zeropoint, hack,\n"
            "pq, million, evasion, vecinfer, cq, klt); another spec but f32,\n"
            "the base line, is named and left out, and the exit status is 1.",
        .before = kv_common_no_cache_types,
        .list = kv_common_list,
        .columns = about_columns,
        .operand = "dump.h5"};
    const int first = kv_opt_parse(argc, argv, &about, opts);

    if (argc - first != 1 && !(a->check && argc == first)) {
        kv_common_no_specs(argv + first, argc - first);
        kv_die("expected one dump file, not %d (try --help)", argc - first);
    }
    if (a->codes_in &&
        (a->specs.n || a->codes || a->channels || a->codebooks || a->check))
        kv_die("--codes-in goes without -s, --codes, --channels, --codebooks "
               "and --check: its specs are the file's");
    if (a->codes_in && a->keep_window)
        kv_die("--keep-window goes with encoding: %s says how it was coded",
               a->codes_in);
    if (!a->specs.n && !a->codes_in)
        kv_die("nothing to measure: give -s SPEC (try --list)");
    if (a->attention && !a->queries)
        kv_die("--attention wants queries: --queries 0 leaves its columns "
               "blank");
    if ((a->channels || a->codebooks || a->check) &&
        (a->codes || a->decoded || a->attention || a->common.append))
        kv_die("--channels, --codebooks and --check go without --codes, "
               "--decoded, --attention, --append");
    if (a->channels + a->codebooks + a->check > 1)
        kv_die("--channels, --codebooks and --check are tables of their own: "
               "one is expected");
    a->dump = argc > first ? argv[first] : NULL;
    kv_common_specs(&a->specs);
    kv_common_start(&a->common);
}

int main(int argc, char **argv)
{
    static const char *const key[] = {KV_CONDITION_KEYS, "model", "side",
                                      "layer", NULL};
    const struct kv_results_keys keys = {
        .key = key,
        .full = "bits",
        .alike = {{"tool", "kvquant"}, {"version", kv_version()}},
        .at_end = true};
    struct args a = {
        .common = {KV_COMMON_DEFAULTS, .can_gpu = true, .keys = &keys},
        .shard = {1, 1},
        .queries = QUERIES};
    struct run r = {0};
    struct kv_err e = {""};
    size_t broken = 0;
    int rc;

    parse(argc, argv, &a);
    rc = prepare(&r, &a, &e);
    if (!rc && a.check)
        rc = check(&r, &a, &broken, &e);
    else if (!rc && (a.channels || a.codebooks))
        rc = inspect(&r, &a, &e);
    else if (!rc)
        rc = measure(&r, &a, &e) || finish(&r, &e);
    clear(&r);
    kv_strings_clear(&a.specs);
    if (rc)
        kv_die("%s", e.msg);
    kv_close_stdout();
    return r.left_out || broken ? KV_EXIT_NO : KV_EXIT_OK;
}
