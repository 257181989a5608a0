/* All tensors of a model: of a folder, where they are in model.safetensors or
 * the shards that model.safetensors.index.json names, or of a GGUF file, where
 * they get the names and the order that they would have there. */
#ifndef KV_MODEL_WEIGHTS_H
#define KV_MODEL_WEIGHTS_H

#include "kernels/weights/packed.h"
#include "lib/base/hash.h"
#include "lib/model/gguf_model.h"
#include "lib/model/safetensors.h"

#include <stdbool.h>

/* A matrix that several tensors hold, in place of its codes'
 * (packed_tensors.h). */
enum { KV_UNPACKED_NAME = 256 };

struct kv_unpacked {
    struct kv_packed packed;
    struct kv_weight weight;
    char name[KV_UNPACKED_NAME];
    size_t at; /* in the list of weights, before it is sorted again */
    struct kv_unpacked *next;
};

struct kv_weights {
    char *index; /* the path of the shards' index, or NULL */
    struct kv_safetensors *shard;
    size_t n_shards;
    struct kv_gguf_model gguf;
    json_t *config; /* of a GGUF file, what config.json would say; or NULL */
    const struct kv_weight **weight; /* sorted by name */
    size_t n_weights, bytes;         /* bytes: of all tensors */
    struct kv_unpacked *unpacked;
};

/* Fails on a missing or wrong shard or part, a tensor that is not where the
 * index says, and a name that two files hold. */
int kv_weights_open(struct kv_weights *w, const char *model, struct kv_err *e);
void kv_weights_clear(struct kv_weights *w);

/* NULL when there is none of that name. */
const struct kv_weight *kv_weights_find(const struct kv_weights *w,
                                        const char *name);

/* By name, after names have changed; fails when two are the same. */
int kv_weights_sort(struct kv_weights *w, struct kv_err *e);

/* Whether the tensor is part of a matrix that is another one. */
bool kv_weights_is_part(const struct kv_weights *w, const struct kv_weight *t);

/* The type that most of the bytes have, "bf16", "q4_k", "other"; or what a GGUF
 * file calls their mixture, "q4_k_m". */
const char *kv_weights_type(const struct kv_weights *w);

/* Adds the content of each file: of the index if there is one, then of the
 * shards in its order; or of the parts of a GGUF model in theirs.  So the same
 * tensors in other files are another model. */
int kv_weights_hash(const struct kv_weights *w, struct kv_hash *h,
                    struct kv_err *e);

#endif
