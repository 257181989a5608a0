/* Path int8 in plain C, the definition of the sums; and tables.h. */
#include "kernels/simd/c.h"

#include "kernels/codebook/tables.h"

enum { PART = KV_TILE_PART };

/* Writes the entries of one sub-space for 32 tokens to x [d][64]. */
ALWAYS_INLINE void sub_entries(const uint8_t *table, size_t width, size_t d,
                               const uint16_t *code, size_t four, size_t one,
                               uint8_t *x)
{
    for (size_t t = 0; t < PART; t++) {
        const uint8_t *entry = table + code[t / 4 * four + t % 4 * one] * width;

        for (size_t j = 0; j < d; j++)
            x[j * T + t] = entry[j];
    }
}

/* The rounded entries of a tile: x [head_dim][64]. */
static void entries(const struct kv_store *s, size_t head, const uint8_t *tile,
                    uint8_t *x)
{
    const struct kv_codebook *b = s->params;
    uint16_t code[KV_CODEBOOK_DIM * PART];

    for (size_t part = 0; part < T / PART; part++) {
        const struct kv_codebook_part p =
            kv_store_get_codes(s, tile, part, code);

        for (size_t i = 0; i < b->n_sub; i++) {
            const uint8_t *table =
                b->entry + kv_codebook_at(b, head, i) * b->k * b->width;
            const uint16_t *from = code + kv_codebook_in_part(p, i, 0);
            uint8_t *to = x + i * b->d * T + part * PART;

            /* the usual d as compile-time constants */
            if (b->d == 2)
                sub_entries(table, 4, 2, from, p.four, p.one, to);
            else if (b->d == 4)
                sub_entries(table, 4, 4, from, p.four, p.one, to);
            else if (b->d == 8)
                sub_entries(table, 8, 8, from, p.four, p.one, to);
            else
                sub_entries(table, b->width, b->d, from, p.four, p.one, to);
        }
    }
}

typedef uint8_t bytes __attribute__((vector_size(8)));
typedef int16_t products __attribute__((vector_size(16)));
typedef int32_t sums __attribute__((vector_size(32)));

enum { SIDE = 4 }; /* vectors processed together */

void kv_codebook_qk_c(const struct kv_store *s, size_t head,
                      const uint8_t *tile, const void *query, size_t rows,
                      float *score, size_t stride)
{
    const struct kv_codebook_q8 *q = query;
    uint8_t x[KV_CODEBOOK_DIM * T];

    entries(s, head, tile, x);
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < T; t += SIDE * sizeof(bytes)) {
            int32_t out[SIDE * sizeof(bytes)];
            sums sum[SIDE] = {0};

            for (size_t c = 0; c < s->head_dim; c++)
                for (size_t i = 0; i < SIDE; i++) {
                    bytes k8;

                    memcpy(&k8, x + c * T + t + i * sizeof(k8), sizeof(k8));
                    /* 255 * 127 fits 16 bits */
                    sum[i] += __builtin_convertvector(
                        __builtin_convertvector(k8, products) * q->plain[r][c],
                        sums);
                }
            memcpy(out, sum, sizeof(out));
            for (size_t i = 0; i < SIDE * sizeof(bytes); i++)
                score[r * stride + t + i] =
                    q->scale[r] * (float)(q->start[r] + out[i]);
        }
}

void kv_codebook_pv_c(const struct kv_store *s, size_t head,
                      const uint8_t *tile, const float *p, size_t stride,
                      size_t rows, float *acc)
{
    const struct kv_codebook *b = s->params;
    const size_t n = kv_codebook_sums(s);
    uint8_t x[KV_CODEBOOK_DIM * T];

    entries(s, head, tile, x);
    for (size_t r = 0; r < rows; r++) {
        int8_t p8[T];
        float scale;

        kv_tile_loops_c.round8(p + r * stride, T, 1, T, p8, T, &scale);
        for (size_t i = 0; i < b->n_sub; i++)
            for (size_t j = 0; j < b->d; j++) {
                const int8_t *v8 = (const int8_t *)x + (i * b->d + j) * T;
                int32_t sum = 0;

                for (size_t t = 0; t < T; t++)
                    sum += p8[t] * v8[t];

                float *to = acc + r * n + b->sum_at[i * b->d + j];

                *to = fmaf(scale, (float)sum, *to);
            }
    }
}
