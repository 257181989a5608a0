/* Sparse attention over a prompt, by the patterns of MInference (arXiv
 * 2407.02490, section 3).
 *
 * Queries are processed in blocks of 64, [m0, m1).  The pattern of a query head
 * says which tokens a block sees; each query of the block sees these tokens up
 * to itself:
 *
 *   a-shape         [0, first), and the newest `second` of query m0:
 *                   [m0 + 1 - second, m1)
 *   vertical-slash  `first` tokens, vertical lines of the matrix of weights;
 *                   and `second` distances s, its slash lines, each as the
 *                   square [m0 - s, m1 - s)
 *   block-sparse    `first` blocks of 64 tokens
 *
 * The pattern takes the lines with the most weight, summed over the softmax of
 * the last 64 queries; the first 30 tokens and the nearest 100 distances come
 * before all others.  It takes the blocks whose mean key has the largest
 * product with the block's mean query; the block itself comes first.  Among
 * equals the first are taken.  A block always sees its own tokens.
 *
 * Tokens that a block sees are gathered, and attended to densely (attend.h);
 * pairs outside the pattern are not computed. */
#ifndef KV_PATTERN_H
#define KV_PATTERN_H

#include "kernels/attend.h"

enum { KV_PATTERN_BLOCK = 64, KV_PATTERN_FIRST = 30, KV_PATTERN_NEAREST = 100 };

enum kv_pattern_kind {
    KV_A_SHAPE,
    KV_VERTICAL_SLASH,
    KV_BLOCK_SPARSE,
    KV_PATTERN_KINDS
};
const char *kv_pattern_name(enum kv_pattern_kind kind); /* "a-shape" */

/* A query head's pattern, in counts; a count above the number that exists means
 * all.  first: at least 1 for block-sparse; second: at least 1, unused by
 * block-sparse. */
struct kv_pattern {
    enum kv_pattern_kind kind;
    size_t first, second;
};

/* Whether the view is a prompt's: its queries are the first nq tokens, and of
 * the optional fields it uses only cap and sink_logit. */
bool kv_pattern_takes(const struct kv_attend_view *v);

/* Attention of a prompt, head: [n_heads].  Each side of the job has one form.
 * Returns how many of the kv_pattern_all_pairs() pairs of a query and a token
 * were computed.  Any number of threads gives the same bits.  If all tokens are
 * seen, the numbers are kv_attend()'s up to rounding. */
size_t kv_pattern_attend(const struct kv_attend_job *a,
                         const struct kv_pattern *head);

/* The number of pairs in dense attention over all sequences and query heads. */
size_t kv_pattern_all_pairs(const struct kv_attend_view *v);

/* Ranks tokens, distances or blocks for a pattern of this kind, for one query
 * head of a sequence.  An index counts the pairs of several patterns without
 * computing attention. */
struct kv_pattern_index;
struct kv_pattern_index *kv_pattern_index_new(const struct kv_attend_job *a,
                                              size_t seq, size_t head,
                                              enum kv_pattern_kind kind);
void kv_pattern_index_free(struct kv_pattern_index *x);
/* p: a pattern of the index's kind. */
size_t kv_pattern_pairs(const struct kv_pattern_index *x,
                        const struct kv_pattern *p);

#endif
