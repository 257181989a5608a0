/* How the keys of a GGUF file become config.json; for gguf_config.c and
 * gguf_rope.c alone. */
#ifndef KV_MODEL_GGUF_MAKER_H
#define KV_MODEL_GGUF_MAKER_H

#include "lib/model/arch.h"
#include "lib/model/gguf_model.h"

/* The keys of the family, and the config.json made of them. */
struct kv_gguf_maker {
    const struct kv_gguf_model *m;
    const struct kv_gguf *g; /* the part that has the keys */
    const struct kv_gguf_family *f;
    const struct kv_arch *arch;
    json_t *config;
};

/* *v: the value of the key "FAMILY.key", NULL when there is none. */
int kv_gguf_maker_get(const struct kv_gguf_maker *k, const char *key,
                      enum kv_gguf_kind kind, const struct kv_gguf_value **v,
                      struct kv_err *e);

/* A finite number from 0 on; *out is left alone when there is none. */
int kv_gguf_maker_real(const struct kv_gguf_maker *k, const char *key,
                       double *out, struct kv_err *e);

/* A field of the config made so far; 0 when it is absent. */
int64_t kv_gguf_maker_int(const struct kv_gguf_maker *k, const char *field);

void kv_gguf_set_int(json_t *to, const char *field, int64_t x);

/* Sets a field; a NaN or an infinity becomes 0, which no such field may be. */
void kv_gguf_set_real(json_t *to, const char *field, double x);

/* Sets rope_theta, rope_scaling and partial_rotary_factor, after head_dim.
 * Fails where llama.cpp would compute a RoPE that config.json cannot express.
 */
int kv_gguf_rope(const struct kv_gguf_maker *k, struct kv_err *e);

/* Latent attention (gguf_latent.c).  The class and model_type of a deepseek2,
 * by how experts are chosen. */
int kv_gguf_deepseek(const struct kv_gguf_maker *k, const char *names[2],
                     struct kv_err *e);

/* The sizes of its heads, after the keys that are a field each. */
int kv_gguf_latent(const struct kv_gguf_maker *k, struct kv_err *e);

#endif
