/* The types of RoPE scaling (rope_type): the fields that each type has, and its
 * effect on the frequencies. */
#ifndef KV_MODEL_CONFIG_ROPE_TYPES_H
#define KV_MODEL_CONFIG_ROPE_TYPES_H

#include "lib/model/config_fields.h"
#include "lib/shape.h"

/* An object that describes RoPE: rope_parameters, its member for a layer type,
 * or rope_scaling.  label: the object's name and a dot. */
struct kv_rope_block {
    char label[64];
    struct kv_fields fields;
};

struct kv_rope_reading {
    const struct kv_arch *arch;
    const struct kv_fields *top;
    struct kv_rope_block block[2];
    size_t n_blocks;
    double theta;
    size_t head_dim, n_ctx; /* head_dim: the number of rotated channels */
    bool partial;           /* head_dim may be below the head's channels */
};

struct kv_rope_type {
    const char *name;
    struct kv_field known[17];
    /* Scales inv_freq [r->head_dim / 2], and sets the rest of kind. */
    int (*scale)(const struct kv_rope_reading *r, const struct kv_fields *f,
                 double *inv_freq, struct kv_rope_kind *kind, struct kv_err *e);
};
extern const struct kv_rope_type kv_rope_types[]; /* [0]: without scaling */

/* The type of a block: rope_type, or type in older files.  Fails on an unknown
 * type. */
int kv_rope_type(const struct kv_rope_reading *r, const struct kv_fields *f,
                 const struct kv_rope_type **type, struct kv_err *e);

/* Converts x [r->head_dim / 2] to floats; type: for the error sentence. */
int kv_rope_put(const struct kv_rope_reading *r, const double *x,
                const char *type, float *inv_freq, struct kv_err *e);

#endif
