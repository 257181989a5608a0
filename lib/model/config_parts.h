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

/* For a class whose layers are each attention, a mixer or an MLP: the number of
 * layers and the kind of each. */
int kv_config_halves(const struct kv_fields *f, struct kv_config *c,
                     struct kv_err *e);

/* The number of experts, the number that a token uses, and the layers without
 * experts; called after the sizes are read. */
int kv_config_experts(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e);

/* Head sizes of each kind of layer, layers that share keys and values, and the
 * embeddings that each layer has; called after kv_config_layers(), since this
 * function takes the sharing layers out of the shape's n_layers. */
int kv_config_kind(const struct kv_fields *f, struct kv_config *c,
                   struct kv_err *e);

/* Gemma 3n's streams and sparse MLPs; called after kv_config_kind(). */
int kv_config_altup(const struct kv_fields *f, struct kv_config *c,
                    struct kv_err *e);

/* intermediate_size, which may be a list of one number for each layer. */
int kv_config_width(const struct kv_fields *f, const struct kv_config *c,
                    size_t *inter, struct kv_err *e);

/* The layers without attention, and the sizes of their mixer; called last,
 * since it takes these layers out of the shape's n_layers. */
int kv_config_mixer(const struct kv_fields *f, struct kv_config *c,
                    struct kv_err *e);

#endif
