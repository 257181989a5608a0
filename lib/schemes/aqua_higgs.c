/* HIGGS (arXiv 2411.17525) for rows: each run is rotated, divided by its norm,
 * and coded by the nearest points of a grid. */
#include "kernels/bitpack.h"
#include "kernels/hadamard.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/schemes/aqua.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t kv_higgs_run(size_t row, size_t g)
{
    size_t best = 1;

    for (size_t n = 1; n <= g; n *= 2) {
        best = row % n == 0 && n > best ? n : best;
        if (n * KV_AQUA_PALEY <= g && row % (n * KV_AQUA_PALEY) == 0)
            best = n * KV_AQUA_PALEY > best ? n * KV_AQUA_PALEY : best;
    }
    return best;
}

/* Paley's Hadamard matrix of order 12, not normalized.  Its first row has ones,
 * and its first column has minus ones below; all other entries are Legendre
 * symbols modulo 11, with ones on the diagonal. */
static float paley(size_t i, size_t j)
{
    static const int squares = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 9;

    if (!i)
        return 1;
    if (!j)
        return -1;
    return i == j || squares >> (j + 11 - i) % 11 & 1 ? 1 : -1;
}

/* x [12][n] becomes P x / sqrt(12); with back, P^T x / sqrt(12). */
static void turn_by_paley(float *x, size_t n, bool back)
{
    for (size_t k = 0; k < n; k++) {
        float y[KV_AQUA_PALEY] = {0};

        for (size_t i = 0; i < KV_AQUA_PALEY; i++)
            for (size_t j = 0; j < KV_AQUA_PALEY; j++)
                y[i] += (back ? paley(j, i) : paley(i, j)) * x[j * n + k];
        for (size_t i = 0; i < KV_AQUA_PALEY; i++)
            x[i * n + k] = y[i] / sqrtf(KV_AQUA_PALEY);
    }
}

static void turn_run(const struct kv_higgs *h, float *x, bool back)
{
    if (kv_hadamard_size(h->run) == h->run) {
        kv_hadamard(x, 1, h->run);
        return;
    }
    kv_hadamard(x, KV_AQUA_PALEY, h->run / KV_AQUA_PALEY);
    turn_by_paley(x, h->run / KV_AQUA_PALEY, back);
}

void kv_higgs_init(struct kv_higgs *h, size_t row, size_t run, size_t d,
                   unsigned bits, const float *points)
{
    *h = (struct kv_higgs){
        .row = row, .run = run, .d = d, .bits = bits, .points = points};
    h->code_bytes = kv_pack_bytes(row / d, bits);
    h->bytes = h->code_bytes + row / run * sizeof(uint16_t);
    kv_centroids_init(&h->centroids, points, (size_t)1 << bits, d);
}

void kv_higgs_clear(struct kv_higgs *h)
{
    kv_centroids_clear(&h->centroids);
}

/* Returns |x| / sqrt(n). */
static float size_of(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)sqrt(sum / (double)n);
}

void kv_higgs_encode(const struct kv_higgs *h, const float *x, uint8_t *bytes)
{
    float *y = kv_alloc(h->row, sizeof(*y));
    uint16_t *code = kv_alloc(h->row / h->d, sizeof(*code));

    memcpy(y, x, h->row * sizeof(*y));
    for (size_t r = 0; r < h->row / h->run; r++) {
        float *run = y + r * h->run;
        const float size =
            kv_f16_put(bytes + h->code_bytes + 2 * r, size_of(run, h->run));

        turn_run(h, run, false);
        for (size_t i = 0; i < h->run; i++)
            run[i] = size > 0 ? run[i] / size : 0;
    }
    kv_nearest(&h->centroids, y, h->row / h->d, code);
    kv_pack(code, h->row / h->d, h->bits, bytes);
    free(code);
    free(y);
}

void kv_higgs_decode(const struct kv_higgs *h, const uint8_t *bytes, float *x)
{
    uint16_t *code = kv_alloc(h->row / h->d, sizeof(*code));

    kv_unpack(bytes, h->row / h->d, h->bits, code);
    for (size_t i = 0; i < h->row; i++)
        x[i] = kv_f16_get(bytes + h->code_bytes + 2 * (i / h->run)) *
               h->points[code[i / h->d] * h->d + i % h->d];
    for (size_t r = 0; r < h->row / h->run; r++)
        turn_run(h, x + r * h->run, true);
    free(code);
}
