#include "kernels/tiles/rope.h"
#include "kernels/tiles/impl.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A position has digits to base 64: three of them have tables, and the fourth
 * is the quotient by 64^3. */
enum { BASE = 64, TABLED = KV_ROPE_DIGITS - 1, TOP = BASE * BASE * BASE };

struct kv_tiles_rope {
    size_t half;
    struct kv_rope_pairs pairs;
    float *inv_freq;
    double *digit[TABLED]; /* [64][2][pairs]: cosines, sines of its angle */
    float *within;         /* [pairs][2][32]: of positions 0 to 31 */
};

/* to: [2][pairs], cosines and sines. */
static void angles(const struct kv_tiles_rope *r, size_t position, double *to)
{
    for (size_t i = 0; i < r->pairs.n; i++)
        /* exact: a position has at most 29 bits, a frequency 24 */
        sincos((double)position * (double)r->inv_freq[i], &to[r->pairs.n + i],
               &to[i]);
}

struct kv_tiles_rope *kv_tiles_rope_new(size_t head_dim,
                                        struct kv_rope_pairs pairs,
                                        const float *inv_freq)
{
    struct kv_tiles_rope *r = kv_alloc(1, sizeof(*r));
    const size_t n_rot = pairs.n, row = 2 * n_rot;

    r->half = head_dim / 2;
    r->pairs = pairs;
    r->inv_freq = kv_alloc(n_rot, sizeof(*r->inv_freq));
    r->within = kv_lines(n_rot, 2 * KV_TILE_PART * sizeof(*r->within));
    if (n_rot)
        memcpy(r->inv_freq, inv_freq, n_rot * sizeof(*inv_freq));
    for (size_t d = 0, weight = 1; d < TABLED; d++, weight *= BASE) {
        r->digit[d] = kv_lines(BASE * row, sizeof(double));
        for (size_t i = 0; i < BASE; i++)
            angles(r, i * weight, r->digit[d] + i * row);
    }
    for (size_t t = 0; t < KV_TILE_PART; t++)
        for (size_t i = 0; i < row; i++)
            r->within[(i % n_rot * 2 + i / n_rot) * KV_TILE_PART + t] =
                (float)r->digit[0][t * row + i];
    return r;
}

void kv_tiles_rope_free(struct kv_tiles_rope *r)
{
    if (!r)
        return;
    for (size_t d = 0; d < TABLED; d++)
        free(r->digit[d]);
    free(r->within);
    free(r->inv_freq);
    free(r);
}

void kv_tiles_rope_angles(const struct kv_tiles_rope *r, size_t position,
                          float *to)
{
    double angle[2 * KV_ROPE_MAX];

    angles(r, position, angle);
    for (size_t i = 0; i < r->half; i++) {
        to[2 * i] = i < r->pairs.n ? (float)angle[i] : 1;
        to[2 * i + 1] = i < r->pairs.n ? (float)angle[r->pairs.n + i] : 0;
    }
}

size_t kv_tiles_rope_pairs(const struct kv_tiles_rope *r)
{
    return r->pairs.n;
}

bool kv_tiles_rope_halves(const struct kv_tiles_rope *r)
{
    return !r->pairs.n || (r->pairs.step == 1 && r->pairs.apart == r->half);
}

const float *kv_tiles_rope_within(const struct kv_tiles_rope *r)
{
    return r->within;
}

void kv_tiles_rope_first(const struct kv_tiles_rope *r, size_t first,
                         float *cosine, float *sine)
{
    const double *digit[KV_ROPE_DIGITS];
    double top[2 * KV_ROPE_MAX];

    for (size_t d = 0, p = first; d < TABLED; d++, p /= BASE)
        digit[d] = r->digit[d] + p % BASE * 2 * r->pairs.n;
    digit[TABLED] = r->digit[0]; /* rotates by 0 */
    if (first >= TOP) {
        angles(r, first / TOP * TOP, top);
        digit[TABLED] = top;
    }
    kv_tile_loops()->rope_first(digit, r->pairs.n, cosine, sine);
}

void kv_tiles_rope_rotate(const struct kv_tiles_rope *r, size_t first, float *x)
{
    float cosine[KV_ROPE_MAX], sine[KV_ROPE_MAX];

    kv_tiles_rope_first(r, first, cosine, sine);
    kv_tile_loops()->rope_rotate(cosine, sine, r->within, r->pairs, x);
}
