/* kvsim's options and the state of a run, shared by its parts.
 *
 * kvsim.c            the simulation: options, requests, loads
 * kvsim_setting.c    inputs of both commands: parameters, rows, schemes
 * kvsim_rows.c       runs and their rows
 * kvsim_economics.c  the command economics */
#ifndef KV_TOOL_KVSIM_H
#define KV_TOOL_KVSIM_H

#include "eval/serving/serving_costs.h"
#include "eval/serving/serving_report.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"
#include "tools/common.h"

/* Options of both commands. */
struct kvsim_setting_args {
    struct kv_strings schemes, changes;
    const char *params, *model, *gpu, *decode_gpu, *missing;
    const char *rows[KV_MEASURED_TABLES];
    bool unpack;
};

#define KVSIM_SETTING_OPTS(a)                                                  \
    KV_IN('p', "params", &(a).params, "FILE",                                  \
          "parameters (data/serving/hack.json)"),                              \
        KV_STR('m', "model", &(a).model, "NAME", "a model of the file"),       \
        KV_STR('g', "gpu", &(a).gpu, "NAME", "its GPUs of prefill"),           \
        KV_STR(                                                                \
            0, "decode-gpu", &(a).decode_gpu, "NAME",                          \
            "its GPUs of decode (kvsim: A100, economics:\nthose of prefill)"), \
        KV_IN(0, "quant", &(a).rows[KV_MEASURED_QUANT], "FILE",                \
              "kvquant's rows: bits of specs"),                                \
        KV_IN(0, "attn", &(a).rows[KV_MEASURED_ATTN], "FILE",                  \
              "kvattn's rows: times of attention, encoding\nand decoding"),    \
        KV_IN(0, "step", &(a).rows[KV_MEASURED_STEP], "FILE",                  \
              "kvattn -m's rows: of a step, what is no\nattention"),           \
        KV_STR(                                                                \
            0, "missing", &(a).missing, "HOW",                                 \
            "a time that no row has: refuse, or law, the\nfile's (refuse)"),   \
        KV_LIST(0, "set", &(a).changes, "NAME=X",                              \
                "changes a parameter (decode.kv_share=0.7);\nrepeatable")

struct kvsim_args {
    struct kv_common common;
    struct kvsim_setting_args setting;
    struct kv_strings loads;
    const char *dataset, *trace, *base;
    const char *requests, *used;
    double rps;
    size_t n, seeds, prefills, decodes;
};

struct kvsim_scheme {
    const char *name; /* the text before "="; for a spec, its canonical text */
    char text[KV_SPEC_CHARS];
    bool spec; /* it is a spec with measured times; else a scheme of the file */
    struct kv_serving_scheme is;
    struct kv_serving_times times;
    bool bits_quant;
    struct kv_cluster cluster;
};

/* The input of both commands; kvsim_setting_clear() releases it. */
struct kvsim_setting {
    json_t *params;
    char params_hash[KV_HASH_CHARS];
    struct kv_serving serving;
    struct kv_measured measured;
};
int kvsim_setting_read(struct kvsim_setting *s,
                       const struct kvsim_setting_args *a, struct kv_err *e);
void kvsim_setting_clear(struct kvsim_setting *s);

/* Reads a scheme: NAME or NAME=BITS takes it from the file, a spec takes its
 * bits and times from the rows.  Fails when bits are missing; with --missing
 * refuse, also when a time is missing.  The scheme points into itself, so do
 * not move it. */
int kvsim_scheme_read(const struct kvsim_setting *r,
                      const struct kvsim_setting_args *a, const char *text,
                      struct kvsim_scheme *s, struct kv_err *e);
/* Lists which times were measured: "attention rest encode". */
const char *kvsim_scheme_measured(const struct kvsim_scheme *s, char text[64]);

/* The parameters that --set changed, separated by spaces; caller frees. */
char *kvsim_changes(const struct kv_strings *changes);

struct kvsim_run {
    struct kvsim_setting setting;
    struct kv_arrivals arrivals;
    struct kv_arrival *trace;
    size_t n; /* requests of a run */
    struct kvsim_scheme *scheme;
    size_t n_schemes;
    double *rate; /* [n_rates]: requests/s */
    size_t n_rates;
    struct kv_serving_capacity capacity; /* the capacity with --base's scheme */
    double most;                         /* the least of the three capacities */
    struct kv_out used;
};

/* Runs the command economics; argv[0] is its name. */
int kvsim_economics(int argc, char **argv);

/* Runs all schemes, loads and seeds, and writes their rows. */
int kvsim_rows(struct kvsim_run *r, const struct kvsim_args *a,
               struct kv_err *e);

/* --columns help. */
void kvsim_about_columns(void);

#endif
