/* Shared by tests of attention on a device: caches of made-up tokens, and
 * comparison of the device's outputs with attention in double over the decoded
 * cache.  The device is the host twin of gpu_twin.h, or a GPU
 * (test_gpu_<..>_device, which scripts/gpu-check runs). */
#ifndef KV_GPU_ATTEND_SETUP_H
#define KV_GPU_ATTEND_SETUP_H

#include "kernels/cuda/gpu_attend.h"
#include "lib/seq/cache.h"
#include "lib/seq/tile_cache.h"
#include "tests/attention_setup.h"

extern struct kv_device test_device;

/* Runs the array `tests` on the device; returns main()'s result, 77 (skipped)
 * without a device. */
#define RUN_ON_DEVICE(tests) \
    (no_device() ? 77 : cmocka_run_group_tests(tests, NULL, NULL))
bool no_device(void); /* opens the device */

/* Kernels that attend: the best one of a path, or a named one.  `ways` is a sum
 * of these; a missing kernel fails the test. */
enum way { BY_EXACT = 1, BY_INT8 = 2, BY_GENERIC = 4, BY_DEQUANT = 8 };

enum { LONG = 3500 /* tokens: some warps have three tiles */ };

/* A cache of n made-up tokens, and its tiles. */
struct rig {
    struct tensors x;
    struct kv_codec *codec[KV_SIDES];
    struct kv_cache *cache;
    struct kv_tile_cache *tiled;
};

/* *calib: trained again if it lacks the spec; NULL at first, the caller's to
 * free. */
struct rig rig(const char *text, const struct kv_shape *s, size_t n,
               struct kv_calib **calib);
void rig_clear(struct rig *r);

/* Checks the outputs of nq queries over n tokens. */
void check_by(const char *text, const struct kv_shape *s, size_t n, size_t nq,
              unsigned ways, struct kv_calib **calib);

/* Checks a list of specs, each with its own sizes. */
struct sized {
    const char *text;
    size_t head_dim, group;
    size_t n_rot; /* pairs of channels that RoPE turns */
    size_t n, nq;
};
void check_sized(const struct sized *x, size_t n_cases, unsigned ways);

/* Check the cases of every listed kernel.  check_sizes: 1 to 1300 tokens with
 * `group` query heads per KV head; check_long: LONG tokens; check_kernels: 2
 * tiles of codes and a rest, with 4 and 12 rows. */
void check_sizes(const char *text, size_t head_dim, size_t group,
                 unsigned ways);
void check_long(const char *text, size_t head_dim, size_t group, unsigned ways);
void check_kernels(const char *text, size_t head_dim, unsigned ways);

/* Check which kernel runs, on this path, or on path exact. */
void check_path(const char *text, size_t head_dim, enum kv_path path,
                const char *name);
void check_name(const char *text, size_t head_dim, const char *name);

#endif
