/* Tables of results: CSV (a header line, RFC 4180 quoting), JSON lines, or a
 * Markdown table.  Cells are always UTF-8 (U+FFFD replaces invalid bytes), and
 * no control character but a line feed goes to a terminal.  A column that was
 * not set in a row is blank (null in JSON).  Reals are written shortest-exact
 * to 9 digits; NaN is blank. */
#ifndef KV_RESULTS_H
#define KV_RESULTS_H

#include "lib/base/err.h"
#include "lib/reading.h"

#include <stddef.h>
#include <stdint.h>

struct kv_results;

/* path NULL: stdout, written row by row, the header with the first of them (or
 * at close).  Otherwise the file appears when closed.  format: "csv", "jsonl"
 * or "md".  columns end with NULL and are kept by pointer. */
int kv_results_open(struct kv_results **r, const char *path, const char *format,
                    const char *const *columns, struct kv_err *e);

/* Set a cell of the row being made.  A column the table lacks is a
 * programming error and aborts. */
void kv_results_text(struct kv_results *r, const char *column,
                     const char *value);
/* A text that may hold zero bytes. */
void kv_results_bytes(struct kv_results *r, const char *column,
                      const char *value, size_t n);
void kv_results_size(struct kv_results *r, const char *column, uint64_t value);
void kv_results_real(struct kv_results *r, const char *column, double value);

/* Ends the row and clears the cells. */
int kv_results_row(struct kv_results *r, struct kv_err *e);

int kv_results_close(struct kv_results *r, struct kv_err *e); /* frees r */
void kv_results_discard(struct kv_results *r);                /* frees r */

/* The conditions every row carries: "tool version spec model model_hash
 * weights text text_hash ctx windows protocol calib_hash calib_text calib_leak
 * device level threads seed bos special gemm".  NULL or 0 (NaN for calib_leak)
 * where it does not apply. */
struct kv_conditions {
    const char *tool, *model, *model_hash, *weights, *text, *text_hash;
    const char *protocol, *device, *level;
    const char *gemm; /* type of the products with weights */
    size_t ctx, windows, threads;
    uint64_t seed;
    struct kv_reading reading; /* of the text */
};

struct kv_calib;

/* Column names of the conditions and of the bits, as a list of literals to
 * start a tool's column list with. */
#define KV_CONDITION_COLUMNS                                                   \
    "tool", "version", "spec", "model", "model_hash", "weights", "text",       \
        "text_hash", "ctx", "windows", "protocol", "calib_hash", "calib_text", \
        "calib_leak", "device", "level", "threads", "seed", "bos", "special",  \
        "gemm"
#define KV_BITS_COLUMNS \
    "bits_nominal", "bits", "bits_quantized", "shared_bytes", "bits_total"

/* calib NULL: the scheme of this row has no calibration. */
void kv_results_conditions(struct kv_results *r, const struct kv_conditions *c,
                           const char *spec, const struct kv_calib *calib,
                           double calib_leak);

/* Storage, measured.  Sums over layers, windows and both sides (or one). */
struct kv_bits {
    double bytes, values;                     /* everything held */
    double quantized_bytes, quantized_values; /* quantized blocks alone */
    double shared_bytes;                      /* calibration tables */
    double nominal; /* the paper's number; NaN: none */
};
void kv_results_bits(struct kv_results *r, const struct kv_bits *b);

#endif
