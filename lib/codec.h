/* Codecs.
 *
 * A scheme (scheme.h; one file in lib/schemes/) says how keys or values become
 * bytes.  A codec is a scheme with a spec, a model shape, a layer, a side and a
 * calibration.  It turns whole blocks of tokens,
 * x[n_blocks * block][n_kv_heads][head_dim] f32, into bytes and back.
 *
 * THE LAW.  The bytes stored for n tokens are a pure function of (spec,
 * calibration, layer, these n tokens, seed).  A token is its key and value; for
 * schemes with a probe() also its query; for layered codecs also its keys and
 * values in the layers below.  Blocks encoded together or one by one have the
 * same bytes.  decode() depends on the stored bytes alone.  Any number of
 * threads gives the same bits.  Finite values decode to finite values.  Equal
 * values (a flat group of zeros, the largest half or denormals) decode to
 * fp16's precision, except with trained tables and coarse schemes.  A scheme
 * declares its exceptions, and the conformance tests read them. */
#ifndef KV_CODEC_H
#define KV_CODEC_H

#include "lib/base/err.h"
#include "lib/kept_tokens.h"
#include "lib/massive_tokens.h"
#include "lib/shape.h"
#include "lib/spec.h"

#include <stdint.h>

KV_PUBLIC_BEGIN

struct kv_calib;
struct kv_codec;
struct kv_codec_place;
struct kv_codecs;
struct kv_history;
struct kv_layered;
struct kv_variable;

/* How many of n tokens a side quantizes, with s sinks and a residual of r
 * tokens.  The number is then rounded down to whole blocks. */
enum kv_residual_rule {
    KV_SLIDING, /* n - s - r: the newest r stay fp16 */
    KV_BATCHED  /* floor((n - s) / r) * r: r at a time */
};

/* The position of encode()'s blocks in the sequence, the seed of stochastic
 * rounding, and further facts about their tokens. */
struct kv_where {
    size_t first; /* token index of the first block's first token */
    uint64_t seed;
    const float *saliency; /* [n_blocks][n_kv_heads][block] (lib/saliency.h,
                            * lib/anchor_score.h), the same for K and V; NULL
                            * without probe() */
};

/* Operations of attend() over tokens stored as codes, counted as they are
 * executed.  The formula members are the counts that the paper's formulas give
 * for the same calls (0 without formulas). */
struct kv_attend_ops {
    uint64_t products;      /* the integer products themselves */
    uint64_t correction;    /* additions that turn them into the result */
    uint64_t other;         /* corrections that no formula counts */
    uint64_t formula;       /* correction by the paper's formula */
    uint64_t formula_parts; /* by the formula, counting every partition */
};

struct kv_codec {
    const struct kv_scheme *scheme; /* the spec's scheme, or the scheme whose
                                     * hooks open() chose instead */
    struct kv_spec spec;            /* fitted */
    struct kv_shape shape;
    size_t layer;
    enum kv_side side;

    /* Set by open().  Before it zero and NULL, and the scheme's rule for the
     * side. */
    enum kv_residual_rule residual_rule;
    size_t block;          /* tokens per block, >= 1 */
    size_t block_bytes;    /* canonical bytes of one block, all KV heads */
    size_t declared_bytes; /* bytes per block that the codec declares, counted
                            * instead of the stored bytes; 0: stored bytes
                            * count */
    const struct kv_variable *variable; /* NULL: all blocks have block_bytes */
    const struct kv_history *history;   /* NULL: the open block is the tail */
    const struct kv_layered *layered;   /* NULL: codes stand alone; set before
                                         * open() */
    bool pre_rope;         /* keys are encoded and decoded before RoPE */
    bool less_bias;        /* the cache passes keys without the model's bias
                            * (lib/k_bias.h), and adds it after decode() */
    bool prefill_on_codes; /* the prompt's queries use attend() too; else they
                            * attend at full precision */
    bool partial;          /* the transform is known only for coefficients that
                            * are coded */
    bool massive;          /* the cache keeps massive tokens in fp16 too */
    struct kv_norm_range norms[KV_SIDES]; /* norms of tokens that are not
                                           * massive */
    size_t n_traced; /* pool size of kivi's word ott, which keeps the smallest
                      * keys instead of tokens found by their norms; 0: no
                      * pool */
    void *state;

    struct kv_codec_place *place; /* where encode() and decode() run, owned;
                                   * NULL: on the CPU */
};

/* The contents of one side of a cache, for attention on the codes
 *   tokens [0, sinks)                      fp16, in sink
 *   [sinks, sinks + n_blocks * block)      codes, block_bytes each, or size[i]
 *   [.., n)                                fp16 in tail; or, when open is not
 *                                          NULL, codes of an open block
 * sink, tail: [tokens][n_kv_heads][head_dim] fp16.  query: the queries of the
 * tail's probes, [n_queries][n_heads][head_dim] fp16, only in side K.  kept:
 * the coded tokens that are read in fp16; none with an attend(). */
struct kv_reader {
    const struct kv_codec *codec;
    size_t n, sinks, n_blocks;
    const uint8_t *blocks, *open;
    const uint32_t *size; /* [n_blocks] bytes of each; NULL: block_bytes */
    const uint16_t *sink, *tail;
    const uint16_t *query;
    size_t n_queries;
    struct kv_kept_tokens kept; /* in fp16 beside their codes */
};

/* spec must be fitted to shape.  With a mixed spec the codec uses the member
 * spec of this layer and side.  calib may be NULL.  Fails when the scheme needs
 * tables that calib lacks. */
int kv_codec_new(struct kv_codec **c, const struct kv_spec *spec,
                 const struct kv_shape *shape, size_t layer, enum kv_side side,
                 const struct kv_calib *calib, struct kv_err *e);
void kv_codec_free(struct kv_codec *c); /* NULL is fine */

/* Makes the codecs of K and V for n_layers layers, the first of which is
 * `first`; with a latent (shape.h) V's codec is K's.  Fails if kv_codec_new()
 * fails. */
int kv_codecs_new(struct kv_codecs **cs, const struct kv_spec *spec,
                  const struct kv_shape *shape, size_t first, size_t n_layers,
                  const struct kv_calib *calib, struct kv_err *e);
void kv_codecs_free(struct kv_codecs *cs); /* NULL is fine */

/* The codecs [KV_SIDES] of one of these layers, valid until cs is freed. */
struct kv_codec *const *kv_codecs_at(const struct kv_codecs *cs, size_t layer);

/* Fails with layer, name ('K', 'V', 'Q') and token when x [n][row] holds a NaN
 * or an infinity; first: the index of x's first token. */
int kv_check_finite(size_t layer, char name, size_t first, const float *x,
                    size_t n, size_t row, struct kv_err *e);

/* The values of n tokens as they enter the cache: rounded to fp16 and clamped
 * to its largest finite value, or unchanged if the scheme is wide.  x, out:
 * [n][n_kv_heads][head_dim]; may be the same array. */
void kv_codec_input(const struct kv_codec *c, const float *x, size_t n,
                    float *out);

/* kv_beyond_f16(): how many of n values fp16 would round to infinity (65,520
 * and more in magnitude).  kv_codec_clipped(): how many values of n tokens
 * kv_codec_input() clamps. */
size_t kv_beyond_f16(const float *x, size_t n);
size_t kv_codec_clipped(const struct kv_codec *c, const float *x, size_t n);

/* The values of n tokens, the first at position first, as the cache returns
 * them while they are not quantized.  That is kv_codec_input(); for less_bias
 * the bias is subtracted before it and added after it. */
void kv_codec_unquantized(const struct kv_codec *c, size_t first,
                          const float *x, size_t n, float *out);

/* Whether the scheme defines attention on the codes themselves (hack).  K and V
 * then have one scheme, and kv_cache_attend() runs its attend(). */
bool kv_codec_attends(const struct kv_codec *c);

/* Whether the codes alone determine the tokens, as needed by kernels that read
 * codes in place.  False if a spec word (k_bias=no, massive=yes) makes the
 * cache add something to the decoded tokens. */
bool kv_codec_codes_alone(const struct kv_codec *c);

/* Whether the number of bytes of n tokens depends on their values: blocks
 * differ in size, or massive tokens are kept beside them. */
bool kv_codec_varies(const struct kv_codec *c);

/* Turns n decoded tokens, from position 0 on, into the tensors that attention
 * reads: keys stored before RoPE are rotated. */
void kv_codec_rotate(const struct kv_codec *c, float *x, size_t n);

/* The coefficients whose squared error a transform coder minimizes, for n
 * tokens x as they enter the cache, the first at position first.  x, y:
 * [n][n_kv_heads][head_dim].  Only for codecs that kv_codec_transforms(). */
bool kv_codec_transforms(const struct kv_codec *c);
void kv_codec_coefficients(const struct kv_codec *c, size_t first,
                           const float *x, size_t n, float *y);

/* encode() and decode() on the codec's device.  Thread-safe on the CPU; on a
 * backend one thread at a time.  Fail where the backend fails. */
int kv_codec_encode(const struct kv_codec *c, struct kv_where w, const float *x,
                    size_t n_blocks, uint8_t *bytes, struct kv_err *e);
int kv_codec_decode(const struct kv_codec *c, const uint8_t *bytes,
                    size_t n_blocks, float *x, struct kv_err *e);

/* Values of one token. */
static inline size_t kv_codec_row(const struct kv_codec *c)
{
    return c->shape.n_kv_heads * c->shape.head_dim;
}

/* Values in one block: block * n_kv_heads * head_dim. */
static inline size_t kv_codec_block_values(const struct kv_codec *c)
{
    return c->block * kv_codec_row(c);
}

KV_PUBLIC_END

#endif
