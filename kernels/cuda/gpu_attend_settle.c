#include "kernels/cuda/gpu_attend_impl.h"
#include "kernels/cuda/settle.h"

bool kv_gpu_attend_can_settle(const struct kv_gpu_attend *a,
                              const struct kv_gpu_code *code)
{
    const enum kv_gpu_coding coding =
        a->family == &kv_gpu_integers ? KV_GPU_GROUPS : KV_GPU_VECTORS;

    if (a->family != &kv_gpu_integers && a->family != &kv_gpu_codebook)
        return false;
    for (int side = 0; side < 2; side++)
        if (code[side].coding != coding || KV_GPU_TILE % code[side].block)
            return false;
    return true;
}

size_t kv_gpu_attend_newest(const struct kv_gpu_attend *a, size_t job)
{
    const struct kv_gpu_run *run = &a->plan[job].run[KV_RUN_CODES];

    return run->n ? run->first + run->n - KV_GPU_TILE : SIZE_MAX;
}

int kv_gpu_attend_settle(const struct kv_gpu_attend *a, int side,
                         const struct kv_gpu_code *code, const uint8_t *bytes,
                         struct kv_err *e)
{
    const struct kv_gpu_settle s = {.side = &a->side[side],
                                    .code = code,
                                    .bytes = bytes,
                                    .sequences = a->device_plan,
                                    .n = a->n_jobs};

    return code->coding == KV_GPU_GROUPS ? kv_gpu_settle_groups(&s, e)
                                         : kv_gpu_settle_vectors(&s, e);
}
