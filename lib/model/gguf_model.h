/* A GGUF model in the words of Hugging Face: its metadata as config.json would
 * have it, its tensors under the names of safetensors. */
#ifndef KV_MODEL_GGUF_MODEL_H
#define KV_MODEL_GGUF_MODEL_H

#include "lib/model/gguf.h"

#include <jansson.h>

/* All files of a model. */
struct kv_gguf_model {
    struct kv_gguf *part;
    size_t n_parts;
};

/* path: a file, or any part of one that was split (its keys say so, and its
 * name ends in -00001-of-00003.gguf): the others are found beside it.  Fails
 * on a part that is not there or not the one that its name says. */
int kv_gguf_model_open(struct kv_gguf_model *m, const char *path,
                       struct kv_err *e);
void kv_gguf_model_clear(struct kv_gguf_model *m);

/* The tensor of this name, as in the file, before kv_gguf_rename(); NULL when
 * there is none. */
const struct kv_weight *kv_gguf_tensor(const struct kv_gguf_model *m,
                                       const char *name);

/* What an architecture of llama.cpp is in transformers. */
struct kv_gguf_family {
    const char *name;              /* general.architecture */
    const char *arch, *model_type; /* of config.json */
    const char *sliding[2];        /* these, where there is a window; or NULL */
    size_t pattern;   /* every so many-th layer does not slide; 0: all alike */
    bool interleaved; /* the halves of a head's rows of q and k are in turn */
    float norm_add;   /* to weights of norms, to be as in transformers */
    /* Fields of config.json that say whether q, k and v have biases, q and k
     * norms; NULL: none does. */
    const char *bias, *qk_norm;
};

/* Fails, naming those that are known, and when the file is none of a model. */
int kv_gguf_family(const struct kv_gguf_model *m,
                   const struct kv_gguf_family **family, struct kv_err *e);

/* What general.file_type calls the mixture of types, "q4_k_m"; NULL when it is
 * not there or not known. */
const char *kv_gguf_mixture(const struct kv_gguf_model *m);

/* The caller's to json_decref; NULL with a sentence on a key that is missing,
 * and on one that could change numbers and is not known. */
json_t *kv_gguf_config(const struct kv_gguf_model *m, struct kv_err *e);

/* Of a sentence "PATH: field NAME ...", about that object: names the key, where
 * the field is one. */
void kv_gguf_name_key(const struct kv_gguf_model *m, const char *path,
                      struct kv_err *e);

/* What holds q, k and v of a layer where they have names of their own. */
#define KV_GGUF_QKV "attn_qkv.weight"

/* Gives every tensor its name and order in transformers.  Fails on one that is
 * not known.  The name of one that config, from kv_gguf_config(), holds already
 * becomes empty. */
int kv_gguf_rename(struct kv_gguf_model *m, const json_t *config,
                   struct kv_err *e);

/* Of a sentence "PATH: tensor NAME ...", where NAME is transformers': names the
 * tensor as the file has it, or would have it.  config: as above. */
void kv_gguf_name_tensor(const struct kv_gguf_model *m, const json_t *config,
                         const char *path, struct kv_err *e);

#endif
