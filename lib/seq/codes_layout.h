/* Names inside codes.h5: for codes_file.c and codes_read.c alone. */
#ifndef KV_CODES_LAYOUT_H
#define KV_CODES_LAYOUT_H

#include "lib/h5.h"
#include "lib/shape.h"

#include <stdio.h>

#define KV_CODES_KIND "kvtools-codes"
/* The second format records which channels RoPE turns together. */
enum { KV_CODES_FIRST = 2, KV_CODES_FORMAT = 3 };

struct kv_codes_name {
    char text[KV_H5_NAME_CHARS];
};

static inline struct kv_codes_name kv_codes_spec_group(size_t spec)
{
    struct kv_codes_name n;

    snprintf(n.text, sizeof(n.text), "/spec_%03zu", spec);
    return n;
}

static inline struct kv_codes_name kv_codes_layer_group(size_t spec,
                                                        size_t layer)
{
    struct kv_codes_name n;

    snprintf(n.text, sizeof(n.text), "/spec_%03zu/layer_%03zu", spec, layer);
    return n;
}

/* "/spec_000/layer_003/clipped" */
static inline struct kv_codes_name kv_codes_pairs(size_t spec, size_t layer,
                                                  const char *what)
{
    struct kv_codes_name n;

    snprintf(n.text, sizeof(n.text), "/spec_%03zu/layer_%03zu/%s", spec, layer,
             what);
    return n;
}

static inline struct kv_codes_name kv_codes_plane(size_t spec, size_t layer,
                                                  enum kv_side side)
{
    return kv_codes_pairs(spec, layer, side == KV_K ? "k" : "v");
}

/* A window of a plane with windows of different sizes. */
static inline struct kv_codes_name
kv_codes_plane_window(const struct kv_codes_name *plane, size_t window)
{
    struct kv_codes_name n;

    snprintf(n.text, sizeof(n.text), "%.*s/window_%03zu", 64, plane->text,
             window);
    return n;
}

#endif
