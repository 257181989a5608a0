#include "tests/ops/tile_ops.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>

enum { T = KV_TILE_TOKENS, HEAD = 1 };

/* A row of zeros; weights too small for 8 bits, and in them halfway between
 * two. */
enum { ZEROS = 5 };

static float weight(size_t r, size_t i)
{
    const float x = kv_random_unit(9, i);

    return r == ZEROS   ? 0
           : r % 4 == 2 ? ldexpf(x, -94)
           : r % 4 == 3 ? floorf(254 * x) / 256
                        : powf(x, 4);
}

struct tile_input *tile_input_new(bool stored, const struct kv_store *s,
                                  size_t rows, void *owner)
{
    struct tile_input *in = kv_alloc(1, sizeof(*in));

    *in = (struct tile_input){.rows = rows, .owner = owner};
    if (!stored)
        return in;
    in->s = *s;
    in->tiles = kv_store_tiles(s);
    in->q = kv_alloc(rows, s->head_dim * sizeof(*in->q));
    in->p = kv_alloc(rows, in->tiles * T * sizeof(*in->p));
    for (size_t i = 0; i < rows * s->head_dim; i++)
        in->q[i] = i / s->head_dim == ZEROS ? 0 : (float)kv_random_normal(8, i);
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < s->n; t++)
            in->p[r * in->tiles * T + t] = weight(r, r * s->n + t);
    return in;
}

void tile_input_free(struct tile_input *in)
{
    free(in->q);
    free(in->p);
    free(in);
}

size_t tile_expand(const void *input, void *out)
{
    const struct tile_input *in = input;
    const struct kv_store *s = &in->s;
    const size_t n =
        KV_TILE_PART * (s->values ? kv_padded(s->head_dim) : s->head_dim);
    float *to = out;

    for (size_t i = 0; i < 2 * in->tiles; i++, to += n)
        s->family->expand(s, HEAD, kv_store_tile(s, HEAD, i / 2), i % 2, to);
    return in->tiles ? (size_t)((char *)to - (char *)out) : CHECK_NONE;
}

static size_t run_qk(const struct tile_input *in, enum kv_path path,
                     bool together, float *out)
{
    const struct kv_store *s = &in->s;
    const struct kv_tile_ops *ops = in->tiles ? s->family->ops(s, path) : NULL;
    const size_t stride = in->tiles * T;
    void *query;

    if (!ops || s->values)
        return CHECK_NONE;
    together = together && ops->qk_tiles;
    query = kv_lines_unset(ops->query_bytes(s), 1);
    ops->prepare(s, HEAD, in->q, in->rows, query);
    if (together)
        ops->qk_tiles(s, HEAD, kv_store_tile(s, HEAD, 0), in->tiles, query,
                      in->rows, out, stride);
    for (size_t i = 0; i < in->tiles && !together; i++)
        ops->qk(s, HEAD, kv_store_tile(s, HEAD, i), query, in->rows,
                out + i * T, stride);
    for (size_t r = 0; r < in->rows; r++) /* past the end: anything */
        for (size_t t = kv_min(s->n, stride); t < stride; t++)
            out[r * stride + t] = 0;
    free(query);
    return in->rows * stride * sizeof(*out);
}

static size_t run_pv(const struct tile_input *in, enum kv_path path,
                     bool together, float *out)
{
    const struct kv_store *s = &in->s;
    const struct kv_tile_ops *ops = in->tiles ? s->family->ops(s, path) : NULL;
    const size_t stride = in->tiles * T;
    float *acc;

    if (!ops || !s->values)
        return CHECK_NONE;
    together = together && ops->pv_tiles;
    acc = kv_lines(in->rows, ops->acc_floats(s) * sizeof(*acc));
    if (together)
        ops->pv_tiles(s, HEAD, kv_store_tile(s, HEAD, 0), in->tiles, in->p,
                      stride, in->rows, acc);
    for (size_t i = 0; i < in->tiles && !together; i++)
        ops->pv(s, HEAD, kv_store_tile(s, HEAD, i), in->p + i * T, stride,
                in->rows, acc);
    ops->finish(s, HEAD, acc, in->rows, out);
    free(acc);
    return in->rows * s->head_dim * sizeof(*out);
}

#define RUN(name, run, path, together)       \
    size_t name(const void *in, void *out)   \
    {                                        \
        return run(in, path, together, out); \
    }

RUN(tile_qk, run_qk, KV_PATH_EXACT, false)
RUN(tile_pv, run_pv, KV_PATH_EXACT, false)
RUN(tile_qk_tiles, run_qk, KV_PATH_EXACT, true)
RUN(tile_pv_tiles, run_pv, KV_PATH_EXACT, true)
RUN(tile_qk8, run_qk, KV_PATH_INT8, false)
RUN(tile_pv8, run_pv, KV_PATH_INT8, false)
RUN(tile_qk8_tiles, run_qk, KV_PATH_INT8, true)
RUN(tile_pv8_tiles, run_pv, KV_PATH_INT8, true)
