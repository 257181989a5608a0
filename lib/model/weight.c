#include "lib/model/weight.h"
#include "kernels/weights/packed.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct kv_stored_rows kv_weight_rows(const struct kv_weight *w)
{
    return (struct kv_stored_rows){
        .data = w->data,
        .type = w->type,
        .row = w->n_dims > 1 ? w->dims[w->n_dims - 1] : 1,
        .head = w->head,
        .run = w->run,
        .step = w->step,
        .start = w->start,
        .turned = w->turned,
        .add = w->add,
        .pool = w->pool,
        .pool_rows = w->pool_rows,
        .packed = w->packed,
    };
}

void kv_weight_dequantize(const struct kv_weight *w, size_t first, size_t n,
                          float *out)
{
    const struct kv_stored_rows rows = kv_weight_rows(w);

    kv_stored_read(&rows, first, n, KV_TYPE_F32, out);
}

/* A value whose exponent bits are all set is NaN or infinite.  Only for such a
 * value does adding the exponent's lowest bit carry into the sign bit. */
static const struct {
    uint64_t exponent, lowest, carry;
} bits[] = {
    [KV_STORED_F32] = {0x7f8000007f800000, 0x0080000000800000,
                       0x8000000080000000},
    [KV_STORED_F16] = {0x7c007c007c007c00, 0x0400040004000400,
                       0x8000800080008000},
    [KV_STORED_BF16] = {0x7f807f807f807f80, 0x0080008000800080,
                        0x8000800080008000},
};

static bool all_finite(const uint8_t *data, size_t bytes, enum kv_stored type)
{
    const uint64_t exponent = bits[type].exponent, lowest = bits[type].lowest;
    uint64_t sum = 0, word;
    size_t i;

    for (i = 0; i + 8 <= bytes; i += 8) {
        memcpy(&word, data + i, 8);
        sum |= (word & exponent) + lowest;
    }
    word = 0;
    memcpy(&word, data + i, bytes - i);
    sum |= (word & exponent) + lowest;
    return !(sum & bits[type].carry);
}

/* Whether values [first, first + n) in stored order, whole blocks, are
 * finite. */
static bool values_finite(const struct kv_weight *w, size_t first, size_t n)
{
    enum { SOME = 1024 };
    const size_t values = kv_stored_values(w->type);
    const size_t bytes = kv_stored_bytes(w->type);
    bool finite = true;
    float x[SOME];

    if (w->type <= KV_STORED_BF16)
        return all_finite(w->data + first * bytes, n * bytes, w->type);
    for (size_t some; n && finite; first += some, n -= some) {
        some = n < SOME ? n : SOME;
        kv_stored_decode(w->type, w->data + first / values * bytes, some, x);
        finite =
            all_finite((const uint8_t *)x, some * sizeof(*x), KV_STORED_F32);
    }
    return finite;
}

/* Whether n rows of a packed matrix are finite. */
static bool rows_finite(const struct kv_packed *p, size_t first, size_t n)
{
    float *x = kv_alloc(n * p->columns, sizeof(*x));
    bool finite;

    kv_packed_decode(p, first, n, x);
    finite = all_finite((const uint8_t *)x, n * p->columns * sizeof(*x),
                        KV_STORED_F32);
    free(x);
    return finite;
}

/* Fails with the place of the first value that is not finite. */
static int name_bad(const struct kv_weight *w, struct kv_err *e)
{
    float x = 0;
    size_t i = 0;

    while (w->packed && rows_finite(w->packed, i / w->packed->columns, 1))
        i += w->packed->columns;
    for (; i < w->n; i++) {
        kv_weight_dequantize(w, i, 1, &x);
        if (!isfinite(x))
            break;
    }
    return kv_fail(e, "%s: tensor %s: value %zu of %zu is %s", w->path, w->name,
                   i, w->n, isnan(x) ? "NaN" : "infinite");
}

static bool piece_finite(const struct kv_weight *w, size_t first, size_t n)
{
    return w->packed ? rows_finite(w->packed, first / w->packed->columns,
                                   n / w->packed->columns)
                     : values_finite(w, first, n);
}

int kv_weight_check(const struct kv_weight *w, struct kv_err *e)
{
    const size_t piece =
        w->packed ? KV_PACKED_ROWS * w->packed->columns : 1 << 16;
    bool finite = true;

#pragma omp parallel for schedule(static) reduction(&& : finite)     if (w->n > 4 * piece)
    for (size_t i = 0; i < w->n; i += piece)
        finite =
            piece_finite(w, i, w->n - i < piece ? w->n - i : piece) && finite;
    return finite ? 0 : name_bad(w, e);
}

/* Gives the system advice about whole pages; the system may ignore it, and
 * failure changes nothing. */
static void advise(const struct kv_weight *w, int advice)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)w->data & ~(page - 1);

    madvise((void *)begin, (uintptr_t)w->data + w->bytes - begin, advice);
}

void kv_weight_will_need(const struct kv_weight *w)
{
    advise(w, MADV_WILLNEED);
}

void kv_weight_release(const struct kv_weight *w)
{
    advise(w, MADV_DONTNEED);
}
