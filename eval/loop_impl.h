/* Shared by loop.c and loop_coder.c. */
#ifndef KV_LOOP_IMPL_H
#define KV_LOOP_IMPL_H

#include "eval/loop.h"
#include "eval/prefill.h"
#include "lib/mixed.h"
#include "lib/seq/seq.h"

/* A layer's codecs on the backend. */
struct kv_loop_layer {
    struct kv_coder *coder[KV_SIDES]; /* NULL: the cache on the host encodes */
    bool on_codes;                    /* attention is computed on them */
};

enum { UNQUANTIZED, QUANTIZED, VIEWS };

/* Values that a coder counts in its input (struct kv_encode). */
struct kv_loop_met {
    unsigned nonfinite, clipped;
};

struct kv_loop {
    struct kv_shape shape;
    struct kv_protocol protocol;
    struct kv_spec spec;
    uint64_t seed;
    size_t jitter; /* 0: none */
    size_t first_window;
    struct kv_codecs *codecs;    /* codecs of all layers */
    const struct kv_backend *b;  /* the coders' backend; NULL: no coders */
    struct kv_loop_layer *layer; /* [n_layers] */
    size_t last;                 /* layer with coders */
    struct kv_bits bits;
    struct kv_prefill prefill;
    struct kv_loop_span *span; /* NULL: layers have codes of their own */
    struct kv_seq **seq;       /* [n_seqs], windows with caches on the host */
    size_t n_seqs;
    size_t length; /* tokens of a window */

    /* The current layer's keys and values of all windows, in the forms
     * (UNQUANTIZED, QUANTIZED) that queries see:
     * [n_windows][n][n_kv_heads][head_dim], keys after RoPE.  host: as a cache
     * returns them. */
    const struct kv_backend *memory; /* the memory of `form` */
    struct kv_workspace form[KV_SIDES][VIEWS];
    float *host[KV_SIDES][VIEWS];
    struct kv_workspace bytes[KV_SIDES]; /* codes */
    struct kv_workspace met; /* struct kv_loop_met [layers][KV_SIDES]
                              * [windows]; zeroed once counted */
};

/* The codecs of a layer, or the codecs that code all layers together. */
static inline struct kv_codec *const *kv_loop_codecs(const struct kv_loop *l,
                                                     size_t layer)
{
    return kv_codecs_at(l->codecs, kv_spec_spans(&l->spec) ? 0 : layer);
}

static inline size_t kv_loop_sinks(const struct kv_codec *c)
{
    return kv_spec_size(&c->spec, c->side, "s");
}

/* The number of values in a token's keys in the layer. */
static inline size_t kv_loop_row(const struct kv_qkv *x)
{
    return x->shape->n_kv_heads * x->shape->head_dim;
}

/* The input of the cache for one side. */
static inline const float *kv_loop_input(const struct kv_loop *l,
                                         const struct kv_qkv *x,
                                         enum kv_side side, size_t window)
{
    const struct kv_tokens t = kv_qkv_tokens(x, window, 0, x->n);

    return kv_tokens_stored(&t, kv_loop_codecs(l, x->layer)[side]);
}

/* With codes of all layers together (loop_span.c): reads the current layer's
 * rows of a window in the forms that queries see, keys not yet rotated. */
void kv_loop_span_read(const struct kv_loop *l, const struct kv_qkv *x,
                       size_t window, enum kv_side side, float *const *form);
/* Whether the protocol codes only tokens that are the same for all layers. */
int kv_loop_span_takes(const struct kv_loop *l, size_t n, struct kv_err *e);
void kv_loop_span_free(struct kv_loop_span *s); /* NULL is fine */

/* Encodes all windows of a layer with coders on the backend, and makes the
 * forms that attention needs of each side; bits [n_windows]. */
int kv_loop_fill_by_coder(struct kv_loop *l, const struct kv_qkv *x,
                          struct kv_attend_side *const *side,
                          struct kv_attend_codes *codes, struct kv_bits *bits,
                          struct kv_err *e);

#endif
