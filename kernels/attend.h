/* Causal softmax attention: the tokens that queries see, and two versions in
 * f32.
 *
 * A view says which tokens a query sees and how a score becomes a logit.  Each
 * attention has its own storage of keys and values: rows of floats here, tiles
 * of codes (tiles/tiles.h), a scheme's codes (lib/codec.h), a device (cuda/).
 * Query i stands at position p = first + i and sees the tokens j with
 *
 *   j <= p,  j > p - window,  j alive
 *
 *   s_j = cap * tanh((scale * q . k_j + shift_j) / cap) + slope * (j - p)
 *   out = sum_j w_j v_j,  w = softmax(s)
 *
 * A sink logit is an additional s that belongs to no token: it takes its share
 * of the weights and has no value.  A query that sees no token gives zeros.  A
 * version that does not support a field returns false from its function
 * ..._takes() for views that set it; the plain version supports all fields. */
#ifndef KV_ATTEND_H
#define KV_ATTEND_H

#include "lib/base/public.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KV_PUBLIC_BEGIN

/* Loops over fewer values than this run in one thread: starting more threads
 * takes longer than such a loop. */
enum { KV_ATTEND_WORTH_THREADS = 1 << 19 };

/* A zero field has its default: a view with only shape, n, nq, first and scale
 * is plain causal attention. */
struct kv_attend_view {
    size_t n_seqs; /* sequences of equal length; each one attends to itself */
    size_t n_heads, n_kv_heads, head_dim; /* n_kv_heads divides n_heads */
    size_t n;         /* tokens of a sequence, at positions [0, n) */
    size_t nq, first; /* queries of a sequence, first + nq <= n */
    float scale;
    float cap;          /* soft cap on scaled scores; 0: none */
    const float *shift; /* added to scaled scores, [n_seqs][n_heads][nq][n];
                         * NULL: none */
    const float *slope; /* ALiBi, [n_heads], per token; NULL: none */
    const float *sink_logit; /* [n_heads]; NULL: none */
    size_t window;           /* newest tokens that a query sees; 0: all */
    /* Tokens that were not dropped: bit j % 64 of word j / 64,
     * [n_seqs][n_kv_heads][kv_attend_words(n)]; NULL: all are alive. */
    const uint64_t *alive;
    /* Each token's weights, summed over the queries and over the query heads of
     * its KV head, are added to this [n_seqs][n_kv_heads][n]; NULL: not
     * wanted. */
    double *mass;
};

/* The number of 64-bit words for n tokens. */
static inline size_t kv_attend_words(size_t n)
{
    return (n + 63) / 64;
}

/* A view of only sequence i. */
static inline struct kv_attend_view
kv_attend_seq(const struct kv_attend_view *v, size_t i)
{
    const size_t head = i * v->n_kv_heads;
    struct kv_attend_view one = *v;

    one.n_seqs = 1;
    one.shift = v->shift ? v->shift + i * v->n_heads * v->nq * v->n : NULL;
    one.alive = v->alive ? v->alive + head * kv_attend_words(v->n) : NULL;
    one.mass = v->mass ? v->mass + head * v->n : NULL;
    return one;
}

/* Query i sees tokens in [kv_attend_begin(), kv_attend_end()); the last of them
 * is the query's own token. */
static inline size_t kv_attend_end(const struct kv_attend_view *v, size_t i)
{
    return v->first + i + 1;
}

static inline size_t kv_attend_begin(const struct kv_attend_view *v, size_t i)
{
    const size_t end = kv_attend_end(v, i);

    return v->window && v->window < end ? end - v->window : 0;
}

/* Whether no field changes a score or hides a token. */
static inline bool kv_attend_simple(const struct kv_attend_view *v)
{
    return !v->window && !v->slope && v->cap == 0 && !v->alive && !v->shift;
}

/* Turns s, the scaled scores of query i of this query head with tokens [from,
 * to), into logits; tokens that the query does not see get -infinity. */
void kv_attend_logits(const struct kv_attend_view *v, size_t seq, size_t head,
                      size_t i, size_t from, size_t to, float *s);

/* Turns s [n], logits of this query head, into weights; with a sink logit they
 * sum to less than 1.  NaN if all logits are -infinity and there is no sink
 * logit. */
void kv_attend_weights(const struct kv_attend_view *v, size_t head, size_t n,
                       float *s);

/* Keys or values as rows, [n_seqs][n][n_kv_heads][head_dim] each.  A token's
 * stored form changes once in its life, from unquantized (fp16 or exact) to
 * quantized (decoded codes).  Query i sees token j quantized when sinks <= j <
 * until[i].  This covers every cache that obeys the law of lib/codec.h, at
 * every moment of its life. */
struct kv_attend_side {
    const float *unquantized; /* NULL: no token is ever unquantized */
    const float *quantized;   /* NULL: no token is ever quantized */
    size_t sinks;             /* first tokens, which are never quantized */
    const uint32_t *until;    /* [nq]; NULL if a form is NULL */
};

/* q, out: [n_seqs][q_rows][n_heads][head_dim].  The view's queries are the
 * first nq <= q_rows rows of a sequence; out's other rows stay. */
struct kv_attend_job {
    struct kv_attend_view view;
    const float *q;
    float *out;
    size_t q_rows;
    struct kv_attend_side k, v;
};

/* Products (gemm.h) and softmax are in f32, in a fixed order: any number of
 * threads gives the same bits.  For a view with `mass`, which this version does
 * not compute, kv_attend() calls kv_attend_c(). */
bool kv_attend_takes(const struct kv_attend_view *v);
void kv_attend(const struct kv_attend_job *job);

/* The definition, in double; out is rounded once.  To compute only `mass`, set
 * out and both forms of v to NULL.  Threads divide sequences and KV heads, so
 * any number of threads gives the same bits. */
void kv_attend_c(const struct kv_attend_job *job);

KV_PUBLIC_END

#endif
