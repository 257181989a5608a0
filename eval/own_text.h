/* The text that a model with an f32 cache writes after prompts. */
#ifndef KV_OWN_TEXT_H
#define KV_OWN_TEXT_H

#include "lib/model/model.h"

struct kv_own_text {
    struct kv_model *model;
    const int32_t *prompts; /* [n_windows][n_prompt >= 1] */
    size_t n_windows, n_prompt;
    size_t n;           /* new tokens after each prompt, >= 1 */
    double temperature; /* 0: the most probable token, as in kv_sampling */
    size_t memory;      /* bytes for caches */
    uint64_t seed;      /* kvgen with this seed draws the same random numbers
                         * for a prompt's first sample */
};

/* to: [n_windows][n_prompt + n], the prompts and the text.  The model continues
 * after an end of text.  On the CPU any number of threads, any memory and any
 * other windows give the same bits.  Afterwards kv_model_few_in_f32() is in
 * force.  Fails when a logit is not finite. */
int kv_own_text(const struct kv_own_text *o, int32_t *to, struct kv_err *e);

#endif
