/* A synthetic dump of two layers of three, and kv_measure() on it. */
#ifndef MEASURE_SETUP_H
#define MEASURE_SETUP_H

#include "eval/measure.h"
#include "eval/rd_bound.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/h5.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"
#include "lib/scheme.h"
#include "lib/seq/bits.h"
#include "lib/seq/cache.h"
#include "lib/seq/codes_file.h"
#include "tests/append_rows.h"
#include "tests/synthetic.h"
#include "tests/test.h"
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <unistd.h>

enum { N_LAYERS = 2, N_WINDOWS = 3, CTX = 37, N_QUERIES = 7, MAX_SPECS = 128 };

/* A dump with layers 1 and 2 of a model of three. */
static inline struct kv_dump_info example_info(void)
{
    struct kv_dump_info info = {.model = "example",
                                .model_hash = "00",
                                .text = "none",
                                .shape = synthetic_shape(64),
                                .n_windows = N_WINDOWS,
                                .ctx = CTX,
                                .first_layer = 1,
                                .last_layer = N_LAYERS,
                                .have = {true, true, true, true}};

    info.shape.n_layers = 3;
    return info;
}

/* Describes a dump of a model whose layer 1 has a sliding window and its own
 * RoPE, whose layer 2 has no RoPE, and whose attention has capped scores and
 * sink logits. */
static inline struct kv_dump_info sliding_info(void)
{
    static const float sink_logit[] = {0, 0, 0, 0, 1, 2, -1, 3, 5, -2, 1, 0};
    struct kv_dump_info info = example_info();

    info.shape.sink_logit = sink_logit;
    info.shape.cap = 3;
    info.shape.slides[0] = 1 << 1;
    info.shape.slide_window = 11;
    info.shape.still[0] = 1 << 2;
    for (size_t i = 0; i < info.shape.n_rot; i++)
        info.shape.slide_freq[i] = info.shape.inv_freq[i] / 3;
    return info;
}

/* [N_WINDOWS][CTX][heads][head_dim]; k is k_pre rotated. */
static inline float *tensor(const struct kv_dump_info *info, size_t layer,
                            enum kv_tensor t)
{
    const size_t heads =
        t == KV_T_Q ? info->shape.n_heads : info->shape.n_kv_heads;
    const size_t window = CTX * heads * info->shape.head_dim;
    const uint64_t key =
        kv_mix(layer, (uint64_t)(t == KV_T_K ? KV_T_K_PRE : t));
    const struct kv_shape shape = kv_shape_layer(&info->shape, layer);
    float *x = kv_alloc(N_WINDOWS * window, sizeof(*x));

    for (size_t i = 0; i < N_WINDOWS * window; i++)
        x[i] = (float)kv_random_normal(key, i);
    for (size_t w = 0; w < N_WINDOWS && t == KV_T_K; w++)
        kv_rope(&shape, x + w * window, CTX, heads, 0);
    return x;
}

static inline struct kv_dump *dump_of(struct kv_dump_info info)
{
    const int32_t tokens[N_WINDOWS * CTX] = {0};
    struct kv_err e = {""};
    struct kv_dump_writer *w;
    struct kv_dump *dump;
    char path[5000];

    snprintf(path, sizeof(path), "%s/dump.h5", test_folder());
    assert_int_equal(kv_dump_create(&w, path, &info, &e), 0);
    assert_int_equal(kv_dump_put_tokens(w, 0, N_WINDOWS, tokens, &e), 0);
    for (size_t layer = 1; layer <= N_LAYERS; layer++)
        for (int t = 0; t < KV_TENSORS; t++) {
            float *x = tensor(&info, layer, (enum kv_tensor)t);

            if (info.have[t])
                assert_int_equal(kv_dump_put(w, layer, (enum kv_tensor)t, 0,
                                             N_WINDOWS, x, &e),
                                 0);
            free(x);
        }
    assert_int_equal(kv_dump_commit(w, &e), 0);
    assert_int_equal(kv_dump_open(&dump, path, &e), 0);
    unlink(path); /* stays readable while it is open */
    return dump;
}

static inline struct kv_dump *example(bool with_q, bool with_k_pre)
{
    struct kv_dump_info info = example_info();

    info.have[KV_T_Q] = with_q;
    info.have[KV_T_K_PRE] = with_k_pre;
    return dump_of(info);
}

/* Lists every scheme without calibration: with its defaults, at r0, and if it
 * has a letter n, with blocks of 16 tokens.  Returns the number of specs. */
static inline size_t every_spec(const struct kv_shape *shape,
                                struct kv_spec *spec)
{
    const char *const letters[] = {"", ":r0", ":n16r0"};
    struct kv_err e = {""};
    size_t n = 0;

    for (size_t i = 0; kv_schemes[i]; i++)
        for (int j = 0; j < 3; j++) {
            struct kv_spec *s = &spec[n];
            char text[64];

            if (kv_schemes[i]->training)
                continue;
            assert_true(n < MAX_SPECS);
            snprintf(text, sizeof(text), "%s%s", kv_schemes[i]->name,
                     letters[j]);
            if (kv_spec_parse(s, text, &e)) {
                assert_int_equal(j, 2); /* it has no n */
                continue;
            }
            assert_int_equal(kv_spec_fit(s, shape, &e), 0);
            n++;
        }
    return n;
}

static inline struct kv_measured *measure(struct kv_measure_plan *plan)
{
    struct kv_measured *out = kv_alloc(plan->n_specs * N_LAYERS, sizeof(*out));
    struct kv_err e = {""};

    if (kv_measure(plan, out, &e))
        fail_msg("%s", e.msg);
    return out;
}

#endif
