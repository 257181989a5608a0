/* Divergence by position: how it moves along the scored tokens of a window, and
 * where a spec's first guess first leaves the base's. */
#ifndef KV_KL_CURVE_H
#define KV_KL_CURVE_H

#include "eval/window_mean.h"
#include "kernels/loss.h"

/* The most buckets of a curve. */
enum { KV_KL_BUCKETS = 16 };

/* n: the scored tokens of a window.  All other members begin as zeros. */
struct kv_kl_curve {
    size_t n;
    struct kv_window_mean kl[KV_KL_BUCKETS], same[KV_KL_BUCKETS];
    struct kv_window_mean slope; /* of KL, nats per token: least squares; empty
                                  * below 2 tokens */
    struct kv_window_mean agree; /* leading tokens with the base's first
                                  * guess */
};

/* One window's scores [n], which have kl and same. */
void kv_kl_curve_window(struct kv_kl_curve *c, const struct kv_loss *t);

/* Buckets of equal width, the last one shorter where KV_KL_BUCKETS does not
 * divide n; one a token where n is less.  0 before any window. */
size_t kv_kl_curve_buckets(const struct kv_kl_curve *c);
/* Its first and last scored token, counted from 1. */
void kv_kl_curve_ends(const struct kv_kl_curve *c, size_t bucket, size_t *first,
                      size_t *last);

#endif
