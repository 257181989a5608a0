/* Shared by generate.c and generate_attend.c. */
#ifndef KV_GENERATE_IMPL_H
#define KV_GENERATE_IMPL_H

#include "eval/generate.h"
#include "eval/generate_gpu.h"
#include "eval/prefill.h"

/* The codecs of a spec; all answers with this spec share them. */
struct kv_gen_spec {
    const struct kv_spec *spec;
    struct kv_codecs *codecs;
    bool exact; /* prompts attend to all tokens at full precision in all
                 * layers */
    struct kv_gpu_layers *gpu; /* NULL: decode steps attend on the CPU */
};

/* An answer under way. */
struct kv_gen_sequence {
    struct kv_answer *a;
    const struct kv_gen_spec *spec;
    struct kv_seq *seq;
    const struct kv_tile_cache *tiles; /* of the layer that attends on a GPU */
    uint64_t id;
    struct kv_prefill prefill;
    int32_t *ids; /* [n_prompt + most]: the prompt and the new tokens */
    double begun; /* when the first new token was ready */
    bool ended;
};

struct kv_generator {
    struct kv_generation g;
    size_t n_layers, n_vocab, n_hidden;
    struct kv_gen_spec **spec; /* [n_specs] */
    size_t n_specs;
    struct kv_answer **waiting; /* [n_waiting], from next on */
    size_t n_waiting, next;
    struct kv_gen_sequence
        *open; /* [n_open] in their order; 2 batch - 1 at most */
    size_t n_open;
    uint64_t n_begun; /* sequences so far */
    struct kv_gen_sequence *
        *live; /* [n_live], sequences of the current pass: each
                * runs one token, or all run the same prompt */
    size_t n_live;
    bool prompt;
    struct kv_span *span; /* [rows] */
    size_t rows;          /* rows of a decode pass */
    size_t longest;       /* rows of hidden */
    float *hidden,
        *logits; /* [longest prompt or rows][hidden], [rows][vocab] */
};

/* Ends the answer without its remaining tokens. */
void kv_gen_fail(struct kv_gen_sequence *s, const struct kv_err *why);

/* ---- generate_attend.c --------------------------------------------------- */

/* For struct kv_attention; arg: the generator.  kv_gen_state() gives the state
 * of live sequence number `sequence`.  Sequences that share a prompt share the
 * state of the first of them. */
int kv_gen_attend(void *arg, const struct kv_qkv *x, struct kv_err *e);
float *kv_gen_state(void *arg, size_t sequence);
/* Copies the state after a prompt that all live sequences share. */
void kv_gen_share_state(const struct kv_generator *r);

#endif
