/* What nuq_pack.c, which puts kvquant's tiles into the order of nuq_codes.h,
 * and nuq_table.c, which makes their tables, have in common. */
#ifndef KV_LEVELS_CUDA_PACK_H
#define KV_LEVELS_CUDA_PACK_H

#include "kernels/levels/cuda_codes.h"
#include "kernels/levels/levels.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

enum { KV_NUQ_LANES = 32, KV_NUQ_MOST_DIM = 128 };

static inline const struct kv_nuq_tiles *kv_nuq_of(const struct kv_store *s)
{
    return s->params;
}

static inline size_t kv_nuq_levels(const struct kv_store *s)
{
    return (size_t)1 << kv_nuq_of(s)->scaled.bits;
}

/* Two halves, the first one low. */
static inline uint32_t kv_nuq_two(float a, float b)
{
    return kv_f16_clamp(a) | (uint32_t)kv_f16_clamp(b) << 16;
}

/* The side's table, which is made. */
void kv_nuq_table_make(struct kv_gpu_side *side);
/* Of keys: what the queries' pair i is multiplied by. */
float kv_nuq_table_share(const struct kv_gpu_side *side, size_t head, size_t i);
/* Of values: what pairs of codes were multiplied by. */
float kv_nuq_table_factor(const struct kv_gpu_side *side);

#endif
