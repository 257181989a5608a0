/* Chooses a spec for each place (the keys or the values of one layer), so that
 * the bits stay within a budget and the error is minimal: the content of a
 * layer file (lib/mixed.h). */
#ifndef KV_ALLOCATE_H
#define KV_ALLOCATE_H

#include "eval/measure.h"
#include "eval/ppl.h"

/* One spec at one place. */
struct kv_offer {
    double bytes; /* bytes stored at this place, measured */
    double cost;  /* error if only this place is quantized */
};

/* A place is the keys or the values of one layer.  All functions here add up
 * the costs of places, as if errors of keys and values, and of different
 * layers, were independent.  A measurement of the whole choice shows how far
 * this holds. */

/* offer: [n_places][n_specs]; values: the number of values that all places
 * store together.  choice: [n_places], the index of a spec for each place.  The
 * choice minimizes the sum of costs subject to bytes <= bits * values / 8; of
 * choices with equal cost it is the one with the fewest bytes.
 *
 * The search extends partial choices place by place and drops each one that
 * another beats in both bytes and cost.  The result is exact while at most
 * KV_ALLOCATE_SUMS partial choices remain, which holds if schemes take the same
 * bytes in each layer.  With more, the search keeps only the best in each of
 * KV_ALLOCATE_SUMS equal intervals of bytes: the budget holds, the cost may be
 * slightly above the minimum.
 *
 * Fails, naming the smallest possible bits, when the budget cannot be met. */
enum { KV_ALLOCATE_SUMS = 1 << 14 };
int kv_allocate(const struct kv_offer *offer, size_t n_places, size_t n_specs,
                double values, double bits, size_t *choice, struct kv_err *e);

/* offer: [layers of the dump * KV_SIDES][n_specs], layer by layer, K first.
 * Cost: the squared error of the attention output over its square, with this
 * side alone stored, at the plan's query positions (n_queries > 0).  Fails when
 * kv_measure() does. */
int kv_allocate_attention(const struct kv_measure_plan *p,
                          struct kv_offer *offer, double *values,
                          struct kv_err *e);

/* Fills offer as above, for all layers of the model.  Cost: the mean divergence
 * from the base line, nats per token, with only this place stored and f32
 * elsewhere.  p: new, its plan with kl; spec: [n_specs], fitted, by the
 * protocol.  Runs the model 1 + n_layers * KV_SIDES * n_specs times. */
int kv_allocate_kl(struct kv_ppl *p, const struct kv_shape *shape,
                   const struct kv_spec *spec, size_t n_specs,
                   const struct kv_calib *calib, struct kv_offer *offer,
                   double *values, struct kv_err *e);

#endif
