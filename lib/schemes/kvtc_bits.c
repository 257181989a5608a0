/* KVTC's choice of groups, and their quantizers. */
#include "kernels/scaled/minifloat.h"
#include "lib/base/alloc.h"
#include "lib/schemes/kvtc.h"

#include <math.h>
#include <stdlib.h>

/* ---- quantizers -------------------------------------------------------- */

static float float_scale(const uint8_t *head)
{
    return kv_f16_get(head) / kv_e4m3.max;
}

static void encode_floats(const float *x, size_t n, unsigned bits,
                          uint8_t *head, uint16_t *code)
{
    float y[KV_KVTC_MAX_SIZE], min, max;

    (void)bits;
    kv_group_ends(x, n, &min, &max);

    const float shift = kv_f16_put(head + 2, (min + max) / 2 + 0.0f);

    for (size_t i = 0; i < n; i++)
        y[i] = x[i] - shift;
    kv_f16_put(head, kv_group_max_abs(y, n));
    kv_minifloat_encode(&kv_e4m3, y, n, float_scale(head), code);
}

static void decode_floats(const uint16_t *code, size_t n, unsigned bits,
                          const uint8_t *head, float *x)
{
    const float shift = kv_f16_get(head + 2);

    (void)bits;
    kv_minifloat_decode(&kv_e4m3, code, n, float_scale(head), x);
    for (size_t i = 0; i < n; i++)
        x[i] += shift;
}

static const struct kv_group_quantizer floats = {
    .head_bytes = 4, .encode = encode_floats, .decode = decode_floats};

const struct kv_kvtc_type kv_kvtc_types[KV_KVTC_TYPES] = {
    {2, &kv_kivi_quantizer}, {4, &kv_kivi_quantizer}, {8, &floats}};

const size_t kv_kvtc_sizes[KV_KVTC_SIZES] = {1, 16, 64, 256, KV_KVTC_MAX_SIZE};

/* ---- dynamic programming ----------------------------------------------- */

/* The unit of the budget, in bits: every group takes an even number of bits. */
enum { UNIT = 2 };

/* least [i][u]: the least error of the first i steps of components in u units
 * or fewer.  choice: the size and type of the group that ends there; 0: step
 * i - 1 is not coded. */
struct table {
    size_t step;
    size_t units; /* a row of the table has units + 1 entries */
    double *least;
    uint8_t *choice;
};

static void offer(struct table *t, size_t from, size_t size, size_t cost,
                  double error, uint8_t choice)
{
    const size_t line = t->units + 1;
    const size_t end = (from + size) / t->step;
    const double *least = t->least + from / t->step * line;
    double *to = t->least + end * line + cost;
    uint8_t *chosen = t->choice + end * line + cost;

    for (size_t u = 0; u + cost <= t->units; u++)
        if (least[u] + error < to[u]) {
            to[u] = least[u] + error;
            chosen[u] = choice;
        }
}

static double none_of(const struct kv_kvtc_errors *e, size_t first)
{
    double sum = 0;

    for (size_t i = first; i < first + e->step; i++)
        sum += (double)e->none[i];
    return sum;
}

static void kvtc_fill(const struct kv_kvtc_errors *e, struct table *t)
{
    const size_t line = t->units + 1;

    for (size_t i = line; i < (e->row / e->step + 1) * line; i++)
        t->least[i] = (double)INFINITY;
    for (size_t i = 0; i < e->row; i += e->step) {
        offer(t, i, e->step, 0, none_of(e, i), 0);
        for (size_t s = 0; s < KV_KVTC_SIZES; s++)
            for (unsigned k = 0;
                 kv_kvtc_sizes[s] % e->step == 0 &&
                 i + kv_kvtc_sizes[s] <= e->row && k < KV_KVTC_TYPES;
                 k++)
                offer(t, i, kv_kvtc_sizes[s],
                      kv_kvtc_bits(kv_kvtc_sizes[s], k) / UNIT,
                      (double)kv_kvtc_error(e, i, s, k),
                      (uint8_t)(1 + s * KV_KVTC_TYPES + k));
    }
}

/* Follows the choices back from the last component. */
static size_t read_back(const struct table *t, size_t row,
                        struct kv_kvtc_group *group)
{
    size_t n = 0, u = t->units;

    for (size_t i = row; i;) {
        const uint8_t choice = t->choice[i / t->step * (t->units + 1) + u];

        if (!choice) {
            i -= t->step;
            continue;
        }

        const size_t size = kv_kvtc_sizes[(choice - 1u) / KV_KVTC_TYPES];
        const unsigned type = (choice - 1u) % KV_KVTC_TYPES;

        i -= size;
        u -= kv_kvtc_bits(size, type) / UNIT;
        group[n++] =
            (struct kv_kvtc_group){.first = i, .size = size, .type = type};
    }
    for (size_t i = 0; i < n / 2; i++) {
        const struct kv_kvtc_group last = group[n - 1 - i];

        group[n - 1 - i] = group[i];
        group[i] = last;
    }
    return n;
}

size_t kv_kvtc_plan(const struct kv_kvtc_errors *e, size_t budget,
                    struct kv_kvtc_group *group)
{
    struct table t = {.step = e->step, .units = budget / UNIT};
    const size_t lines = e->row / e->step + 1;
    size_t n;

    t.least = kv_alloc(lines * (t.units + 1), sizeof(*t.least));
    t.choice = kv_alloc(lines * (t.units + 1), sizeof(*t.choice));
    kvtc_fill(e, &t);
    n = read_back(&t, e->row, group);
    free(t.choice);
    free(t.least);
    return n;
}
