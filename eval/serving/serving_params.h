/* The parameters of a simulation, from one JSON file:
 *
 *   {"about": TEXT,
 *    "gpus": {NAME: {...}}, "models": {NAME: {...}}, "datasets": {NAME: {...}},
 *    "parallel": {GPU: {MODEL: {"tp": V, "pp": V}}}, "schemes": {NAME: {...}},
 *    "prefill": {...}, "transfer": {...}, "decode": {...}, "memory": {...},
 *    "requests": {...}}
 *
 * Each V is {"value": NUMBER, "kind": K, "source": TEXT}; K is exact, read
 * (off a plot), external, derived, fitted, assumed, measured or given.  Names
 * of objects are free, names of values are those below; others are refused, and
 * none may be missing. */
#ifndef KV_SERVING_PARAMS_H
#define KV_SERVING_PARAMS_H

#include "lib/base/err.h"
#include "lib/json_file.h"

#include <stddef.h>

struct kv_serving_gpu {
    double fp16_tflops, int8_tops; /* int8_tops 0: none */
    double memory_gbs, memory_gib, nic_gbits;
    double gpus;      /* GPUs in an instance */
    double instances; /* prefill instances; for the type that decodes, decode
                       * instances */
    double nic_share;
};

struct kv_serving_model {
    double parameters, layers, heads, kv_heads, head_dim;
    double longest; /* tokens of a request, in and out */
};

struct kv_serving_parallel {
    double tp, pp;
};

struct kv_serving_dataset {
    double input_mean, input_least, input_most;
    double output_mean, output_least, output_most;
};

struct kv_serving_times;
struct kv_serving_scheme {
    double bits;       /* bits per value; 0 for HACK: computed from the
                        * partition */
    double dequantize; /* dequantizations of the whole context per step */
    double partition;  /* HACK's partition; 0: another scheme */
    double se, rqe;    /* HACK's options: sums are kept; the open block is
                        * fp16 */
    const struct kv_serving_times *times; /* measured; NULL: none */
};

struct kv_serving_settings {
    struct {
        double efficiency, attention, causal, fixed_s, int8_linear, overlap,
            quantize;
    } prefill;
    struct {
        double fixed_s, sink_share, by_instance, pipelined;
    } transfer;
    struct {
        double weights_share, step_s, kv_share, side_by_side, attention_share,
            dequantize, rqe_operations;
    } decode;
    struct {
        double activations, activations_a_token, limit, gate;
    } memory;
    struct {
        double concentration, warm_up, cool_down;
    } requests;
};

/* Reads the file and applies changes such as "decode.kv_share=0.7"; a changed
 * value has kind "given".  Every value is checked, also in objects that are not
 * used.  The caller calls json_decref(). */
json_t *kv_serving_read(const char *path, const char *const *change,
                        size_t n_changes, struct kv_err *e);

/* The next functions read from a tree that kv_serving_read() made.  Each fails
 * on an unknown name, listing the known names. */
int kv_serving_gpu(const json_t *tree, const char *name,
                   struct kv_serving_gpu *g, struct kv_err *e);
int kv_serving_model(const json_t *tree, const char *name,
                     struct kv_serving_model *m, struct kv_err *e);
int kv_serving_dataset(const json_t *tree, const char *name,
                       struct kv_serving_dataset *d, struct kv_err *e);
int kv_serving_scheme(const json_t *tree, const char *name,
                      struct kv_serving_scheme *s, struct kv_err *e);
int kv_serving_parallel(const json_t *tree, const char *gpu, const char *model,
                        struct kv_serving_parallel *p, struct kv_err *e);
void kv_serving_settings(const json_t *tree, struct kv_serving_settings *s);

#endif
