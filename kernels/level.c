#include "kernels/level.h"

#include <string.h>

static const char *const names[] = {
    [KV_LEVEL_C] = "c",
    [KV_LEVEL_AVX2] = "avx2",
    [KV_LEVEL_AVX512] = "avx512",
};

/* -1 until a level is forced. */
static int forced = -1;
static int forced_pairs = -1;
/* kv_level_version(), -1 until it is asked for. */
static int version = -1;

/* Asked before every loop; __builtin_cpu_init() has run before main(). */
enum kv_level kv_level_max(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2"))
        return KV_LEVEL_AVX512;
    /* a CPU with AVX2 has F16C, the older one, too (clang 14 cannot ask) */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
        return KV_LEVEL_AVX2;
#endif
    return KV_LEVEL_C;
}

enum kv_level kv_level_get(void)
{
    return forced < 0 ? kv_level_max() : (enum kv_level)forced;
}

bool kv_level_vnni(void)
{
#ifdef __x86_64__
    return kv_level_get() == KV_LEVEL_AVX512 &&
           __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("gfni");
#else
    return false;
#endif
}

size_t kv_level_version(void)
{
    int v = __atomic_load_n(&version, __ATOMIC_RELAXED);

    if (v < 0) {
        v = (int)kv_level_get() + kv_level_vnni();
        __atomic_store_n(&version, v, __ATOMIC_RELAXED);
    }
    return (size_t)v;
}

bool kv_level_pairs(void)
{
#ifdef __x86_64__
    return forced_pairs < 0 ? __builtin_cpu_is("amd") : forced_pairs;
#else
    return false;
#endif
}

void kv_level_set_pairs(bool pairs)
{
    forced_pairs = pairs;
}

int kv_level_set(enum kv_level level, struct kv_err *e)
{
    if (level > kv_level_max())
        return kv_fail(e, "this CPU does not run level %s (its highest is %s)",
                       kv_level_name(level), kv_level_name(kv_level_max()));
    forced = (int)level;
    __atomic_store_n(&version, -1, __ATOMIC_RELAXED);
    return 0;
}

const char *kv_level_name(enum kv_level level)
{
    return names[level];
}

int kv_level_parse(const char *name, enum kv_level *level, struct kv_err *e)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (!strcmp(name, names[i])) {
            *level = (enum kv_level)i;
            return 0;
        }
    return kv_fail(e, "unknown level '%s' (c, avx2 or avx512)", name);
}
