/* A GGUF model in Hugging Face's terms: its metadata as a config.json, its
 * tensors under the names of safetensors. */
#ifndef KV_MODEL_GGUF_MODEL_H
#define KV_MODEL_GGUF_MODEL_H

#include "lib/model/gguf.h"

#include <jansson.h>

/* All files of a model. */
struct kv_gguf_model {
    struct kv_gguf *part;
    size_t n_parts;
};

/* path: a file, or any part of a split file (its keys say so, and its name ends
 * in -00001-of-00003.gguf); the other parts are found beside it.  Fails if a
 * part is missing or is not the part that its name says. */
int kv_gguf_model_open(struct kv_gguf_model *m, const char *path,
                       struct kv_err *e);
void kv_gguf_model_clear(struct kv_gguf_model *m);

/* The tensor of this name, as in the file, before kv_gguf_rename(); NULL when
 * there is none. */
const struct kv_weight *kv_gguf_tensor(const struct kv_gguf_model *m,
                                       const char *name);

/* An architecture of llama.cpp, and its counterpart in transformers. */
struct kv_gguf_family {
    const char *name;              /* general.architecture */
    const char *arch, *model_type; /* names in config.json */
    const char *sliding[2]; /* both names if there is a window; or NULL */
    size_t pattern;   /* every pattern-th layer does not slide; 0: all layers
                       * are alike */
    bool interleaved; /* the two halves of a head's rows of q and k are
                       * interleaved */
    bool apart;       /* gates and ups are two tensors, though the class has one
                       * tensor for both */
    float norm_add;   /* added to norm weights to match transformers */
    /* Fields of config.json that say whether q, k and v have biases and whether
     * q and k have norms; NULL: there is no such field. */
    const char *bias, *qk_norm;
};

/* The model's family.  Fails on an unknown one, listing the known ones, and
 * when the file holds no model. */
int kv_gguf_family(const struct kv_gguf_model *m,
                   const struct kv_gguf_family **family, struct kv_err *e);

/* Whether `families`, names between blanks, contains this family; NULL contains
 * all families. */
bool kv_gguf_of_family(const char *families, const char *family);

/* Whether llama.cpp's converter reorders q's and k's rows for this class of
 * transformers, so that RoPE rotates neighbouring channels in GGUF files
 * only. */
bool kv_gguf_interleaves(const char *arch);

/* The mixture of types by general.file_type, "q4_k_m"; NULL when the key is
 * absent or its value unknown. */
const char *kv_gguf_mixture(const struct kv_gguf_model *m);

/* The model's config.json; the caller calls json_decref().  NULL with a
 * sentence on a missing key, and on an unknown key that could change numbers.
 */
json_t *kv_gguf_config(const struct kv_gguf_model *m, struct kv_err *e);

/* Changes a sentence "PATH: field NAME ..." about that config so that it names
 * the GGUF key, if the field comes from a key. */
void kv_gguf_name_key(const struct kv_gguf_model *m, const char *path,
                      struct kv_err *e);

/* The file's one tensor of a layer's q, k and v, for models that give the three
 * separate names. */
#define KV_GGUF_QKV "attn_qkv.weight"

/* Names of separate tensors for gates and ups, used where the class has one
 * tensor for both. */
#define KV_GGUF_GATE "ffn_gate.weight"
#define KV_GGUF_UP "ffn_up.weight"
#define KV_GGUF_SHARED_GATE "ffn_gate_shexp.weight"
#define KV_GGUF_SHARED_UP "ffn_up_shexp.weight"
#define KV_GGUF_GATES "ffn_gate_exps.weight"
#define KV_GGUF_UPS "ffn_up_exps.weight"

/* For latent attention, if two tensors hold the matrix from latents: keys
 * [heads][latent][nope] and values [heads][value][latent]. */
#define KV_GGUF_K_UP "attn_k_b.weight"
#define KV_GGUF_V_UP "attn_v_b.weight"

/* Gives every tensor its name and order in transformers.  Fails on an unknown
 * tensor.  A tensor whose content is already in config, from kv_gguf_config(),
 * gets an empty name. */
int kv_gguf_rename(struct kv_gguf_model *m, const json_t *config,
                   struct kv_err *e);

/* Changes a sentence "PATH: tensor NAME ...", with transformers' NAME, so that
 * it also has the tensor's name in the GGUF file.  config: as above. */
void kv_gguf_name_tensor(const struct kv_gguf_model *m, const json_t *config,
                         const char *path, struct kv_err *e);

#endif
