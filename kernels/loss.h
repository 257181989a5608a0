/* Losses of predicted tokens, and the divergence of predictions from a
 * base's. */
#ifndef KV_LOSS_H
#define KV_LOSS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_loss {
    float nll, base_nll, kl, dp; /* dp: the target's probability minus the
                                  * base's */
    bool same;                   /* both rank the same token first */
};

/* Writes the log-probabilities of x [n] to log_p, and exp(log_p) to p. */
void kv_log_softmax(const float *x, size_t n, float *log_p, float *p);

/* The loss of logits [n] against a target below n.  base_log_p NULL: no base;
 * else p is exp(base_log_p), and KL is summed where base_log_p is above
 * floor. */
void kv_loss_row(const float *logits, const float *base_log_p, const float *p,
                 float floor, size_t n, int32_t target, struct kv_loss *loss);

/* A part of a base's logits, and the sums that every loss against them
 * needs. */
struct kv_loss_base {
    const float *logits, *p; /* [n]: logits, and exp(logit - the largest) */
    double lse, sum;         /* sum: of p */
    size_t at;               /* index of the largest */
};

/* p: [n], receives exp(logit - the largest); p and logits are kept by
 * pointer. */
struct kv_loss_base kv_loss_base(const float *logits, size_t n, float *p);

/* The loss of kv_loss_row() with floor -infinity, from logits that arrive in
 * parts of the vocabulary.  base: NULL each time, or the same part of a base's
 * logits.  An all-zero sum is empty. */
struct kv_loss_sum {
    size_t n; /* logits so far */
    double lse, base_lse;
    double excess; /* of the base's logits, weighted by the base's
                    * probabilities */
    float target, base_target;
    float top, base_top; /* the largest */
    size_t at, base_at;  /* the indices of the largest */
};

/* Adds the next n logits. */
void kv_loss_add(struct kv_loss_sum *s, const float *logits,
                 const struct kv_loss_base *base, size_t n, int32_t target);
struct kv_loss kv_loss_end(const struct kv_loss_sum *s, bool has_base);

#endif
