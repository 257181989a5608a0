#include "kernels/transform/impl.h"

#include <math.h>
#include <string.h>

/* The states of 64 tokens, in their order. */
static void states(struct kv_transform_place p, const uint8_t *tile,
                   unsigned *state)
{
    const uint8_t *const last = tile + p.line;
    const uint8_t *const before = last - KV_TILE_TOKENS;

    for (size_t t = 0; t < KV_TILE_TOKENS; t++) {
        const size_t at = kv_transform_at(t);

        state[t] = (unsigned)(before[at] << 8 | last[at]) >> p.shift &
                   (KV_TRELLIS_STATES - 1);
    }
}

static void expand(const struct kv_transform_head *h, const uint8_t *tile,
                   size_t tile_bytes, float *y)
{
    float *second = y + (h->n + 1) * KV_TILE_PART;

    (void)tile_bytes;
    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j++) {
            unsigned state[KV_TILE_TOKENS];

            states(h->place[h->run[i].first + j], tile, state);
            for (size_t t = 0; t < KV_TILE_PART; t++) {
                *y++ = h->run[i].table->from[state[t]];
                *second++ = h->run[i].table->from[state[KV_TILE_PART + t]];
            }
        }
    for (size_t t = 0; t < KV_TILE_PART; t++)
        y[t] = second[t] = 1;
}

static void pv(const struct kv_transform_head *h, const uint8_t *tile,
               size_t tile_bytes, const float *p, size_t stride, size_t rows,
               float *acc, size_t row)
{
    float y[(KV_TRANSFORM_MAX + 1) * KV_TILE_TOKENS];

    expand(h, tile, tile_bytes, y);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < 2 * (h->n + 1); i++) {
            const float *by = p + r * stride + i / (h->n + 1) * KV_TILE_PART;

            for (size_t t = 0; t < KV_TILE_PART; t++)
                acc[r * row + i % (h->n + 1)] +=
                    by[t] * y[i * KV_TILE_PART + t];
        }
}

/* code: [n][64] */
static void codes(const struct kv_transform_head *h, const uint8_t *tile,
                  size_t tile_bytes, uint8_t *code)
{
    (void)tile_bytes;
    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j++, code += KV_TILE_TOKENS) {
            const struct kv_transform_table *table = h->run[i].table;
            unsigned state[KV_TILE_TOKENS];

            states(h->place[h->run[i].first + j], tile, state);
            for (size_t t = 0; t < KV_TILE_TOKENS; t++)
                code[t] = table->code[kv_trellis_entry(table->map, state[t])];
        }
}

static void qk8(const uint8_t *code, size_t n, struct kv_transform_query8 q,
                size_t rows, float *score, float *second, size_t stride)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < KV_TILE_TOKENS; t++) {
            float *const to = t < KV_TILE_PART ? score : second;
            int32_t sum = q.bias[r];

            for (size_t j = 0; j < n; j++)
                sum += code[j * KV_TILE_TOKENS + t] *
                       q.code[(j / 4 * rows + r) * 4 + j % 4];
            to[r * stride + t % KV_TILE_PART] =
                fmaf(q.scale[r], (float)sum, q.constant[r]);
        }
}

static void pv8(const uint8_t *code, size_t n, const int8_t *weight,
                const float *scale, size_t rows, float *acc, size_t row)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < n; j++) {
            int32_t sum = 0;

            for (size_t t = 0; t < KV_TILE_TOKENS; t++)
                sum += (code[j * KV_TILE_TOKENS + t] - 128) *
                       weight[r * KV_TILE_TOKENS + t];
            acc[r * row + j] += scale[r] * (float)sum;
        }
}

const struct kv_transform_ops kv_transform_c = {.expand = expand,
                                                .lanes = 1,
                                                .pv = pv,
                                                .codes = codes,
                                                .qk8 = qk8,
                                                .lanes8 = 1,
                                                .pv8 = pv8};
