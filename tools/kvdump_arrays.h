/* Which arrays of a file are the keys, values and queries of which layer, and
 * how their values lie.
 *
 * A name is words: layers.0.keys, layer_000/k, key_cache.0, past_key_values.0.
 * key, k_pre.0.  One of k, key, keys; v, value, values; q, query, queries; with
 * k also pre.  One number is the layer; without one an array is all layers.
 * An array of another name is none of these. */
#ifndef KV_KVDUMP_ARRAYS_H
#define KV_KVDUMP_ARRAYS_H

#include "lib/arrays/arrays.h"
#include "lib/dump.h"

enum { KVDUMP_OWN = KV_T_K_PRE + 1 }; /* q, k, v, k_pre */

/* Of one tensor. */
struct kvdump_layers {
    bool have, stacked;          /* stacked: array[0] is all layers */
    size_t array[KV_MAX_LAYERS]; /* by layer: 1 + its place in the list; 0: none
                                  */
    size_t first, last;
    size_t heads;
};

struct kvdump_arrays {
    struct kv_arrays *file;
    const struct kv_array *list;
    size_t n;
    struct kvdump_layers of[KVDUMP_OWN];
    bool heads_first; /* [heads][tokens][channels], else [tokens][heads] */
    bool has_windows; /* a dimension before these */
    size_t n_windows, ctx, dim, first_layer, last_layer;
};

/* Opens the file and finds the arrays.  Fails on two arrays for one place and
 * on a layer amid others that is missing.  a is cleared by
 * kvdump_arrays_clear(), also after a failure. */
int kvdump_arrays_open(struct kvdump_arrays *a, const char *path,
                       struct kv_err *e);
void kvdump_arrays_clear(struct kvdump_arrays *a);

/* Fails where layers, shapes or types of the arrays do not agree.  layout:
 * "htd", "thd" or NULL.  n_kv_heads: the model's, 0 where it is not known.
 * Returns 1 where nothing tells heads from tokens. */
int kvdump_arrays_fit(struct kvdump_arrays *a, const char *layout,
                      size_t n_kv_heads, struct kv_err *e);

/* "[2][8][512][64]", of the first of a tensor's arrays. */
void kvdump_arrays_shape(const struct kvdump_arrays *a, enum kv_tensor t,
                         char text[128]);

/* One window of a layer: x [ctx][heads][dim]. */
int kvdump_arrays_read(struct kvdump_arrays *a, enum kv_tensor t, size_t layer,
                       size_t window, float *x, struct kv_err *e);

#endif
