/* codes.h5, a file of the bytes that caches hold, so that anyone can count
 * them.
 *
 *   /              attributes kind "kvtools-codes", format, tool_version
 *   /spec_000      one group per spec, attribute spec: its canonical text
 *   /spec_000/layer_000/{k,v}   uint8 [windows][bytes], or where the codec is
 *                  variable or keeps massive tokens a group:
 *                  .../{k,v}/window_000 uint8 [bytes], ...
 *
 * A window's bytes are kv_codes_of() of a side's kv_cache_held()
 * (cache_bytes.h). */
#ifndef KV_CODES_FILE_H
#define KV_CODES_FILE_H

#include "lib/base/err.h"
#include "lib/codec.h"

struct kv_codes;
int kv_codes_create(struct kv_codes **c, const char *path, struct kv_err *e);

/* The place of a window's bytes.  spec: the group's number; text: the spec. */
struct kv_codes_place {
    size_t spec, layer;
    const char *text;
    enum kv_side side;
    size_t n_windows;
    bool variable; /* windows differ in their number of bytes */
};

/* Windows may come in any order.  Where the place is not variable, all its
 * windows have the same number of bytes. */
int kv_codes_put(struct kv_codes *c, const struct kv_codes_place *p,
                 size_t window, const uint8_t *bytes, size_t n,
                 struct kv_err *e);

int kv_codes_commit(struct kv_codes *c, struct kv_err *e); /* frees c */
void kv_codes_discard(struct kv_codes *c); /* frees c; NULL is fine */

#endif
