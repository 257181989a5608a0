/* Scores of predicted tokens: losses, and divergence from a base model.
 *
 * Scores are added token by token and window by window in order, so that any
 * number of threads gives the same bits.  Each token's divergence is kept as a
 * float, for the percentiles. */
#ifndef KV_SCORE_H
#define KV_SCORE_H

#include "kernels/loss.h"
#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_score;
struct kv_score *kv_score_new(void);
void kv_score_free(struct kv_score *s);

/* One window's scores, n >= 1.  base_nll: the base's mean loss on the same
 * tokens (for the paired difference), NaN without a base; has_kl: kl, dp and
 * same are filled.  Fails, before anything is added, on a score that is not
 * finite, naming window and token (window, and first + its index). */
int kv_score_window(struct kv_score *s, const struct kv_loss *t, size_t n,
                    double base_nll, bool has_kl, size_t window, size_t first,
                    struct kv_err *e);

/* A member is NaN where it was not measured. */
struct kv_score_summary {
    double tokens;        /* number of scored tokens */
    double nll;           /* mean over windows of the windows' mean losses */
    double ppl, ppl_se;   /* exp(nll); error over windows */
    double ppl_se_tokens; /* error over tokens, as llama.cpp prints it */
    double dnll, dnll_se; /* mean paired difference to the base */
    double kl_mean, kl_se, kl_max;
    /* percentiles over tokens, interpolated between neighbours; p999: 99.9 % */
    double kl_p999, kl_p99, kl_p95, kl_p90, kl_median, kl_p10, kl_p5, kl_p1;
    double same_top1; /* share of tokens with the base's first guess */
    double dp_mean, dp_rms;
};
struct kv_score_summary kv_score_summary(const struct kv_score *s);
/* Each window's mean divergence [n_windows], which the caller frees; NULL if
 * divergence was not measured. */
double *kv_score_kl_windows(const struct kv_score *s);

#endif
