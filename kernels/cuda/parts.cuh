/* Parts of the hot decoding kernels, to be timed (enum kv_gpu_part): those of
 * head_dim 128 and 8 rows.  Stages and steps are those of the families' own
 * lists.  Each function launches a part, or gives KV_NO_PART. */
#ifndef KV_CUDA_PARTS_CUH
#define KV_CUDA_PARTS_CUH

#include "kernels/cuda/decode_launch.cuh"

enum { KV_PART_DIM = 128, KV_NO_PART = 1 };

template <class K, class V, int STAGES>
static int kv_launch_part(struct kv_gpu_launch *l, enum kv_gpu_part part,
                          const typename K::params &k,
                          const typename V::params &v, struct kv_err *e)
{
    constexpr int D = KV_PART_DIM;

    return part == KV_LOADS
               ? kv_decode_launch<K, V, STAGES, D, 1, KV_LOADS>(l, k, v, e)
               : kv_decode_launch<K, V, STAGES, D, 1, KV_COMPUTE>(l, k, v, e);
}

/* parts_vectors.cu: codebook indices of shared tables; parts_scaled.cu: codes
 * with scales, and kvquant's. */
int kv_codebook_part(struct kv_gpu_launch *l, enum kv_gpu_part part,
                     struct kv_err *e);
int kv_scaled_part(struct kv_gpu_launch *l, enum kv_gpu_part part,
                   struct kv_err *e);
int kv_nuq_part(struct kv_gpu_launch *l, enum kv_gpu_part part,
                struct kv_err *e);

#endif
