#include "eval/own_text.h"
#include "eval/generate.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <stdlib.h>
#include <string.h>

/* The batch whose caches fit in memory; kv_generate() holds up to 2 batch - 1
 * caches. */
static size_t batch_of(const struct kv_own_text *o)
{
    const size_t bytes = kv_generate_cache_bytes(
        &kv_model_info(o->model)->shape, o->n_prompt + o->n);

    return (kv_memory_fit(o->memory, bytes, 2 * KV_FEW_ROWS - 1,
                          "window's cache") +
            1) /
           2;
}

static void put_windows(const struct kv_own_text *o, const struct kv_answer *a,
                        int32_t *to)
{
    for (size_t w = 0; w < o->n_windows; w++) {
        memcpy(to, a[w].prompt, o->n_prompt * sizeof(*to));
        memcpy(to + o->n_prompt, a[w].ids, o->n * sizeof(*to));
        to += o->n_prompt + o->n;
    }
}

int kv_own_text(const struct kv_own_text *o, int32_t *to, struct kv_err *e)
{
    struct kv_answer *a = kv_alloc(o->n_windows, sizeof(*a));
    const uint64_t key = kv_mix(0, o->seed);
    struct kv_progress progress;
    struct kv_sampling sampling = KV_SAMPLING_GREEDY;
    const struct kv_generation g = {.model = o->model,
                                    .seed = o->seed,
                                    .batch = batch_of(o),
                                    .progress = &progress};
    struct kv_spec f32;
    int rc;

    sampling.temperature = o->temperature;
    for (size_t w = 0; w < o->n_windows; w++)
        a[w] = (struct kv_answer){.spec = &f32,
                                  .prompt = o->prompts + w * o->n_prompt,
                                  .n_prompt = o->n_prompt,
                                  .most = o->n,
                                  .sampling = &sampling,
                                  .key = kv_mix(kv_mix(key, w), 0)};
    kv_progress_init(&progress, "own text", o->n_windows * o->n);
    rc = kv_spec_parse(&f32, "f32", e) ||
         kv_spec_fit(&f32, &kv_model_info(o->model)->shape, e) ||
         kv_generate(&g, a, o->n_windows, e);
    if (!rc)
        put_windows(o, a, to);
    for (size_t w = 0; w < o->n_windows; w++)
        kv_answer_clear(&a[w]);
    free(a);
    return rc ? -1 : 0;
}
