/* The header that dump.h5 and calib.h5 share: the kind of file and the shape of
 * its model. */
#ifndef KV_H5_HEAD_H
#define KV_H5_HEAD_H

#include "lib/base/err.h"
#include "lib/h5.h"
#include "lib/shape.h"

/* The format number for a file of this shape.  `format` is the first format
 * that has caps, slopes, windows and layers without RoPE. */
int kv_h5_format(const struct kv_shape *shape, int format);

/* Whether this shape needs the attribute rope_pairs, since RoPE turns a part of
 * a head, or neighbouring channels. */
bool kv_h5_has_pairs(const struct kv_shape *shape);

/* Attributes kind, format (the version of the layout) and tool_version. */
void kv_h5_put_kind(struct kv_h5 *h, const char *kind, int format);
/* Fails on another kind of file, and on a format newer than this. */
int kv_h5_check_kind(struct kv_h5 *h, const char *kind, int format,
                     struct kv_err *e);

/* Attributes n_layers, n_heads, n_kv_heads, head_dim, attn_scale, and the
 * dataset /inv_freq f32 [n_rot].  Where the model has them: attn_cap; /slopes
 * f32 [n_heads] (ALiBi); slide_window with /slides u8 [n_layers], 1 for layers
 * that slide, and /slide_inv_freq f32 [n_rot], their RoPE; /still u8
 * [n_layers], 1 for layers without RoPE if others have it; latent; rope_pairs,
 * "neighbours", or "halves" if RoPE turns a part of the head (such files have
 * formats of their own); ggml_pairs, "neighbours" if RoPE turns neighbours in
 * llama.cpp's files but not here.  A file without them has the previous format
 * (kv_h5_format()), which older versions read too.  Reading fails on an
 * impossible shape. */
int kv_h5_put_shape(struct kv_h5 *h, const struct kv_shape *shape,
                    struct kv_err *e);
int kv_h5_get_shape(struct kv_h5 *h, struct kv_shape *shape, struct kv_err *e);

/* Writes a sentence if two shapes differ, naming the first difference: "it has
 * 2 KV heads, expected 4".  e may be NULL.  Returns 0 when equal, else -1. */
int kv_shape_same(const struct kv_shape *is, const struct kv_shape *expected,
                  struct kv_err *e);

#endif
