/* Tables of kvquant's codes (nuq_codes.h). */
#include "kernels/levels/cuda_pack.h"

#include <stdlib.h>

enum { TOKENS = KV_NUQ_TILE };

/* Channel 8 g + 2 c of the first half of them. */
static size_t channel_of(size_t g, size_t lane)
{
    return 8 * g + lane % 4 * 2;
}

/* What a pair of channels is multiplied by, where levels are `by` times as
 * large; i: of the KV head's first half. */
static float pair_factor(const struct kv_store *s, size_t head, size_t i,
                         float by)
{
    const size_t low = head * s->head_dim + i, high = low + s->head_dim / 2;
    const float *offset = kv_nuq_of(s)->offset, *half = kv_nuq_of(s)->half;
    const float x[] = {half[low] / by, half[high] / by, offset[low],
                       offset[high]};

    return kv_gpu_half_factor(x, sizeof(x) / sizeof(*x));
}

/* to: [d / 16][4][4]; times: [d / 2], of each pair. */
static void put_ranges(const struct kv_store *s, size_t head, float by,
                       const float *times, uint32_t *to)
{
    const size_t d = s->head_dim;
    const float *offset = kv_nuq_of(s)->offset + head * d;
    const float *half = kv_nuq_of(s)->half + head * d;

    for (size_t g = 0; g < d / 16; g++)
        for (size_t i = 0; i < 8; i++) {
            const size_t pair = channel_of(g, i / 2);
            const size_t c = pair + i % 2 * (d / 2);
            const float a = times[pair], b = times[pair + 1];

            *to++ = kv_nuq_two(half[c] / by * a, half[c + 1] / by * b);
            *to++ = kv_nuq_two(offset[c] * a, offset[c + 1] * b);
        }
}

/* to: [4][d / 16][lane][4] */
static void put_turns(const struct kv_store *s, uint32_t *to)
{
    const size_t d = s->head_dim;
    float(*angle)[KV_NUQ_MOST_DIM] = kv_alloc(TOKENS, sizeof(*angle));

    for (size_t t = 0; t < TOKENS; t++)
        kv_tiles_rope_angles(kv_nuq_of(s)->rope, t, angle[t]);
    for (size_t i = 0; i < TOKENS / 16 * d / 16 * KV_NUQ_LANES * 2; i++) {
        const size_t lane = i / 2 % KV_NUQ_LANES, block = i / 2 / KV_NUQ_LANES;
        const size_t g = block % (d / 16), m = block / (d / 16);
        const float *a =
            angle[16 * m + lane / 4 + i % 2 * 8] + 2 * channel_of(g, lane);

        *to++ = kv_nuq_two(a[0], a[2]);
        *to++ = kv_nuq_two(a[1], a[3]);
    }
    free(angle);
}

/* Words before a head's turns, before its shares, and in all. */
static size_t turns_at(const struct kv_store *s)
{
    return kv_nuq_levels(s) * kv_nuq_levels(s) + s->head_dim;
}

static size_t shares_at(const struct kv_store *s)
{
    return turns_at(s) + TOKENS / 16 * s->head_dim / 16 * KV_NUQ_LANES * 4;
}

static size_t keys_words(const struct kv_store *s)
{
    return shares_at(s) + s->head_dim / 2;
}

static void make_head(const struct kv_store *s, size_t head, uint32_t *to)
{
    const size_t n = kv_nuq_levels(s);
    const float by = kv_gpu_pair_table(kv_nuq_of(s)->scaled.table, n, to);
    float times[KV_NUQ_MOST_DIM / 2];

    for (size_t i = 0; i < s->head_dim / 2; i++) {
        times[i] = pair_factor(s, head, i, by);
        to[shares_at(s) + i] = kv_f32_bits(1 / times[i]);
    }
    put_ranges(s, head, by, times, to + n * n);
    put_turns(s, to + turns_at(s));
}

static void make_keys_table(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const size_t words = keys_words(s);
    uint32_t *to = kv_alloc(s->n_heads * words, sizeof(*to));

    side->table = to;
    side->n_tables = s->n_heads;
    side->table_bytes = words * sizeof(*to);
    for (size_t h = 0; h < s->n_heads; h++)
        make_head(s, h, to + h * words);
}

static void make_values_table(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const size_t n = kv_nuq_levels(s);
    uint32_t *to = kv_alloc(n * n + 1, sizeof(*to));

    side->table = to;
    side->n_tables = 1;
    side->table_bytes = (n * n + 1) * sizeof(*to);
    to[n * n] =
        kv_f32_bits(kv_gpu_pair_table(kv_nuq_of(s)->scaled.table, n, to));
}

void kv_nuq_table_make(struct kv_gpu_side *side)
{
    if (side->store->values)
        make_values_table(side);
    else
        make_keys_table(side);
}

float kv_nuq_table_share(const struct kv_gpu_side *side, size_t head, size_t i)
{
    const uint32_t *table = side->table;

    return kv_bits_f32(
        table[head * keys_words(side->store) + shares_at(side->store) + i]);
}

float kv_nuq_table_factor(const struct kv_gpu_side *side)
{
    const size_t n = kv_nuq_levels(side->store);

    return kv_bits_f32(((const uint32_t *)side->table)[n * n]);
}
