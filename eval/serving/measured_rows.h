/* Times and bits of a scheme from rows that kvquant and kvattn wrote. */
#ifndef KV_MEASURED_ROWS_H
#define KV_MEASURED_ROWS_H

#include "lib/base/err.h"
#include "lib/results_file.h"
#include "lib/spec.h"

/* The three tables of rows; each is optional.
 *
 * quant  kvquant's: bits a value
 * attn   kvattn's: one layer's step of attention, encoding, decoding; bits
 * step   kvattn -m's: the time of a whole model's step without attention */
enum kv_measured_table {
    KV_MEASURED_QUANT,
    KV_MEASURED_ATTN,
    KV_MEASURED_STEP,
    KV_MEASURED_TABLES
};

struct kv_measured {
    const char *path[KV_MEASURED_TABLES]; /* NULL: none */
    struct kv_results_file rows[KV_MEASURED_TABLES];
};

/* Fails if a file is missing, is no table, or lacks the columns. */
int kv_measured_open(struct kv_measured *m,
                     const char *const path[KV_MEASURED_TABLES],
                     struct kv_err *e);
void kv_measured_clear(struct kv_measured *m);

/* Selects rows that were measured on one layer of this shape (one GPU's heads)
 * or on a dump of this model, on a device whose name contains `device`. */
struct kv_measured_place {
    size_t heads, kv_heads, head_dim;
    const char *model, *device;
};

/* A fitted time, fixed + request n + token t seconds, for n sequences with t
 * tokens together (in the cache, encoded or decoded).  The fit is least squares
 * of relative errors over the rows.  A coefficient that would be negative, or
 * that the rows do not determine, is 0. */
struct kv_measured_law {
    double fixed, request, token;
    size_t rows; /* number of rows; 0: no fit */
    double off;  /* the largest relative error of a row */
};

/* Collects the times and bits of a spec from the rows; among several paths the
 * fastest counts.  If a kind of time has no rows, the caller decides.  s:
 * parsed, not fitted. */
struct kv_measured_scheme {
    double bits;                           /* a value; NaN: no row */
    bool bits_quant;                       /* bits come from kvquant's rows */
    struct kv_measured_law step;           /* attention of one layer */
    struct kv_measured_law encode, decode; /* encoding, decoding one layer's t
                                            * tokens */
};
void kv_measured_find(const struct kv_measured *m, const struct kv_spec *s,
                      const struct kv_measured_place *at,
                      struct kv_measured_scheme *found);

/* Seconds of a decode step without attention: the median of the model's rows on
 * the device; NaN: no row. */
double kv_measured_rest(const struct kv_measured *m,
                        const struct kv_measured_place *at);

#endif
