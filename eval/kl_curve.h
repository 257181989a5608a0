/* Divergence by position along the scored tokens of a window, and the position
 * where a spec's first guess first differs from the base's. */
#ifndef KV_KL_CURVE_H
#define KV_KL_CURVE_H

#include "eval/window_mean.h"
#include "kernels/loss.h"

/* The maximum number of buckets of a curve. */
enum { KV_KL_BUCKETS = 16 };

/* n: the scored tokens of a window.  All other members begin as zeros. */
struct kv_kl_curve {
    size_t n;
    struct kv_window_mean kl[KV_KL_BUCKETS], same[KV_KL_BUCKETS];
    struct kv_window_mean slope; /* slopes of KL, nats per token, by least
                                  * squares; empty below 2 tokens */
    struct kv_window_mean agree; /* the number of leading tokens that have the
                                  * base's first guess */
};

/* Adds one window's scores [n], which have kl and same. */
void kv_kl_curve_window(struct kv_kl_curve *c, const struct kv_loss *t);

/* The number of buckets; 0 before any window.  Buckets have equal width, except
 * a shorter last one if KV_KL_BUCKETS does not divide n.  If n is below
 * KV_KL_BUCKETS, each token is a bucket. */
size_t kv_kl_curve_buckets(const struct kv_kl_curve *c);
/* A bucket's first and last scored token, counted from 1. */
void kv_kl_curve_ends(const struct kv_kl_curve *c, size_t bucket, size_t *first,
                      size_t *last);

#endif
