/* A tensor as a file stores it, read a few values at a time. */
#ifndef KV_WEIGHTS_ROWS_H
#define KV_WEIGHTS_ROWS_H

#include "kernels/type.h"
#include "kernels/weights/packed.h"
#include "kernels/weights/weights.h"

#include <stdbool.h>

struct kv_stored_rows {
    const void *data; /* at any address */
    enum kv_stored type;
    size_t row; /* values of a row, whole blocks */
    /* The number of rows of a head whose halves are interleaved: row i of the
     * first half is stored as row 2 i, of the second half as 2 i + 1.  0: not
     * interleaved. */
    size_t head;
    /* Rows are in runs of `run` rows, the first from row `start` on; each run
     * begins `step` rows after the previous one's beginning.  run 0: all rows
     * form one run. */
    size_t run, step, start;
    /* If not 0, the matrix is stored transposed, with head 0: value j of row i
     * is at j * turned + i. */
    size_t turned;
    float add; /* added to every value */
    /* Not 0: the rows above are heads of `pool_rows` rows, and row i of a head
     * here is the mean of row i of `pool` consecutive heads. */
    size_t pool, pool_rows;
    const struct kv_packed
        *packed; /* used instead of data, type and row; or NULL */
};

/* Reads values [first, first + n), wherever blocks begin and end.  16-bit types
 * round; values beyond f16's range become the largest half. */
void kv_stored_read(const struct kv_stored_rows *rows, size_t first, size_t n,
                    enum kv_type type, void *x);

/* y [m][n], its rows y_row apart, = x [m][row] times the transpose of rows
 * [first, first + n): the sums are kv_stored_times()'s over the values that
 * kv_stored_read() gives in this type, so the same bits for any m and n.  m is
 * at least 1, type f32 or bf16. */
void kv_stored_rows_times(const struct kv_stored_rows *rows, size_t first,
                          size_t n, enum kv_type type, const float *x, size_t m,
                          float *y, size_t y_row);

/* Whether reading the rows as this type only copies bytes. */
bool kv_stored_is(const struct kv_stored_rows *rows, enum kv_type type);

#endif
