/* kvsim's options and the state of a run, shared by its parts. */
#ifndef KV_TOOL_KVSIM_H
#define KV_TOOL_KVSIM_H

#include "eval/serving/serving_costs.h"
#include "eval/serving/serving_report.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"
#include "tools/common.h"

struct kvsim_args {
    struct kv_common common;
    struct kv_strings schemes, changes, loads;
    const char *params, *model, *gpu, *decode_gpu, *dataset, *trace, *base;
    const char *requests, *used;
    double rps;
    size_t n, seeds, prefills, decodes;
};

struct kvsim_scheme {
    const char *name; /* as given, cut at the = */
    char text[64];
    struct kv_serving_scheme is;
    struct kv_cluster cluster;
};

struct kvsim_run {
    json_t *params;
    char params_hash[KV_HASH_CHARS];
    struct kv_serving serving;
    struct kv_arrivals arrivals;
    struct kv_arrival *trace;
    size_t n; /* requests of a run */
    struct kvsim_scheme *scheme;
    size_t n_schemes;
    double *rate; /* [n_rates]: requests/s */
    size_t n_rates;
    struct kv_serving_capacity capacity; /* of the scheme --base */
    double most;                         /* the least of the three */
    struct kv_out used;
};

/* Runs all and writes their rows. */
int kvsim_rows(struct kvsim_run *r, const struct kvsim_args *a,
               struct kv_err *e);

#endif
