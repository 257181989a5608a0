/* The columns that tables of several tools share: the conditions of a row and
 * the bits of its cache.  Columns of one tool alone are in the tool's list. */
#ifndef KV_COLUMNS_H
#define KV_COLUMNS_H

#include "lib/reading.h"
#include "lib/results.h"
#include "lib/spec.h"

#include <stddef.h>
#include <stdint.h>

/* The conditions every row carries: "tool version spec scheme model model_hash
 * weights text text_hash ctx windows protocol calib_hash calib_text calib_leak
 * device level threads seed bos special gemm".  NULL or 0 (NaN for calib_leak)
 * marks a condition that does not apply. */
struct kv_conditions {
    const char *tool, *model, *model_hash, *weights, *text, *text_hash;
    const char *protocol, *device, *level;
    const char *gemm; /* number type of matrix products with weights */
    size_t ctx, windows, threads;
    uint64_t seed;
    struct kv_reading reading; /* of the text */
};

struct kv_calib;

/* Column names of the conditions and of the bits, as a list of literals to
 * start a tool's column list with. */
#define KV_CONDITION_COLUMNS                                               \
    "tool", "version", "spec", "scheme", "model", "model_hash", "weights", \
        "text", "text_hash", "ctx", "windows", "protocol", "calib_hash",   \
        "calib_text", "calib_leak", "device", "level", "threads", "seed",  \
        "bos", "special", "gemm"
#define KV_BITS_COLUMNS                                                     \
    "bits_nominal", "bits", "bits_quantized", "shared_bytes", "bits_total", \
        "clipped", "bits_declared"

/* The conditions that tell rows apart; the spec, which differs most often,
 * first. */
#define KV_CONDITION_KEYS                                            \
    "spec", "model_hash", "text_hash", "ctx", "windows", "protocol", \
        "weights", "calib_hash", "device", "seed", "bos", "special", "gemm"

/* Sets the cells of the conditions and of the spec's parameters.  The column
 * scheme is the scheme's name, or "K-q8_0/V-q4_0" for two schemes.  calib NULL:
 * the row's scheme has no calibration. */
void kv_results_conditions(struct kv_results *r, const struct kv_conditions *c,
                           const struct kv_spec *spec,
                           const struct kv_calib *calib, double calib_leak);

struct kv_bits;
void kv_results_bits(struct kv_results *r, const struct kv_bits *b);

#endif
