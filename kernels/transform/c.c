#include "kernels/transform/impl.h"

#include <math.h>
#include <string.h>

/* The states of coefficient j of a run: [64], as tokens stand in a line. */
static void states(const struct kv_transform_head *h,
                   const struct kv_transform_run *run, size_t j,
                   const uint8_t *tile, uint16_t *state)
{
    const struct kv_transform_place p = h->place[run->first + j];
    const uint8_t *const last = tile + p.line;
    const uint8_t *const before = last - KV_TILE_TOKENS;

    for (size_t i = 0; i < KV_TILE_TOKENS; i++)
        state[i] = (uint16_t)((before[i] << 8 | last[i]) >> p.shift) &
                   (KV_TRELLIS_STATES - 1);
}

/* y: value of coefficient j of token t at j * by_coef + t * by_token; the last
 * one is 1. */
static void expand(const struct kv_transform_head *h, const uint8_t *tile,
                   size_t part, size_t by_coef, size_t by_token, float *y)
{
    for (size_t i = 0; i < h->n_runs; i++) {
        const struct kv_transform_run *run = &h->run[i];

        for (size_t j = 0; j < run->n; j++) {
            uint16_t state[KV_TILE_TOKENS];

            states(h, run, j, tile, state);
            for (size_t t = 0; t < KV_TILE_PART; t++)
                y[(run->first + j) * by_coef + t * by_token] =
                    run->table
                        ->from[state[kv_transform_at(part * KV_TILE_PART + t)]];
        }
    }
    for (size_t t = 0; t < KV_TILE_PART; t++)
        y[h->n * by_coef + t * by_token] = 1;
}

static void codes(const struct kv_transform_head *h, const uint8_t *tile,
                  uint8_t *x)
{
    memset(x, 0, h->n4 * KV_TILE_TOKENS);
    for (size_t i = 0; i < h->n_runs; i++) {
        const struct kv_transform_run *run = &h->run[i];

        for (size_t j = 0; j < run->n; j++) {
            uint16_t state[KV_TILE_TOKENS];

            states(h, run, j, tile, state);
            for (size_t t = 0; t < KV_TILE_TOKENS; t++)
                x[kv_transform_code_at(run->first4 + j, t)] =
                    run->table->code[run->table->entry[state[t]]];
        }
    }
}

static void dot8(const struct kv_transform_head *h, const uint8_t *x,
                 struct kv_transform_query8 q, size_t rows, float *score,
                 size_t stride)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < KV_TILE_TOKENS; t++) {
            int32_t sum = q.bias[r];

            for (size_t j = 0; j < h->n4; j++)
                sum += x[kv_transform_code_at(j, kv_transform_at(t))] *
                       q.code[(j / 4 * rows + r) * 4 + j % 4];
            score[r * stride + t] =
                fmaf(q.factor[r], (float)sum, q.constant[r]);
        }
}

static void add8(const struct kv_transform_head *h, const uint8_t *x,
                 const struct kv_transform_weights *w, size_t rows, float *acc,
                 size_t most)
{
    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j++)
            for (size_t r = 0; r < rows; r++) {
                int32_t sum = w->bias[r];

                for (size_t t = 0; t < KV_TILE_TOKENS; t++)
                    sum += x[kv_transform_code_at(h->run[i].first4 + j, t)] *
                           w->code[r][t];
                acc[r * most + h->run[i].first + j] +=
                    w->factor[r] * (float)sum;
            }
}

const struct kv_transform_loops kv_transform_loops_c = {expand, codes, dot8,
                                                        add8};
