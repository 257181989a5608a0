/* The loops of tiles.h compiled for one instruction set; only for the files of
 * this folder and the tests.
 *
 * q: [head_dim][rows].  Keys of a part: [head_dim][32]; values: [n][padded].
 * acc: [rows][padded]. */
#ifndef KV_TILES_IMPL_H
#define KV_TILES_IMPL_H

#include "kernels/rope.h"
#include "kernels/simd/common.h"
#include "kernels/tiles/tiles.h"
#include "lib/base/alloc.h"

#include <stdbool.h>
#include <string.h>

enum { KV_ROPE_DIGITS = 4 };

struct kv_tile_loops {
    /* Writes score [rows][32 parts], stride apart, of 1 or 2 parts.  ahead:
     * prefetches the memory after k. */
    void (*dot)(enum kv_float kind, bool ahead, const void *k, size_t parts,
                size_t head_dim, const float *q, size_t rows, float *score,
                size_t stride);
    /* Adds p v over n tokens to acc; ahead: prefetches the memory after v. */
    void (*add)(enum kv_float kind, bool ahead, const void *v, size_t n,
                size_t padded, const float *p, size_t stride, size_t rows,
                float *acc);
    /* Rows of n, a multiple of 16, stride apart: row r becomes exp(x -
     * shift[r]), x at most shift[r], and sum[r] their sum.  Relative error
     * below 2e-7 + 8e-8 (shift[r] - x); results below exp(-87) become exp(-87);
     * NaN stays NaN. */
    void (*exp)(float *x, size_t stride, size_t rows, size_t n,
                const float *shift, float *sum);
    /* The largest value of each row, n > 0. */
    void (*max)(const float *x, size_t stride, size_t rows, size_t n,
                float *max);
    /* For int8 paths: code = x * (127 / max|x|) of its row to the nearest
     * integer, half to even, and scale[r] = max|x| / 127; if max|x| is below
     * 2^-93, scale[r] and the codes are 0.  Every level gives the same
     * codes. */
    void (*round8)(const float *x, size_t stride, size_t rows, size_t n,
                   int8_t *code, size_t code_stride, float *scale);
    /* Sets out [rows][n] to x[r][i] * by[i]. */
    void (*mul)(const float *x, size_t stride, size_t rows, size_t n,
                const float *by, float *out);
    /* RoPE.  Computes cosines and sines [n_rot] of angles that are sums of
     * KV_ROPE_DIGITS angles; each digit: [2][n_rot], the cosines and sines of
     * such an angle.
     */
    void (*rope_first)(const double *const digit[KV_ROPE_DIGITS], size_t n_rot,
                       float *cosine, float *sine);
    /* cosine, sine: [pairs.n], of the first token's angles; within:
     * [pairs.n][2][32], of the angles from the first token on.  x: [head_dim]
     * [32]. */
    void (*rope_rotate)(const float *cosine, const float *sine,
                        const float *within, struct kv_rope_pairs pairs,
                        float *x);
};

/* The units of four rows, for codes up to `limit` in magnitude.  max[r], the
 * row's largest magnitude, becomes max / limit, and by[r] becomes limit / max;
 * both are 0 if max is below `tiny`.  Four divisions take as long as one. */
ALWAYS_INLINE void kv_units_of_four(float limit, float tiny, float max[4],
                                    float by[4])
{
    const vf32x4 m = v4_load(max), zero = {0};
    const vi32x4 some = m >= (vf32x4){tiny, tiny, tiny, tiny};

    v4_store(by, v4_select(some, limit / m, zero));
    v4_store(max, v4_select(some, m / limit, zero));
}

/* Computes the units of round8(). */
ALWAYS_INLINE void kv_units8_of_four(float max[4], float by[4])
{
    kv_units_of_four(127, 0x1p-93f, max, by);
}

extern const struct kv_tile_loops kv_tile_loops_c;
extern const struct kv_tile_loops kv_tile_loops_avx2;   /* x86-64 only */
extern const struct kv_tile_loops kv_tile_loops_avx512; /* x86-64 only */

/* The loops of the level in use. */
const struct kv_tile_loops *kv_tile_loops(void);

/* Exact operations of every family (by expand()) that take up to KV_TILE_MANY
 * rows: matrix products. */
enum { KV_TILE_MANY = 512 };
extern const struct kv_tile_ops kv_tiles_many;

/* Exact operations by expand(); a query is [head_dim][rows]. */
size_t kv_exact_query_bytes(const struct kv_store *s);
void kv_exact_prepare(const struct kv_store *s, size_t head, const float *q,
                      size_t rows, void *query);
void kv_exact_qk(const struct kv_store *s, size_t head, const uint8_t *tile,
                 const void *query, size_t rows, float *score, size_t stride);
size_t kv_exact_acc_floats(const struct kv_store *s);
void kv_exact_pv(const struct kv_store *s, size_t head, const uint8_t *tile,
                 const float *p, size_t stride, size_t rows, float *acc);
void kv_exact_finish(const struct kv_store *s, size_t head, const float *acc,
                     size_t rows, float *out);

#endif
