/* klt: transform coding in the metric of attention.
 *
 * Per layer, keys before RoPE (or after it) and values, all KV heads as one
 * vector:
 *
 *   y = (x - mean) F,  F = W U      x' = y' G + mean,  G = U^T W^-1
 *
 * W is the square root of a metric M; in this metric |y - y'|^2 measures the
 * damage of the error.  U holds the eigenvectors of the covariance of (x -
 * mean) W (the Karhunen-Loeve transform), so the coefficients y are
 * uncorrelated, with standard deviations sigma, largest first.  Reverse
 * water-filling gives bits to coefficients; many get none, and the others are
 * quantized on a trellis (kernels/trellis/trellis.h).  One token:
 *
 *   | bitstream of all transitions, largest rate first | 0 to 7 zero bits |
 *
 * with the same layout for every token and no scale.  Within a bitstream
 * coefficients are ordered by the rate of their transition, then by variance.
 *
 * Transitions at the bitstream's start, before which there are fewer bits than
 * a state has, quantize each value alone, by Lloyd-Max levels, if their values
 * have whole bits.
 *
 * Parameters:
 *   b       bits per value of a side, fractions too
 *   share   who shares the budget: a layer's side has b to itself (layer), the
 *           layers of a side share it (side), or K and V of all layers (all)
 *   metric  fisher: M is the second moment of the loss's gradient g with
 *           respect to the vector (kvdump --fisher).  |y - y'|^2 / 2 is then
 *           about the expected KL divergence in nats, the same unit for every
 *           layer and side.  Few tokens have most of the sum of |g|^2, so each
 *           g is shortened until |g|^2 is at most its mean.  In the mean and
 *           the covariance of x a token has the weight 1/2 + 1/2 |g|^2 / mean,
 *           where |g|^2 is capped at four times the mean.
 *           attention: for keys, the second moment of the queries of each
 *           head's group; before RoPE each rotary pair's 2x2 block becomes half
 *           its trace, since the angle between query and key varies.  For
 *           values, the sum of Wo^T Wo over the group.  No entries between
 *           heads.
 *           none: the unit matrix
 *   rope    keys are stored before RoPE (pre) or after it (post)
 *   pred    what a token is predicted from (klt_pred.h): nothing (0); values
 *           from the layer's own keys (vk); odd layers also from the even one
 *           below (pair); all layers from the one or two below (1, 2).  sigma,
 *           forward and inverse then belong to the residual
 *   heads   a layer's heads are transformed together (joint), or each by itself
 *           (own): with own, metric and covariance have no entries between
 *           heads, so attention in a head reads only that head's coefficients,
 *           but correlation between heads is not used.  Values are still
 *           predicted from all heads' keys.  In both cases the layer has one
 *           bitstream and one budget
 *   tables  half, as below, or short: a third of the bytes, made for b, share
 *           and code (klt_short.h)
 *   code    trellis, or scalar: Lloyd-Max levels at whole bits
 *
 * Tables in a calibration, which do not depend on share or code, and on b only
 * with pred:
 *   mean     [row]        side, layer; row: n_kv_heads x head_dim
 *   sigma    [row]        descending, with heads=own in each head
 *   unit     [row]        lengths of F's columns
 *   forward  [row][row]   F_ij / unit_j, in fp16: x_i to y_j; with heads=own
 *                         [n_kv_heads][head_dim][head_dim]
 *   inverse  [row][row]   unit_j G_ji, in fp16: y_j to x_i; likewise
 *   trellis_BITSbVALUES [values][kv_trellis_kept()]   of a kind of transition;
 *             error: mean squared error per value on coefficients of unit
 *             variance that were not in the training
 *
 * Prior art: AQUA-KV (arXiv 2501.19392, January 2025: layers predicted from the
 * decoded one below, values from keys), KVTC (transform coding of caches),
 * OSCAR (the queries' second moments), Palu and other low-rank caches, QTIP
 * (the trellis), classic transform coding. */
#ifndef KV_KLT_H
#define KV_KLT_H

#include "kernels/trellis/trellis.h"
#include "lib/scheme.h"

struct kv_calib_set;

/* Kinds of transitions, by rate ascending; 0 is a coefficient that is not
 * coded.  A Lloyd-Max level codes one value.  If two kinds have the same rate,
 * the trellis uses the second, which reaches the same error in half as many
 * transitions, and the first only for the remainder. */
enum { KV_KLT_KINDS = 15 };
extern const struct kv_klt_kind {
    unsigned bits, values;
} kv_klt_kinds[KV_KLT_KINDS];

/* The one-value kind with the same rate as this kind, or KV_KLT_KINDS. */
size_t kv_klt_single(size_t kind);

/* "trellis_1b4": the table of a kind. */
void kv_klt_table_name(size_t kind, char name[32]);

/* One coefficient of a side of a layer. */
struct kv_klt_coef {
    float variance; /* measured in the metric */
    uint16_t index;
    uint8_t kind; /* 0: not coded; else kv_klt_kinds[kind - 1] */
};

/* All coefficients of one side of one layer: the content of a token's
 * bitstream. */
struct kv_klt_unit {
    struct kv_klt_coef *coef; /* [n]; by variance descending for allocate */
    size_t n;
    size_t n_coded; /* coef[0 .. n_coded); set by allocate */
    size_t bytes;   /* bytes of a token, at least 1; set by allocate */
};

/* A unit from a calibration, by variance descending; n is 0 if the unit's
 * tables are missing. */
struct kv_klt_unit kv_klt_unit(const struct kv_calib_set *set, size_t layer,
                               enum kv_side side, size_t row);

/* Minimises the sum of variance * mse[kind] within budget bytes (one token of
 * every unit): each coefficient takes the kind that minimises
 * variance * mse + lambda * rate, for the smallest lambda that fits.  mse
 * [KV_KLT_KINDS]: the error of a coefficient of unit variance; INFINITY: the
 * kind is not used.  Among two used kinds with equal rates it takes the second;
 * Coefficients that do not fill a transition take the next lower kind.  Returns
 * lambda. */
double kv_klt_allocate(struct kv_klt_unit *unit, size_t n_units, size_t budget,
                       const double *mse);

/* Allocates the bits of one unit for a given lambda, as kv_klt_allocate()
 * does. */
void kv_klt_assign(struct kv_klt_unit *unit, double lambda, const double *mse);

/* The codec's unit, allocated among all units that share its budget. */
struct kv_klt_unit kv_klt_share(const struct kv_codec *c,
                                const struct kv_calib_set *set,
                                const double *mse);

/* The number of values of a row that are transformed together. */
size_t kv_klt_part(const struct kv_spec *s, const struct kv_shape *shape);

int kv_klt_trainable(const struct kv_spec *s, struct kv_dump *dump,
                     struct kv_err *e);
int kv_klt_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                     uint64_t seed, struct kv_calib_set *out, struct kv_err *e);

#endif
