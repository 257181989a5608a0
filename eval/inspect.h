/* Statistics of a codec's input, channel by channel, and of its use of
 * codebooks. */
#ifndef KV_INSPECT_H
#define KV_INSPECT_H

#include "lib/base/err.h"
#include "lib/codec.h"

#include <stddef.h>
#include <stdint.h>

struct kv_dump;

/* The values of one channel of one KV head: sums of powers. */
struct kv_channel {
    double max; /* largest |x| */
    double sum, square, cube, fourth;
    size_t n;
};

void kv_channel_add(struct kv_channel *c, float x);
double kv_channel_mean(const struct kv_channel *c);
double kv_channel_std(const struct kv_channel *c);
/* The third central moment over the cubed deviation. */
double kv_channel_skewness(const struct kv_channel *c);
/* The fourth central moment over the squared variance, 3 for a Gaussian.  Both
 * are NaN if all values are equal. */
double kv_channel_kurtosis(const struct kv_channel *c);

/* How often each centroid of a codebook was chosen. */
struct kv_book_use {
    uint64_t *count; /* [k] */
    size_t k;
};

/* The share of centroids that were ever chosen, and the perplexity of the index
 * (1 to k).  Both are NaN if none was chosen. */
double kv_book_used(const struct kv_book_use *b);
double kv_book_perplexity(const struct kv_book_use *b);

struct kv_inspected {
    size_t n_heads, dim;
    struct kv_channel *channel; /* [n_heads][dim] */
    double *singular;           /* [n_heads][dim], singular values of the matrix
                                 * [tokens][dim], the largest first */
    size_t n_books;             /* 0: the scheme has no codebooks */
    struct kv_book_use *book;
    size_t clipped; /* values beyond fp16's range (kv_codec_clipped()) */
};

/* Covers all windows of the codec's layer and side, every token quantized.
 * Keys are in the codec's form (before or after RoPE), rounded by the codec,
 * and transformed if it has codebooks.  Any number of threads gives the same
 * bits.  Fails as kv_dump_read() does. */
int kv_inspect(struct kv_inspected *i, struct kv_dump *d,
               const struct kv_codec *c, struct kv_err *e);
void kv_inspected_clear(struct kv_inspected *i);

#endif
