/* Which versions of the kernels run.  Every kernel exists in plain C, which is
 * the definition; faster versions give the same bits wherever codes depend on
 * them, so the level changes times, not results. */
#ifndef KV_LEVEL_H
#define KV_LEVEL_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum kv_level { KV_LEVEL_C, KV_LEVEL_AVX2, KV_LEVEL_AVX512 };

/* The highest level that this build has and this CPU runs. */
enum kv_level kv_level_max(void);

/* The level in use: kv_level_max() until one is set. */
enum kv_level kv_level_get(void);

/* Forces a level for the whole program; call before any thread computes.
 * Fails when it is above kv_level_max(). */
int kv_level_set(enum kv_level level, struct kv_err *e);

/* Whether the level in use is avx512 and this CPU multiplies small integers
 * and looks bytes up (AVX512-VNNI, AVX512-VBMI, GFNI, BMI2): Ice Lake, Zen 4
 * and newer. */
bool kv_level_vnni(void);

/* The versions of an operation as a table, indexed by kv_level_version(); vnni
 * is for kv_level_vnni(). */
#ifdef __x86_64__
#define KV_VERSIONS(c, avx2, avx512, vnni) \
    {                                      \
        c, avx2, avx512, vnni              \
    }
#else
#define KV_VERSIONS(c, avx2, avx512, vnni) \
    {                                      \
        c                                  \
    }
#endif
size_t kv_level_version(void);

/* Whether this CPU looks bytes up in two registers (vpermi2b) in the time of
 * one: AMD's do; Intel's take three times as long. */
bool kv_level_pairs(void);

/* Overrides kv_level_pairs() for tests. */
void kv_level_set_pairs(bool pairs);

const char *kv_level_name(enum kv_level level); /* "c" "avx2" "avx512" */

/* Fails when name is none of the three. */
int kv_level_parse(const char *name, enum kv_level *level, struct kv_err *e);

#endif
