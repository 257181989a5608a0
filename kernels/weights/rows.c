#include "kernels/weights/rows.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BLOCK = 256 };

/* Reads values that are stored consecutively. */
static void read_stored(const struct kv_stored_rows *rows, size_t first,
                        size_t n, float *x)
{
    const size_t values = kv_stored_values(rows->type);
    const uint8_t *block = (const uint8_t *)rows->data +
                           first / values * kv_stored_bytes(rows->type);
    float part[MAX_BLOCK];

    for (size_t skip = first % values, done; n; skip = 0) {
        if (skip || n < values) {
            done = values - skip < n ? values - skip : n;
            kv_stored_decode(rows->type, block, values, part);
            memcpy(x, part + skip, done * sizeof(*x));
            block += kv_stored_bytes(rows->type);
        } else {
            done = n - n % values;
            kv_stored_decode(rows->type, block, done, x);
            block += done / values * kv_stored_bytes(rows->type);
        }
        x += done;
        n -= done;
    }
}

/* read_stored() for a packed matrix. */
static void read_packed(const struct kv_packed *p, size_t first, size_t n,
                        float *x)
{
    float *row = kv_alloc(p->columns, sizeof(*row));

    for (size_t some; n; first += some, n -= some, x += some) {
        const size_t skip = first % p->columns, rest = p->columns - skip;

        if (!skip && n >= p->columns) {
            some = n - n % p->columns;
            kv_packed_decode(p, first / p->columns, n / p->columns, x);
            continue;
        }
        some = rest < n ? rest : n;
        kv_packed_decode(p, first / p->columns, 1, row);
        memcpy(x, row + skip, some * sizeof(*x));
    }
    free(row);
}

/* The stored index of a head's row i. */
static size_t in_head(const struct kv_stored_rows *rows, size_t i)
{
    const size_t half = rows->head / 2;

    return 2 * (i % half) + (i >= half);
}

/* The stored index of row i. */
static size_t place(const struct kv_stored_rows *rows, size_t i)
{
    if (rows->head)
        i = i - i % rows->head + in_head(rows, i % rows->head);
    return rows->run ? rows->start + i / rows->run * rows->step + i % rows->run
                     : i;
}

/* Reads values [from, from + n) of `some` rows from row i on into x [some][n];
 * in a transposed matrix these rows' values of one column are near each
 * other. */
static void read_block(const struct kv_stored_rows *rows, size_t i, size_t some,
                       size_t from, size_t n, float *x)
{
    const size_t first = place(rows, i);
    const size_t end = place(rows, i + some - 1) + 1;
    float side[MAX_BLOCK];

    for (size_t j = 0; j < n; j++) {
        read_stored(rows, (from + j) * rows->turned + first, end - first, side);
        for (size_t r = 0; r < some; r++)
            x[r * n + j] = side[place(rows, i + r) - first];
    }
}

static void read_turned(const struct kv_stored_rows *rows, size_t first,
                        size_t n, float *x)
{
    const size_t runs = rows->run ? MAX_BLOCK / rows->step : 1;
    const size_t most = rows->run ? runs * rows->run : MAX_BLOCK;

    for (size_t done; n; first += done, n -= done, x += done) {
        const size_t at = first % rows->row, rest = rows->row - at;
        const size_t whole = at ? 0 : n / rows->row;
        const size_t some = whole < most ? whole : most;
        const size_t part = rest < n ? rest : n;

        done = some ? some * rows->row : part;
        read_block(rows, first / rows->row, some ? some : 1, at,
                   some ? rows->row : part, x);
    }
}

/* Reads values of rows that are stored in order. */
static void read_in_place(const struct kv_stored_rows *rows, size_t first,
                          size_t n, float *x)
{
    if (rows->packed)
        read_packed(rows->packed, first, n, x);
    else
        read_stored(rows, first, n, x);
}

static void read_single(const struct kv_stored_rows *rows, size_t first,
                        size_t n, float *x)
{
    const bool moved = !rows->turned && (rows->head || rows->run);

    if (rows->turned)
        read_turned(rows, first, n, x);
    else if (!moved)
        read_in_place(rows, first, n, x);
    for (size_t done = 0, some; moved && done < n; done += some) {
        const size_t at = (first + done) % rows->row;
        const size_t row = place(rows, (first + done) / rows->row);

        some = rows->row - at < n - done ? rows->row - at : n - done;
        read_in_place(rows, row * rows->row + at, some, x + done);
    }
    for (size_t i = 0; rows->add != 0 && i < n; i++)
        x[i] += rows->add;
}

static size_t columns_of(const struct kv_stored_rows *rows)
{
    return rows->packed ? rows->packed->columns : rows->row;
}

static void read_pooled(const struct kv_stored_rows *rows, size_t first,
                        size_t n, float *x)
{
    const size_t columns = columns_of(rows), d = rows->pool_rows;
    float *part = kv_alloc(columns, sizeof(*part));
    double *sum = kv_alloc(columns, sizeof(*sum));

    for (size_t some; n; first += some, n -= some, x += some) {
        const size_t i = first / columns, skip = first % columns;
        const size_t from = i / d * rows->pool * d + i % d;

        some = columns - skip < n ? columns - skip : n;
        memset(sum, 0, some * sizeof(*sum));
        for (size_t h = 0; h < rows->pool; h++) {
            read_single(rows, (from + h * d) * columns + skip, some, part);
            for (size_t j = 0; j < some; j++)
                sum[j] += (double)part[j];
        }
        for (size_t j = 0; j < some; j++)
            x[j] = (float)(sum[j] / (double)rows->pool);
    }
    free(sum);
    free(part);
}

static void read_floats(const struct kv_stored_rows *rows, size_t first,
                        size_t n, float *x)
{
    (rows->pool ? read_pooled : read_single)(rows, first, n, x);
}

bool kv_stored_is(const struct kv_stored_rows *rows, enum kv_type type)
{
    static const enum kv_stored same[] = {
        [KV_TYPE_F16] = KV_STORED_F16,
        [KV_TYPE_BF16] = KV_STORED_BF16,
        [KV_TYPE_F32] = KV_STORED_F32,
    };

    return !rows->packed && rows->type == same[type] && !rows->head &&
           !rows->run && !rows->turned && rows->add == 0 && !rows->pool;
}

void kv_stored_read(const struct kv_stored_rows *rows, size_t first, size_t n,
                    enum kv_type type, void *x)
{
    const size_t bytes = kv_type_bytes(type);
    const size_t piece = rows->packed ? KV_PACKED_ROWS * columns_of(rows)
                         : rows->pool ? columns_of(rows)
                                      : MAX_BLOCK;
    float *part;
    uint16_t *to = x;

    if (kv_stored_is(rows, type)) {
        memcpy(x, (const uint8_t *)rows->data + first * bytes, n * bytes);
        return;
    }
    if (type == KV_TYPE_F32) {
        read_floats(rows, first, n, x);
        return;
    }
    part = kv_alloc(piece, sizeof(*part));
    for (size_t done = 0, some; done < n; done += some) {
        some = n - done < piece ? n - done : piece;
        read_floats(rows, first + done, some, part);
        for (size_t i = 0; i < some; i++)
            to[done + i] = type == KV_TYPE_F16 ? kv_f16_clamp(part[i])
                                               : kv_f32_to_bf16(part[i]);
    }
    free(part);
}

/* ---- products ------------------------------------------------------------ */

/* Whether a stored row already has values of this type. */
static bool is_direct(const struct kv_stored_rows *rows, enum kv_type type)
{
    return !rows->packed && !rows->turned && rows->add == 0 && !rows->pool &&
           (type == KV_TYPE_F32 || rows->type == KV_STORED_BF16);
}

/* Multiplies rows, a run of consecutively stored ones at a time. */
static void times_stored(const struct kv_stored_rows *rows, size_t first,
                         size_t n, const float *x, size_t m, float *y,
                         size_t y_row)
{
    const size_t bytes =
        rows->row / kv_stored_values(rows->type) * kv_stored_bytes(rows->type);

    for (size_t i = 0, some; i < n; i += some) {
        const size_t at = place(rows, first + i);

        some = 1;
        while (i + some < n && place(rows, first + i + some) == at + some)
            some++;
        kv_stored_times(rows->type, (const uint8_t *)rows->data + at * bytes,
                        some, rows->row, x, m, y + i, y_row);
    }
}

static void round_bf16(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = kv_bf16_to_f32(kv_f32_to_bf16(x[i]));
}

void kv_stored_rows_times(const struct kv_stored_rows *rows, size_t first,
                          size_t n, enum kv_type type, const float *x, size_t m,
                          float *y, size_t y_row)
{
    enum { ROWS = KV_PACKED_ROWS };
    const size_t row = columns_of(rows);
    float *panel;

    /* rows that lie apart, each alone, would read all x again */
    if (is_direct(rows, type) &&
        (m == 1 || (!rows->head && (!rows->run || rows->run >= ROWS)))) {
        times_stored(rows, first, n, x, m, y, y_row);
        return;
    }
    panel = kv_alloc(ROWS * row, sizeof(*panel));
    for (size_t i = 0; i < n; i += ROWS) {
        const size_t some = n - i < ROWS ? n - i : ROWS;

        read_floats(rows, (first + i) * row, some * row, panel);
        if (type == KV_TYPE_BF16)
            round_bf16(panel, some * row);
        kv_stored_times(KV_STORED_F32, panel, some, row, x, m, y + i, y_row);
    }
    free(panel);
}
