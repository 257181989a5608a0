#include "eval/attn_memory.h"
#include "lib/policy.h"
#include "lib/seq/cache.h"
#include "lib/seq/tile_cache.h"

#include <math.h>

static double kv_row(const struct kv_attn_inputs *in)
{
    return (double)in->shape.n_kv_heads * (double)in->shape.head_dim;
}

static double q_row(const struct kv_attn_inputs *in)
{
    return (double)in->shape.n_heads * (double)in->shape.head_dim;
}

/* The bytes of q; exact, and the outputs compared with it, are as large. */
static double outputs(const struct kv_attn_inputs *in)
{
    return (double)in->n_batch * (double)in->nq * q_row(in) * sizeof(float);
}

double kv_attn_inputs_bytes(const struct kv_attn_inputs *in)
{
    const double n = (double)in->n_batch * (double)in->n;
    const double kv = (in->has_k_pre ? 3 : 2) * kv_row(in);
    const double q = in->want_all_q ? q_row(in) : 0;

    return 2 * outputs(in) + n * (kv + q) * sizeof(float);
}

/* The bytes of one sequence's decoded keys and values. */
static double decoded_bytes(const struct kv_attn_inputs *in)
{
    return 2 * (double)in->n * kv_row(in) * sizeof(float);
}

/* Whether attention reads tiles; a GPU always does. */
static bool in_tiles(const struct kv_attn_bench *b,
                     const struct kv_attn_inputs *in,
                     struct kv_codec *const *codec)
{
    const struct kv_attend_view view =
        kv_shape_view(&codec[KV_K]->shape, in->n, in->n - in->nq, in->nq);

    return b->gpu || (kv_tiles_takes(&view) &&
                      (kv_tile_codecs_can(codec, KV_PATH_EXACT) ||
                       kv_tile_codecs_can(codec, KV_PATH_INT8)));
}

/* The bytes of the policy's run on one sequence (lib/seq/policy_cache.c) in
 * addition to the cache: the rows that every KV head holds, the decoded tokens,
 * queries and outputs if a whole prompt counts, and the kept tokens. */
static double policy_bytes(const struct kv_attn_inputs *in,
                           const struct kv_policy *p, double cache)
{
    const double marks = sizeof(uint32_t) + 3 * sizeof(double);
    const double n = (double)in->n;
    const double heads = (double)in->shape.n_kv_heads;
    const double q = p->mass ? 2 * q_row(in) * sizeof(float) : 0;

    return kv_attn_inputs_bytes(in) + cache + 2 * decoded_bytes(in) +
           n * (q + heads * marks);
}

double kv_attn_step_bytes(const struct kv_attn_bench *b,
                          const struct kv_attn_inputs *in,
                          const struct kv_spec *spec,
                          struct kv_codec *const *codec, bool generic)
{
    const bool tiled = in_tiles(b, in, codec);
    const double n_batch = (double)in->n_batch;
    double cache = 0, tiles = 0, append = 0, read = 0, bytes;

    for (int side = 0; side < KV_SIDES; side++) {
        cache += kv_cache_memory(codec[side], in->n);
        append =
            fmax(append, kv_append_memory(codec[side], in->n, KV_ATTN_PIECE));
        if (tiled)
            tiles += (double)kv_tile_cache_need(codec[side], in->n);
    }
    if (b->gpu)
        read = n_batch * tiles; /* the GPU has tiles only */
    else if (generic || !tiled)
        read = fmin(n_batch, (double)b->threads) * decoded_bytes(in);
    bytes = 2 * outputs(in) + n_batch * (cache + tiles) + fmax(append, read);
    if (spec->policy.policy)
        bytes += policy_bytes(in, spec->policy.policy, cache);
    return bytes;
}

int kv_attn_memory_check(const struct kv_attn_inputs *in, const char *what,
                         double bytes, size_t memory, struct kv_err *e)
{
    if (bytes <= (double)memory)
        return 0;
    return kv_fail(e,
                   "%zu sequence%s of %zu tokens take %.0f bytes as %s, more "
                   "than --memory, %zu bytes",
                   in->n_batch, in->n_batch == 1 ? "" : "s", in->n, bytes, what,
                   memory);
}
