/* All tensors of a model.  A folder has them in model.safetensors or in the
 * shards that model.safetensors.index.json names.  Tensors of a GGUF file get
 * the names and the order of such a folder. */
#ifndef KV_MODEL_WEIGHTS_H
#define KV_MODEL_WEIGHTS_H

#include "kernels/weights/packed.h"
#include "lib/base/hash.h"
#include "lib/model/gguf_model.h"
#include "lib/model/safetensors.h"

#include <stdbool.h>

/* A matrix stored in several tensors; it replaces the tensor of its codes
 * (packed_tensors.h). */
enum { KV_UNPACKED_NAME = 256 };

struct kv_unpacked {
    struct kv_packed packed;
    struct kv_weight weight;
    char name[KV_UNPACKED_NAME];
    size_t at; /* index in the list of weights, before the list is sorted
                * again */
    struct kv_unpacked *next;
};

struct kv_weights {
    char *index; /* the path of the shards' index, or NULL */
    struct kv_safetensors *shard;
    size_t n_shards;
    struct kv_gguf_model gguf;
    json_t *config; /* for a GGUF file, the equivalent config.json; or NULL */
    const struct kv_weight **weight; /* sorted by name */
    size_t n_weights, bytes;         /* bytes: the size of all tensors */
    struct kv_unpacked *unpacked;
};

/* Fails on a missing or wrong shard or part, a tensor that is not where the
 * index says, and a name that two files hold. */
int kv_weights_open(struct kv_weights *w, const char *model, struct kv_err *e);
void kv_weights_clear(struct kv_weights *w);

/* The tensor of this name; NULL when there is none. */
const struct kv_weight *kv_weights_find(const struct kv_weights *w,
                                        const char *name);

/* Sorts by name after names have changed; fails when two names are equal. */
int kv_weights_sort(struct kv_weights *w, struct kv_err *e);

/* Whether the tensor is part of a matrix that another tensor represents. */
bool kv_weights_is_part(const struct kv_weights *w, const struct kv_weight *t);

/* The type that most bytes have ("bf16", "q4_k", "other"); or a GGUF file's
 * name for its mixture of types ("q4_k_m"). */
const char *kv_weights_type(const struct kv_weights *w);

/* Adds the content of each file to h: the index, if there is one, then the
 * shards in the index's order; or the parts of a GGUF model in order.  So the
 * same tensors, split into other files, have another hash. */
int kv_weights_hash(const struct kv_weights *w, struct kv_hash *h,
                    struct kv_err *e);

#endif
