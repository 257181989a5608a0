/* Token policies: which tokens a cache keeps.
 *
 * A policy (one file in lib/policies/) composes with any scheme that stores
 * tokens one layer at a time; one that reassigns positions, with those that do
 * not attend on their own codes:
 *
 *   streamingllm:s4w1020+kivi:b2g32        [policy[:letters]+]spec
 *
 * After every step of decoding, or once after the prompt, it names the tokens
 * that a KV head of a layer keeps; the others are dropped for good.  A token's
 * codes do not depend on what is dropped (codec.h, the law): blocks are those
 * of the whole sequence, and a block is held until all of its tokens are
 * dropped.
 *
 * A policy with patterns drops nothing: in a prompt each query sees some of the
 * tokens (kernels/pattern.h), later ones see all. */
#ifndef KV_POLICY_H
#define KV_POLICY_H

#include "kernels/pattern.h"
#include "lib/base/err.h"
#include "lib/shape.h"
#include "lib/spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a KV head keeps. */
struct kv_policy_plan {
    size_t budget;        /* tokens in all, at least 1 */
    size_t first, newest; /* of these, always; first + newest <= budget */
};

/* The tokens that a KV head holds, by position ascending. */
struct kv_policy_held {
    size_t n, head_dim;
    const uint32_t *position; /* [n] */
    const float *key;         /* [n][head_dim], after RoPE, as attention sees
                               * them */
    const double *mass;       /* [n] softmax weights of the queries in question
                               * (enum kv_policy_mass), summed over them and
                               * the query heads of the KV head */
};

enum kv_policy_mass {
    KV_MASS_NONE,
    KV_MASS_ALL,   /* of all queries so far */
    KV_MASS_NEWEST /* of the newest queries() of the prompt or the step */
};

struct kv_calib;
struct kv_calib_set;
struct kv_dump;

struct kv_policy_patterns {
    /* head [n_heads]: those of a layer in a prompt of n tokens.  Fails when the
     * calibration, which may be NULL, lacks what it needs. */
    int (*find)(const struct kv_policy_spec *p, const struct kv_calib *calib,
                const struct kv_shape *s, size_t layer, size_t n,
                struct kv_pattern *head, struct kv_err *e);
    /* Makes the tables of such a set, as struct kv_training does (codec.h);
     * both NULL: find() needs none. */
    int (*check_dump)(struct kv_dump *dump, struct kv_err *e);
    int (*search)(const struct kv_policy_spec *p, struct kv_dump *dump,
                  struct kv_calib_set *out, struct kv_err *e);
};

struct kv_policy {
    const char *name, *brief;      /* brief: one line, with the paper */
    const struct kv_param *params; /* letters, numbers; ends with name NULL */
    bool prompt;    /* drops once, after the prompt; else after every step */
    bool by_layer;  /* the KV heads of a layer keep the same tokens, by the mean
                     * of their scores */
    bool reassigns; /* token i of those held stands at position i */
    enum kv_policy_mass mass;

    /* KV_MASS_NEWEST: whose weights count, at least 1. */
    size_t (*queries)(const struct kv_policy_spec *p);
    /* Of layer's n tokens: of the prompt, or of the whole window where the
     * policy drops after every step. */
    struct kv_policy_plan (*plan)(const struct kv_policy_spec *p,
                                  const struct kv_shape *s, size_t layer,
                                  size_t n);
    /* NULL: it drops tokens.  Else of the others only name, brief and params
     * are there. */
    const struct kv_policy_patterns *patterns;
    /* score [n], cleared: higher scores are kept, of equal ones the newer
     * token's.  NULL: all are equal. */
    void (*score)(const struct kv_policy_spec *p,
                  const struct kv_policy_held *h, double *score);
};

/* Every policy, NULL at the end. */
extern const struct kv_policy *const kv_policies[];

/* Reads "policy[:letters]+" at the beginning of a spec's text; gives where the
 * scheme begins.  A text that begins otherwise is a spec without a policy.
 * NULL, and a sentence, for a wrong one. */
const char *kv_policy_parse(struct kv_policy_spec *p, const char *text,
                            struct kv_err *e);

/* "streamingllm:s4w1020+", "" without a policy; what snprintf() gives. */
int kv_policy_print(const struct kv_policy_spec *p, char *text, size_t n);

/* Whether there is a policy, and one that drops tokens. */
bool kv_policy_drops(const struct kv_policy_spec *p);

/* Whether the policy has patterns that a search finds; and the key of their set
 * in a calibration: "minference:b0.25". */
bool kv_policy_calibrated(const struct kv_policy_spec *p);
void kv_policy_calib_key(const struct kv_policy_spec *p,
                         char key[KV_SPEC_CHARS]);

/* Fails, naming it, where a spec's policy has patterns: for tools whose
 * attention is dense. */
int kv_policy_dense(const struct kv_spec *specs, size_t n, struct kv_err *e);

/* The value of a letter that the policy has. */
double kv_policy_get(const struct kv_policy_spec *p, const char *name);

/* A budget as a letter gives it: a share of n tokens, rounded up, to 1; above
 * it a number of tokens. */
size_t kv_policy_tokens(double budget, size_t n);

/* keep [n]: whether each of n held tokens stays.  score [n]. */
void kv_policy_choose(const struct kv_policy_plan *plan, const double *score,
                      size_t n, bool *keep);

#endif
