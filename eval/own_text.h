/* The text that a model writes after prompts, its cache in f32. */
#ifndef KV_OWN_TEXT_H
#define KV_OWN_TEXT_H

#include "lib/model/model.h"

struct kv_own_text {
    struct kv_model *model;
    const int32_t *prompts; /* [n_windows][n_prompt >= 1] */
    size_t n_windows, n_prompt;
    size_t n;           /* new tokens after each, >= 1 */
    double temperature; /* 0: the most probable token, as kv_sampling has it */
    size_t memory;      /* bytes for caches */
    uint64_t seed;      /* kvgen draws the same random numbers for the first
                         * sample of the prompt */
};

/* to: [n_windows][n_prompt + n], the prompts and the text.  The model goes on
 * where it would end.  On the CPU the same bits for any number of threads, any
 * memory and any other windows.  From here on kv_model_few_in_f32() holds.
 * Fails when a logit is not finite. */
int kv_own_text(const struct kv_own_text *o, int32_t *to, struct kv_err *e);

#endif
