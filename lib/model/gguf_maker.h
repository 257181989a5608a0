/* How the keys of a GGUF file become config.json; only for the files
 * gguf_*.c. */
#ifndef KV_MODEL_GGUF_MAKER_H
#define KV_MODEL_GGUF_MAKER_H

#include "lib/model/arch.h"
#include "lib/model/gguf_model.h"

/* A key without the family's name before it ("llama."), and the equivalent
 * field of config.json by its usual name.  family: names of families between
 * blanks; NULL: all families without an earlier row.  field NULL: other code
 * reads the key, or the key has no effect on the numbers. */
struct kv_gguf_row {
    const char *key, *family, *field;
    enum kv_gguf_kind kind;
};

/* The row of a key; NULL: the key is not known. */
const struct kv_gguf_row *kv_gguf_row(const char *key, const char *family);

/* The family's keys, and the config.json made from them. */
struct kv_gguf_maker {
    const struct kv_gguf_model *m;
    const struct kv_gguf *g; /* the file part that has the keys */
    const struct kv_gguf_family *f;
    const struct kv_arch *arch;
    json_t *config;
};

/* *v: the value of the key "FAMILY.key", NULL when there is none. */
int kv_gguf_maker_get(const struct kv_gguf_maker *k, const char *key,
                      enum kv_gguf_kind kind, const struct kv_gguf_value **v,
                      struct kv_err *e);

/* *out: the key's value, a finite number >= 0; unchanged if the key is
 * absent. */
int kv_gguf_maker_real(const struct kv_gguf_maker *k, const char *key,
                       double *out, struct kv_err *e);

/* The value of a key that must exist and be at least 1. */
int kv_gguf_maker_size(const struct kv_gguf_maker *k, const char *key,
                       int64_t *n, struct kv_err *e);

/* *v: a list of counts, one for each block; NULL: the key is absent or no
 * list. */
int kv_gguf_maker_list(const struct kv_gguf_maker *k, const char *name,
                       const struct kv_gguf_value **v, struct kv_err *e);

/* Whether any layer has a bias of any of these parts; the list ends with
 * NULL. */
bool kv_gguf_has_bias(const struct kv_gguf_model *m, const char *const *part);

/* A field of the config made so far; 0 when it is absent. */
int64_t kv_gguf_maker_int(const struct kv_gguf_maker *k, const char *field);

void kv_gguf_set_int(json_t *to, const char *field, int64_t x);

/* Sets a field; a NaN or an infinity becomes 0, which the reader of these
 * fields rejects. */
void kv_gguf_set_real(json_t *to, const char *field, double x);

/* Sets rope_theta, rope_scaling and partial_rotary_factor, after head_dim.
 * Fails where llama.cpp would compute a RoPE that config.json cannot express.
 */
int kv_gguf_rope(const struct kv_gguf_maker *k, struct kv_err *e);

/* Latent attention (gguf_latent.c).  The class and model_type of a deepseek2
 * follow from how it chooses experts. */
int kv_gguf_deepseek(const struct kv_gguf_maker *k, const char *names[2],
                     struct kv_err *e);

/* Sets the head sizes of latent attention; called after the keys that map to
 * one field each. */
int kv_gguf_latent(const struct kv_gguf_maker *k, struct kv_err *e);

/* Sets the kinds and sizes of layers without attention (gguf_mixer.c); called
 * after the keys that map to one field each. */
int kv_gguf_mixer(const struct kv_gguf_maker *k, struct kv_err *e);

/* Whether head sizes and RoPE depend on the kind of layer (Gemma 4). */
static inline bool kv_gguf_by_kind(const struct kv_gguf_maker *k)
{
    return k->arch->by_kind && !k->arch->altup;
}

/* Sets the embeddings of layers, Gemma 3n's sparse MLPs, and Gemma 4's fields
 * for each kind of layer, RoPE included (gguf_kind.c); called after layer_types
 * is set. */
int kv_gguf_kind(const struct kv_gguf_maker *k, struct kv_err *e);

#endif
