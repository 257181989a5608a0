/* Small random models, as files: a list of tensors that a test may spoil
 * before it is written. */
#ifndef KV_TINY_MODEL_H
#define KV_TINY_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_model;

struct tiny_tensor {
    char name[96];
    const char *dtype; /* "F32", "F16", "BF16"; others are written as zeros */
    size_t rows, cols; /* cols 0: a vector */
    size_t shard;      /* written to this file */
    double *x;         /* the values as stored, after rounding to dtype */
};

struct tiny_model {
    /* The requested model; tiny_init() fills in the rest. */
    const char *arch, *dtype;
    size_t hidden, inter, n_layers, n_heads, n_kv_heads, head_dim, n_vocab;
    bool tied, qkv_bias, o_bias, mlp_bias, qk_norm;
    bool gemma; /* layers of Gemma 2 or 3; `more` says which of them have a
                 * sliding window */
    size_t window;
    bool alternate;        /* every other layer has a sliding window, the first
                            * included */
    double cap, logit_cap; /* Gemma 2's caps */
    const char *more; /* more fields of config.json: ", \"a\": 1", or NULL */
    size_t n_shards;  /* 0: model.safetensors, without an index */

    struct tiny_tensor *tensor;
    size_t n_tensors;
    char config[2048];
};

/* A Llama of 3 layers, 6 query and 2 KV heads, F32, in one file. */
extern const struct tiny_model tiny_llama;

/* Makes the config and the tensors, random from a fixed seed. */
void tiny_init(struct tiny_model *m);
void tiny_clear(struct tiny_model *m);

/* Returns tiny_llama, initialised, with the features of an architecture, a type
 * of weights or a RoPE scaling.  The variants together take every path of the
 * forward pass. */
enum { TINY_VARIANTS = 10 };
struct tiny_model tiny_variant(size_t i);

/* The tensor of this name; fails the test if none exists. */
struct tiny_tensor *tiny_find(const struct tiny_model *m, const char *name);
void tiny_add(struct tiny_model *m, const char *name, size_t rows, size_t cols);
void tiny_drop(struct tiny_model *m, const char *name);

/* Replaces `from`, which must occur, by `to` in the config. */
void tiny_config(struct tiny_model *m, const char *from, const char *to);

/* Writes config.json and the tensors to the folder. */
void tiny_write(const struct tiny_model *m, const char *dir);

/* Writes the model to the test's folder and opens it; the caller frees it. */
struct kv_model *tiny_open(const struct tiny_model *m);

/* Computes the model's logits [n][n_vocab] in double, straight from the
 * equations. */
void tiny_logits(const struct tiny_model *m, const int32_t *tokens, size_t n,
                 double *logits);
/* A change to the forward pass: one channel of a key before RoPE, or of a value
 * vector, grows by `by`. */
struct tiny_nudge {
    size_t layer, token;
    size_t i; /* head * head_dim + channel */
    bool is_value;
    double by;
};

/* Sum over the n - 1 targets of -log p(next token), in nats, in double.
 * nudge may be NULL. */
double tiny_loss(const struct tiny_model *m, const int32_t *tokens, size_t n,
                 const struct tiny_nudge *nudge);
/* Attends for one query over n keys: out [d] = softmax(q k / sqrt(d)) v; logits
 * are capped unless cap is 0. */
void tiny_attend(const double *q, const double *k, const double *v, size_t n,
                 size_t stride, size_t d, double cap, double *out);

/* Writes | header length | header | data |, each as given, right or wrong. */
void tiny_write_safetensors(const char *path, uint64_t n, const char *header,
                            const void *data, size_t data_bytes);
void tiny_write_text(const char *dir, const char *name, const char *text);

#endif
