/* Parts of config.json that have a file of their own. */
#ifndef KV_MODEL_CONFIG_PARTS_H
#define KV_MODEL_CONFIG_PARTS_H

#include "lib/model/config_fields.h"

/* The architecture, which model_type must name too.  If the model has several
 * parts, f becomes the fields of its language model. */
int kv_config_arch(struct kv_fields *f, struct kv_config *c, struct kv_err *e);

/* The sizes of latent attention: the shape's heads, and c->latent. */
int kv_config_latent(const struct kv_fields *f, struct kv_config *c,
                     struct kv_err *e);

/* For a class whose layers are one half each: how many there are, and what each
 * is. */
int kv_config_halves(const struct kv_fields *f, struct kv_config *c,
                     struct kv_err *e);

/* How many experts there are, how many a token uses, and which layers have
 * none; called after the sizes are read. */
int kv_config_experts(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e);

/* Sizes of heads by the kind of layer, layers that share keys and values, and
 * embeddings of each layer's own; called after kv_config_layers(), since
 * afterwards c's shape does not count the layers that share. */
int kv_config_kind(const struct kv_fields *f, struct kv_config *c,
                   struct kv_err *e);

/* The streams of several and sparse MLPs; called after kv_config_kind(). */
int kv_config_altup(const struct kv_fields *f, struct kv_config *c,
                    struct kv_err *e);

/* intermediate_size, which may be a list of one number for each layer. */
int kv_config_width(const struct kv_fields *f, const struct kv_config *c,
                    size_t *inter, struct kv_err *e);

/* Which layers have no attention, and the sizes of their mixer; called last,
 * since afterwards c's shape does not count them. */
int kv_config_mixer(const struct kv_fields *f, struct kv_config *c,
                    struct kv_err *e);

#endif
