#include "kernels/cuda/append.h"
#include "kernels/cuda/gpu_attend_impl.h"

static const struct {
    const struct kv_gpu_family *family;
    enum kv_gpu_coding coding;
    int (*quantize)(const struct kv_gpu_append *s, struct kv_err *e);
} kinds[] = {{&kv_gpu_integers, KV_GPU_GROUPS, kv_gpu_append_groups},
             {&kv_gpu_integers_int8, KV_GPU_GROUPS, kv_gpu_append_groups},
             {&kv_gpu_hack, KV_GPU_GROUPS, kv_gpu_append_hack},
             {&kv_gpu_codebook, KV_GPU_CODEBOOK, kv_gpu_append_codebook}};

enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

static size_t kind_of(const struct kv_gpu_attend *a)
{
    size_t i = 0;

    while (i < KINDS && kinds[i].family != a->family)
        i++;
    return i;
}

bool kv_gpu_attend_can_append(const struct kv_gpu_attend *a,
                              const struct kv_gpu_code *code)
{
    const size_t kind = kind_of(a);

    for (int side = 0; side < 2; side++)
        if (kind == KINDS || code[side].coding != kinds[kind].coding ||
            KV_GPU_TILE % code[side].block)
            return false;
    return true;
}

size_t kv_gpu_attend_newest(const struct kv_gpu_attend *a, size_t job)
{
    const struct kv_gpu_run *run = &a->plan[job].run[KV_RUN_CODES];

    return run->n ? run->first + run->n - KV_GPU_TILE : SIZE_MAX;
}

int kv_gpu_attend_append(const struct kv_gpu_attend *a, int side,
                         const struct kv_gpu_code *code, const uint8_t *bytes,
                         struct kv_err *e)
{
    const struct kv_gpu_append s = {.side = &a->side[side],
                                    .code = code,
                                    .bytes = bytes,
                                    .sequences = a->device_plan.p,
                                    .n = a->n_jobs};

    return kinds[kind_of(a)].quantize(&s, e);
}
