/* A spec on a model, for languages that call C functions and know only the few
 * structs below (python/kvtools).
 *
 * A binding holds the spec fitted to the model, its codecs and its calibration.
 * Its sequences are struct kv_seq (seq/seq.h); they and the arrays read from
 * them must be freed before the binding.  Different sequences may be used by
 * different threads. */
#ifndef KV_BINDING_H
#define KV_BINDING_H

#include "lib/dump.h"
#include "lib/seq/seq.h"

KV_PUBLIC_BEGIN

struct kv_binding;

/* The model.  Arrays are copied; an array may be NULL where its comment says
 * so. */
struct kv_binding_model {
    size_t n_layers, n_heads, n_kv_heads, head_dim;
    float attn_scale;        /* logits are attn_scale * q . k */
    float cap;               /* soft cap of logits; 0: none */
    size_t n_rot;            /* channels i and i + n_rot turn together,
                              * i < n_rot; 0: no RoPE */
    const float *inv_freq;   /* [n_rot] */
    const uint8_t *slides;   /* [n_layers], 1: the layer slides; NULL: none */
    size_t slide_window;     /* tokens that a sliding layer sees */
    const float *slide_freq; /* [n_rot], for sliding layers */
    const uint8_t *still;    /* [n_layers], 1: a layer without RoPE; NULL:
                              * none */
    const float *k_bias;     /* [n_layers][n_kv_heads][head_dim]; NULL: none */
    bool neighbours;         /* channels 2 i and 2 i + 1 turn together */
    bool ggml_neighbours;    /* as in struct kv_shape */
};

/* calib: path of a calibration, or NULL.  m NULL: the calibration's model.
 * Fails when the spec does not parse or fit, lacks tables, or when the
 * calibration was made for another model (frequencies may differ by 1e-5). */
int kv_binding_new(struct kv_binding **b, const char *spec,
                   const struct kv_binding_model *m, const char *calib,
                   struct kv_err *e);
void kv_binding_free(struct kv_binding *b); /* NULL is fine */

/* The canonical spec; valid as long as b. */
const char *kv_binding_spec(const struct kv_binding *b);

/* n_layers, n_heads, n_kv_heads, head_dim. */
void kv_binding_sizes(const struct kv_binding *b, size_t size[4]);

/* Whether the layer's keys are stored before RoPE. */
bool kv_binding_pre_rope(const struct kv_binding *b, size_t layer);

/* Whether queries must go through kv_seq_step(), because a policy drops tokens,
 * or the scheme attends on its codes or looks at queries.  Otherwise
 * kv_binding_read() gives keys and values for any attention. */
bool kv_binding_attends(const struct kv_binding *b);

/* Whether the prompt's queries attend to codes, as later queries do.  If so,
 * the prompt enters by kv_seq_step().  Otherwise the caller computes the
 * prompt's attention, and its tokens enter by kv_seq_append(). */
bool kv_binding_prompt_on_codes(const struct kv_binding *b);

/* A new sequence with all its layers open.  prompt: its first tokens enter by
 * kv_seq_append().  share_of: the number of tokens that a policy's budget is a
 * share of; not read without a policy.  Fails if the policy cannot run on this
 * spec, if it drops tokens of a prompt and there is no prompt, or if it prunes
 * the attention of prompts. */
int kv_binding_seq(const struct kv_binding *b, bool prompt, size_t share_of,
                   uint64_t seed, struct kv_seq **s, struct kv_err *e);

/* Only for specs without a policy.  kv_binding_settled(): the number of tokens
 * whose stored form in one side of a layer no longer changes.
 * kv_binding_read(): tokens [first, end) as they are stored, keys before RoPE
 * if kv_binding_pre_rope().  first: 0, or without kv_binding_attends() an
 * earlier result of kv_binding_settled(); end: all tokens.  x: [end -
 * first][n_kv_heads][head_dim]. */
size_t kv_binding_settled(const struct kv_seq *s, size_t layer, int side);
void kv_binding_read(const struct kv_seq *s, size_t layer, int side,
                     size_t first, size_t end, float *x);

/* Adds the bit counts of all layers and both sides of a sequence, and sets the
 * counts that belong to the spec (kv_bits_of_spec()). */
void kv_binding_bits(const struct kv_binding *b, const struct kv_seq *s,
                     struct kv_bits *bits);

/* One side of one layer, the sequence's first n tokens, as bytes and back:
 *
 *   | sinks: fp16 | sizes of blocks: uint32, if they vary | blocks |
 *   | tail: fp16, or an open block |
 *
 * x: [n][n_kv_heads][head_dim], keys before RoPE if kv_binding_pre_rope().  The
 * caller frees *bytes with free().  Both functions fail for a policy that drops
 * tokens, for massive, for schemes that look at queries or at other layers, on
 * NaN and infinity, and on bytes that do not encode n tokens. */
int kv_binding_encode(const struct kv_binding *b, size_t layer, int side,
                      const float *x, size_t n, uint8_t **bytes,
                      size_t *n_bytes, struct kv_err *e);
int kv_binding_decode(const struct kv_binding *b, size_t layer, int side,
                      const uint8_t *bytes, size_t n_bytes, size_t n, float *x,
                      struct kv_err *e);

/* Tensors for a dump.h5 (dump.h), all layers of the model.
 *
 * tokens: [n_windows][ctx] ids, each >= 0.
 * tensor: by enum kv_tensor up to KV_T_K_PRE, NULL if absent:
 *         [n_layers][n_windows][ctx][heads][head_dim] each.
 * model, text: their names.  A calibration fits a dump if the model's name is
 * the same. */
struct kv_binding_dump {
    const char *model, *text;
    size_t n_windows, ctx;
    const int32_t *tokens;
    const float *tensor[KV_T_K_PRE + 1];
};

/* Writes the file.  Fails on NaN, infinity and values beyond 1e18, and if the
 * path cannot be written. */
int kv_binding_dump(const char *path, const struct kv_binding_model *m,
                    const struct kv_binding_dump *d, struct kv_err *e);

KV_PUBLIC_END

#endif
