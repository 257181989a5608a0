/* Times and bits of a scheme from rows that kvquant and kvattn wrote. */
#ifndef KV_MEASURED_ROWS_H
#define KV_MEASURED_ROWS_H

#include "lib/base/err.h"
#include "lib/results_file.h"
#include "lib/spec.h"

/* Three tables of rows, each optional.
 *
 * quant  kvquant's: bits a value
 * attn   kvattn's: one layer's step of attention, encoding, decoding; bits
 * step   kvattn -m's: what a step of the whole model takes beside attention */
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

/* Fails on a file that is not there, is no table, or has not the columns. */
int kv_measured_open(struct kv_measured *m,
                     const char *const path[KV_MEASURED_TABLES],
                     struct kv_err *e);
void kv_measured_clear(struct kv_measured *m);

/* Where a row was measured: of one layer of this shape, as one GPU sees it, or
 * of a dump of this model; on a device whose name holds this name. */
struct kv_measured_place {
    size_t heads, kv_heads, head_dim;
    const char *model, *device;
};

/* fixed + request n + token t seconds, of n sequences that hold (or take, or
 * give) t tokens together: least squares of relative errors over the rows.  A
 * coefficient that would be negative, or that the rows do not tell, is 0. */
struct kv_measured_law {
    double fixed, request, token;
    size_t rows; /* 0: there is none */
    double off;  /* the largest relative error of a row */
};

/* What rows say of a spec; of several paths the fastest counts.  A law of no
 * rows is left for the caller to miss.  s: as parsed, not fitted. */
struct kv_measured_scheme {
    double bits;                           /* a value; NaN: no row */
    bool bits_quant;                       /* they are kvquant's */
    struct kv_measured_law step;           /* attention of one layer */
    struct kv_measured_law encode, decode; /* of one layer's t tokens */
};
void kv_measured_find(const struct kv_measured *m, const struct kv_spec *s,
                      const struct kv_measured_place *at,
                      struct kv_measured_scheme *found);

/* Seconds of a step beside attention, the median of the model's rows on the
 * device; NaN: no row. */
double kv_measured_rest(const struct kv_measured *m,
                        const struct kv_measured_place *at);

#endif
