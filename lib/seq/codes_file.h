/* codes.h5, a file of the bytes that caches hold: to count them, and to read
 * them back.
 *
 *   /           attributes kind "kvtools-codes", format, tool_version, model,
 *               model_hash, text, text_hash, calibration (its hash, "" for
 *               none), seed, keep_window (0 or 1), n_windows, ctx, first_layer,
 *               last_layer, and the shape (lib/h5_head.h)
 *   /k_bias     f32 [n_layers][kv_heads][head_dim] where the model has one
 *   /spec_000   one group per spec, attribute spec: its canonical text
 *   /spec_000/layer_000/{k,v}   a plane: uint8 [windows][bytes], or a group
 *               where the codec is variable or keeps massive tokens:
 *               .../{k,v}/window_000 uint8 [bytes], ...
 *   /spec_000/layer_000/{held_bytes,clipped}   uint64 [windows][2], K and V:
 *               the bytes that the column `bits` counts; clipped values
 *
 * A window's bytes in a plane are kv_codes_of() of a side's kv_cache_reader()
 * (cache_bytes.h).  In a layer that slides these are more than held_bytes.
 *
 * Attributes of a plane: spec, the spec of this layer and side; pre_rope, 1 for
 * keys before RoPE; less_bias, 1 for keys without /k_bias; sinks, block, tail
 * and open, numbers of tokens; blocks, their number; block_bytes, the bytes of
 * each block, or the maximum if the codec is variable; and layout, the parts of
 * a window's bytes in words: "sinks f16[4][2][64] | blocks u8[3][512] | tail
 * f16[28][2][64]". */
#ifndef KV_CODES_FILE_H
#define KV_CODES_FILE_H

#include "lib/base/err.h"
#include "lib/seq/cache.h"

struct kv_codes_info {
    char model[128], model_hash[32], text[128], text_hash[32];
    char calib_hash[32]; /* "": no calibration */
    struct kv_shape shape;
    size_t n_windows, ctx, first_layer, last_layer;
    uint64_t seed;
    bool keep_window; /* each spec has its own s and r */
};

/* ---- to write ------------------------------------------------------------ */

struct kv_codes;
int kv_codes_create(struct kv_codes **c, const char *path,
                    const struct kv_codes_info *info, struct kv_err *e);

/* One window of a layer under a spec.  spec: the number of the spec's group. */
struct kv_codes_window {
    size_t spec, layer, window;
    const char *text;              /* the spec's text */
    struct kv_codec *const *codec; /* [KV_SIDES] */
    struct kv_side_bytes side[KV_SIDES];
    uint64_t held_bytes[KV_SIDES];
};

/* Windows may come in any order.  If a side's codec is not variable, all its
 * windows have the same number of bytes. */
int kv_codes_put(struct kv_codes *c, const struct kv_codes_window *w,
                 struct kv_err *e);

int kv_codes_commit(struct kv_codes *c, struct kv_err *e); /* frees c */
void kv_codes_discard(struct kv_codes *c); /* frees c; NULL is fine */

/* ---- to read (codes_read.c) ---------------------------------------------- */

struct kv_codes_in;
/* Fails on another kind of file, and on a file of format 1, which does not
 * describe its bytes. */
int kv_codes_open(struct kv_codes_in **c, const char *path, struct kv_err *e);
void kv_codes_close(struct kv_codes_in *c); /* NULL is fine */
const struct kv_codes_info *kv_codes_about(const struct kv_codes_in *c);
const char *kv_codes_path(const struct kv_codes_in *c);

/* The specs' texts, in the groups' order; valid until c is closed. */
size_t kv_codes_specs(const struct kv_codes_in *c, const char *const **texts);

/* The bytes of a window of a layer under the spec of this text, for
 * kv_seq_load_sides(); the caller frees bytes[KV_SIDES], also if the call
 * fails.  Fails if the file lacks this window or layer, and on a bad checksum.
 * Not thread-safe. */
int kv_codes_get(struct kv_codes_in *c, const char *text, size_t layer,
                 size_t window, uint8_t *bytes[KV_SIDES],
                 struct kv_side_bytes side[KV_SIDES], struct kv_err *e);

#endif
