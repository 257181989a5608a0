/* Finds the arrays of a file or folder that are keys, values or queries, their
 * layers and tokens, and their layout.
 *
 * The words of an array's name decide: layers.0.keys, layer_000/k, key_cache.0,
 * past_key_values.0.key, k_pre.0.
 *
 * One of k, key, keys; v, value, values; q, query, queries names the tensor; k
 * may have the word pre (before RoPE).  kv or past_key_values.0 without such a
 * word, and kvcache, are keys and values in one array; a kvcache of all layers
 * is [2][layers].  tokens and ids are token ids.
 *
 * A number is the layer; an array without a number has all layers.  A number
 * after chunk, page, part or segment names a chunk of the tokens: 0, 1, 2 ...
 * or the chunk's first token.  Arrays with other names are ignored. */
#ifndef KV_KVDUMP_ARRAYS_H
#define KV_KVDUMP_ARRAYS_H

#include "lib/dump.h"
#include "tools/kvdump_files.h"

enum { KVDUMP_IDS = KV_T_K_PRE + 1, KVDUMP_OWN }; /* q, k, v, k_pre, ids */

/* An array, or half of an array that holds keys and values. */
struct kvdump_piece {
    size_t tensor, layer, chunk;
    size_t array; /* its index in the list */
    bool joined, numbered;
    bool outer; /* joined before the layers: [2][layers], as kvcache is */
};

/* The pieces of one tensor. */
struct kvdump_layers {
    bool have, stacked;               /* stacked: each piece has all layers */
    const struct kvdump_piece *piece; /* [layers][n_chunks] */
    size_t first, last, n_chunks;
    size_t heads;
};

struct kvdump_arrays {
    struct kvdump_files files;
    struct kvdump_piece *piece;
    size_t n_pieces;
    struct kvdump_layers of[KVDUMP_OWN];
    size_t kv_heads;  /* the model's KV heads; 0: not known */
    bool heads_first; /* [heads][tokens][channels], else [tokens][heads] */
    size_t n_inner;   /* number of dimensions, not counting layers or the pair
                       * of keys and values: 2 for [tokens][heads * channels],
                       * 3, or 4 with windows */
    size_t n_windows, ctx, dim, first_layer, last_layer;
    size_t *chunk_tokens; /* [n_chunks] of the keys */
};

/* Opens the files and finds the arrays.  Fails on two arrays for one place, and
 * on a gap among layers or chunks.  a is cleared by kvdump_arrays_clear(), also
 * after a failure. */
int kvdump_arrays_open(struct kvdump_arrays *a, const char *path,
                       struct kv_err *e);
void kvdump_arrays_clear(struct kvdump_arrays *a);

/* "keys". */
const char *kvdump_arrays_name(size_t tensor);
const struct kv_array *kvdump_arrays_first(const struct kvdump_arrays *a,
                                           size_t tensor);

/* ---- kvdump_shapes.c ----------------------------------------------------- */

/* The question that the shapes alone leave open: the order of dimensions, or
 * the number of heads. */
enum { KVDUMP_NO_ORDER = 1, KVDUMP_NO_HEADS };

/* Fails if layers, shapes or types of the arrays do not agree.  layout: "htd",
 * "thd" or NULL.  n_kv_heads: the model's, 0 if unknown.  Returns one of the
 * values above if that information is needed. */
int kvdump_arrays_fit(struct kvdump_arrays *a, const char *layout,
                      size_t n_kv_heads, struct kv_err *e);

/* "[2][8][512][64]". */
void kvdump_arrays_shape(const struct kv_array *x, char text[128]);

/* Reads one window of a layer into x [ctx][heads][dim]. */
int kvdump_arrays_read(struct kvdump_arrays *a, enum kv_tensor t, size_t layer,
                       size_t window, float *x, struct kv_err *e);

/* Reads the ids of a window's tokens, [ctx]. */
int kvdump_arrays_ids(struct kvdump_arrays *a, size_t window, int32_t *id,
                      struct kv_err *e);

#endif
