/* Token policies: which tokens a cache keeps.
 *
 * A policy (one file in lib/policies/) composes with any scheme that stores
 * tokens one layer at a time.  A policy that reassigns positions does not
 * compose with schemes that attend on their own codes.  The spec is
 *
 *   streamingllm:s4w1020+kivi:b2g32        [policy[:letters]+]spec
 *
 * After every step of decoding, or once after the prompt, the policy names the
 * tokens that a KV head of a layer keeps; the others are dropped for good.  A
 * token's codes do not depend on the dropped tokens (codec.h, the law): the
 * whole sequence is cut into blocks, and a block is held until all of its
 * tokens are dropped.
 *
 * A policy with patterns drops nothing.  A query of the prompt sees some of the
 * tokens (kernels/pattern.h); a query after the prompt sees all of them. */
#ifndef KV_POLICY_H
#define KV_POLICY_H

#include "kernels/pattern.h"
#include "lib/base/err.h"
#include "lib/shape.h"
#include "lib/spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers of tokens that a KV head keeps. */
struct kv_policy_plan {
    size_t budget;        /* tokens in all, at least 1 */
    size_t first, newest; /* always kept; first + newest <= budget */
};

/* The tokens that a KV head holds, by position ascending. */
struct kv_policy_held {
    size_t n, head_dim;
    const uint32_t *position; /* [n] */
    const float *key;         /* [n][head_dim], after RoPE, as attention sees
                               * them */
    const double *mass;       /* [n] softmax weights of the queries that enum
                               * kv_policy_mass names, summed over these queries
                               * and the query heads of the KV head */
};

enum kv_policy_mass {
    KV_MASS_NONE,
    KV_MASS_ALL,   /* mass from all queries so far */
    KV_MASS_NEWEST /* from the newest queries() of the prompt or the step */
};

struct kv_calib;
struct kv_calib_set;
struct kv_dump;

struct kv_policy_patterns {
    /* head [n_heads]: the patterns of a layer's heads in a prompt of n tokens.
     * calib may be NULL; fails when it lacks the policy's set. */
    int (*find)(const struct kv_policy_spec *p, const struct kv_calib *calib,
                const struct kv_shape *s, size_t layer, size_t n,
                struct kv_pattern *head, struct kv_err *e);
    /* Makes the tables of the policy's set, as struct kv_training does
     * (lib/scheme.h); both NULL: find() needs no set. */
    int (*check_dump)(struct kv_dump *dump, struct kv_err *e);
    int (*search)(const struct kv_policy_spec *p, struct kv_dump *dump,
                  struct kv_calib_set *out, struct kv_err *e);
};

struct kv_policy {
    const char *name, *brief;      /* brief: one line, with the paper */
    const struct kv_param *params; /* letters, numbers; ends with name NULL */
    bool prompt;    /* drops tokens once, after the prompt; else after every
                     * step */
    bool by_layer;  /* the KV heads of a layer keep the same tokens, by the mean
                     * of their scores */
    bool reassigns; /* the i-th held token stands at position i */
    enum kv_policy_mass mass;

    /* KV_MASS_NEWEST: the number of queries whose weights count, at least 1. */
    size_t (*queries)(const struct kv_policy_spec *p);
    /* The plan for a layer and n tokens.  n counts the prompt, or the whole
     * window if the policy drops tokens after every step. */
    struct kv_policy_plan (*plan)(const struct kv_policy_spec *p,
                                  const struct kv_shape *s, size_t layer,
                                  size_t n);
    /* NULL: the policy drops tokens.  Otherwise, of the other members, only
     * name, brief and params are set. */
    const struct kv_policy_patterns *patterns;
    /* Fills score [n], which is zero before.  Tokens with higher scores are
     * kept; of two equal scores, the newer token.  NULL: all scores are
     * equal. */
    void (*score)(const struct kv_policy_spec *p,
                  const struct kv_policy_held *h, double *score);
};

/* Every policy, NULL at the end. */
extern const struct kv_policy *const kv_policies[];

/* Reads "policy[:letters]+" at the beginning of a spec's text and returns the
 * beginning of the scheme.  A text that begins otherwise is a spec without a
 * policy.  A wrong policy gives NULL and a sentence. */
const char *kv_policy_parse(struct kv_policy_spec *p, const char *text,
                            struct kv_err *e);

/* Writes "streamingllm:s4w1020+", or "" without a policy.  Returns as
 * snprintf(). */
int kv_policy_print(const struct kv_policy_spec *p, char *text, size_t n);

/* Whether the spec has a policy, and this policy drops tokens. */
bool kv_policy_drops(const struct kv_policy_spec *p);

/* kv_policy_calibrated(): whether the policy's patterns come from a
 * calibration.  kv_policy_calib_key(): the key of their set there,
 * "minference:b0.25". */
bool kv_policy_calibrated(const struct kv_policy_spec *p);
void kv_policy_calib_key(const struct kv_policy_spec *p,
                         char key[KV_SPEC_CHARS]);

/* Fails if a spec's policy has patterns, naming the spec.  Called by tools
 * whose attention is dense. */
int kv_policy_dense(const struct kv_spec *specs, size_t n, struct kv_err *e);
/* The same, for tools that compute on a GPU, which finds no patterns. */
int kv_policy_on_device(const struct kv_spec *specs, size_t n,
                        struct kv_err *e);

/* The value of a letter that the policy has. */
double kv_policy_get(const struct kv_policy_spec *p, const char *name);

/* The number of tokens of a budget letter.  A value up to 1 is a share of n
 * tokens, rounded up; a value above 1 is a number of tokens. */
size_t kv_policy_tokens(double budget, size_t n);

/* keep [n]: whether each of n held tokens stays.  score [n]. */
void kv_policy_choose(const struct kv_policy_plan *plan, const double *score,
                      size_t n, bool *keep);

#endif
