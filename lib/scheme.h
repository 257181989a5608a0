/* Schemes: how keys or values become bytes, one file each in lib/schemes/.  To
 * store tokens, open a codec (codec.h) or a cache (seq/). */
#ifndef KV_SCHEME_H
#define KV_SCHEME_H

#include "lib/codec.h"

struct kv_calib_set;
struct kv_dump;
struct kv_gpu_code;
struct kv_store;

/* ---- optional parts of a scheme ------------------------------------------ */

/* The training of tables that a codec needs (a word of the spec can make them
 * unnecessary, as in cachegen). */
struct kv_training {
    /* Fails as calibrate() would when the dump lacks tensors, or points for a
     * codebook; reads no values.  Called for every spec before the first is
     * trained. */
    int (*check_dump)(const struct kv_spec *s, struct kv_dump *dump,
                      struct kv_err *e);
    /* Trains and adds tables to the set. */
    int (*calibrate)(const struct kv_spec *s, struct kv_dump *dump,
                     uint64_t seed, struct kv_calib_set *out, struct kv_err *e);
    /* Whether a layer's tables depend on other layers too; NULL: they depend
     * only on its own tensors, so layers may be trained separately. */
    bool (*together)(const struct kv_spec *s);
};

/* Blocks that differ in size; block_bytes is the maximum.  Replaces encode()
 * and decode().  The cache keeps, and counts, a 32-bit size for each block. */
struct kv_variable {
    /* Encodes one block; returns its size. */
    size_t (*encode_block)(const struct kv_codec *c, struct kv_where w,
                           const float *x, uint8_t *bytes);
    /* Fails with a sentence on a truncated block and on bytes that encode_block
     * cannot have written (an entropy-coded block carries a checksum).  x may
     * then be partly written. */
    int (*decode_block)(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n, float *x, struct kv_err *e);
};

/* The open block is stored as codes and requantized at each append, so the
 * stored bytes depend on the append schedule (hack without requantization
 * elimination).  open: [block_bytes]. */
struct kv_history {
    /* Adds token x [n_kv_heads][head_dim] to an open block of m tokens.  When m
     * + 1 = block, open becomes the bytes of a quantized block.  w.first: the
     * block's first token. */
    void (*requantize)(const struct kv_codec *c, struct kv_where w, size_t m,
                       const float *x, uint8_t *open);
    /* The stored form of the open block of m tokens: bytes [open_bytes], from
     * which read_open() makes open again. */
    size_t (*open_bytes)(const struct kv_codec *c, size_t m);
    void (*write_open)(const struct kv_codec *c, const uint8_t *open, size_t m,
                       uint8_t *bytes);
    void (*read_open)(const struct kv_codec *c, const uint8_t *bytes, size_t m,
                      uint8_t *open);
    /* x: [m][n_kv_heads][head_dim]. */
    void (*decode_open)(const struct kv_codec *c, const uint8_t *open, size_t m,
                        float *x);
};

/* Codes of a token depend on its decoded neighbours: its keys and values in the
 * layers below and, for values, its keys in the same layer.  All layers and
 * both sides have one spec with one s and one r, and a block is one token.  So
 * a token that is coded in a layer is also coded in the layers that this layer
 * reads.
 *
 * With in_place, a token is decoded from its own codes and its neighbours'
 * codes, so it can be decoded alone, and attention can run on codes.  Otherwise
 * layers are encoded and decoded from the lowest up, K before V, into a
 * workspace; there is no attention in place, and no layer slides. */
enum { KV_MAX_BELOW = 2 };

/* The decoded form of the same tokens, [n][n_kv_heads][head_dim] each, keys
 * before RoPE where they are stored so. */
struct kv_neighbours {
    const float *own_k; /* for values, else NULL */
    /* [0]: the next lower layer; NULL where the model has none, and for layers
     * that the codec does not read. */
    const float *below[KV_MAX_BELOW][KV_SIDES];
};

/* The neighbours as codes, from the first coded token on; NULL as above. */
struct kv_near_codes {
    const uint8_t *own_k;
    const uint8_t *below[KV_MAX_BELOW][KV_SIDES];
};

/* Replaces encode(), decode() and tile() by functions that also take the
 * neighbours. */
struct kv_layered {
    size_t n_below; /* lower layers that are read, at most KV_MAX_BELOW; in
                     * place at most 1, of the same kind (sliding or not) */
    bool in_place;
    void (*encode)(const struct kv_codec *c, struct kv_where w,
                   const struct kv_neighbours *at, const float *x, size_t n,
                   uint8_t *bytes);
    void (*decode)(const struct kv_codec *c, const struct kv_neighbours *at,
                   const uint8_t *bytes, size_t n, float *x);
    /* Used in place, if the scheme has a store(); a tile holds all heads. */
    void (*tile)(const struct kv_codec *c, const struct kv_store *s,
                 const struct kv_near_codes *at, const uint8_t *blocks,
                 size_t first, size_t n, uint8_t *tile);
};

/* ---- the scheme ---------------------------------------------------------- */

struct kv_scheme {
    const char *name, *brief;      /* brief: one line, with the paper */
    const struct kv_param *params; /* ends with name NULL; without s and r */
    size_t sinks, residual;        /* defaults of the letters s and r */
    enum kv_residual_rule
        residual_rule[KV_SIDES]; /* unless a word says otherwise */
    const char *newer; /* words of params, as "a|b", that canonical texts and
                        * calibrations' keys leave out at their defaults, so
                        * that older files stay valid */
    bool wide;   /* takes tokens as f32; every other scheme takes them as the
                  * model's cache would hold them, in fp16 (kv_codec_input) */
    bool coarse; /* a flat group decodes to finite values whose error may exceed
                  * fp16's precision */

    /* Checks conditions beyond the ranges of params ("g must divide head_dim"),
     * after clamping to the shape (it may change the spec).  NULL: none. */
    int (*check)(struct kv_spec *s, const struct kv_shape *shape,
                 struct kv_err *e);

    /* Sets c->block, c->block_bytes and c->state, and the codec's other fields
     * that depend on the spec.  calib may be NULL. */
    int (*open)(struct kv_codec *c, const struct kv_calib *calib,
                struct kv_err *e);
    /* Frees c->state.  Also called after an open() that failed, when state may
     * be NULL.  NULL: free(state). */
    void (*close)(struct kv_codec *c);

    /* x: [n_blocks * block][n_kv_heads][head_dim], finite.
     * bytes: [n_blocks][block_bytes], written in full.  Thread-safe. */
    void (*encode)(const struct kv_codec *c, struct kv_where w, const float *x,
                   size_t n_blocks, uint8_t *bytes);
    void (*decode)(const struct kv_codec *c, const uint8_t *bytes,
                   size_t n_blocks, float *x);

    /* Attention over tiles of the codes (kernels/tiles/tiles.h), no history;
     * NULL: attention decodes.  store names the codes' family and fills in its
     * params (owned by the codec), tile_bytes, enter, leave and space; values,
     * n_heads and head_dim are set.  It returns false when this spec has no
     * tiles.  tile puts tokens [first, first + n) of one KV head (of all heads
     * where a tile holds them together) into a tile of zeros.  first is a
     * multiple of KV_TILE_TOKENS, n at most KV_TILE_TOKENS.  blocks: all of the
     * side's quantized blocks; for a variable codec the blocks from token first
     * on.  Thread-safe. */
    bool (*store)(const struct kv_codec *c, struct kv_store *s);
    void (*tile)(const struct kv_codec *c, const struct kv_store *s,
                 const uint8_t *blocks, size_t first, size_t n, size_t head,
                 uint8_t *tile);

    /* The remaining hooks are optional: NULL if the scheme has none. */

    /* This side's default of a parameter that the spec omits, where the default
     * depends on the given parameters (already parsed); else p->fallback. */
    double (*fallback)(const struct kv_spec *s, enum kv_side side,
                       const struct kv_param *p);

    /* Bits per value of a quantized token of this side as the paper counts
     * them. */
    double (*nominal)(const struct kv_spec *s, enum kv_side side,
                      const struct kv_shape *shape);

    /* The number of values that kernels/hadamard.h's transform rotates together
     * under this fitted spec, 0 for none. */
    size_t (*hadamard)(const struct kv_spec *s, const struct kv_shape *shape);

    const struct kv_training *training;
    /* Whether a parameter without kv_param's calib still changes the tables of
     * this spec, such as b of klt with pred. */
    bool (*in_key)(const struct kv_spec *s, const struct kv_param *p);

    /* The functions of a spec whose codecs are layered, at a layer; returns
     * NULL for other specs.  Such a spec may also have training, and in place
     * store() and coefficients(). */
    const struct kv_layered *(*layered)(const struct kv_spec *s, size_t layer);

    /* Whether the spec codes all layers of a token together.  Its codec then
     * has kv_shape_merged(), and open() fails on several layers.  Codes are
     * made from a prompt that all layers have seen at full precision; there is
     * no attention in place, and no layer slides. */
    bool (*spans)(const struct kv_spec *s);

    /* The arguments of encode() and decode() on a CUDA device
     * (kernels/device_code.h).  Tokens whose values are fp16 get the same
     * bytes, and decode to the same floats, as on the CPU.  Not for wide
     * schemes and schemes with a history.  Fills in pointers to the codec's
     * memory; heads, dimension and block are set.  Returns false if the kernels
     * do not support the spec. */
    bool (*device)(const struct kv_codec *c, struct kv_gpu_code *to);

    /* All coefficients, coded or not, whose squared error a transform coder (no
     * variable codec) minimizes.  x, y: [n][n_kv_heads][head_dim]; the
     * coefficients of a token are a function of the token alone.  Serial and
     * thread-safe. */
    void (*coefficients)(const struct kv_codec *c, const float *x, size_t n,
                         float *y);

    /* Whether the block's token i, which stands at w.first + i, is a probe: the
     * cache keeps its query, and passes each block's saliency to encode()
     * (kv_where).  The cache calls it with the K codec.  Blocks of K and V must
     * be the same tokens, quantized by the same rule; keys after RoPE (with
     * anchors before it too), no history.  anchors: every token is a probe, and
     * the saliency is the anchor score of keys instead (lib/anchor_score.h). */
    bool (*probe)(const struct kv_codec *c, struct kv_where w, size_t i);
    bool anchors;

    /* Attention defined on the codes themselves (hack), over all tokens of k
     * and v.  It must approach exact attention as bits grow.  view: one
     * sequence with as many tokens as k and v; every field is supported.  A
     * visible token in a quantized block is read as codes even if the block
     * extends beyond the visible tokens.  q, out:
     * [view->nq][n_heads][head_dim].  ops: counts are added to it; may be NULL.
     * Thread-safe. */
    void (*attend)(const struct kv_reader *k, const struct kv_reader *v,
                   const struct kv_attend_view *view, const float *q,
                   uint64_t seed, float *out, struct kv_attend_ops *ops);
};

/* Every scheme, NULL at the end (lib/schemes/list.c).  kv_scheme_find() finds
 * "mixed" (lib/mixed.h) and "exec" (lib/exec.h) too; returns NULL for unknown
 * names. */
extern const struct kv_scheme *const kv_schemes[];
const struct kv_scheme *kv_scheme_find(const char *name);

#endif
