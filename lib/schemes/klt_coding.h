/* How klt codes one side of a layer: which coefficients have codes, by which
 * transitions, in the order of a token's bitstream. */
#ifndef KV_KLT_CODING_H
#define KV_KLT_CODING_H

#include "kernels/device_code.h"
#include "lib/schemes/klt.h"

/* The values that trellis states decode to, and the error of each kind in
 * use. */
struct kv_klt_numbers {
    float *table; /* Lloyd-Max levels of each kind, then the trellis's values of
                   * each kind: [2][KINDS][MAX_VALUES][STATES] */
    double mse[KV_KLT_KINDS];
};

int kv_klt_numbers_load(struct kv_klt_numbers *n, const struct kv_codec *c,
                        const struct kv_calib_set *set, struct kv_err *e);
void kv_klt_numbers_clear(struct kv_klt_numbers *n);

struct kv_klt_coding {
    struct kv_klt_coef *coef; /* [n_coded], in the bitstream's order */
    float *sigma;             /* [n_coded] */
    uint32_t *place;          /* [n_coded]: index among a token's
                               * coefficients */
    unsigned n_used;          /* coefficients from this index on have no
                               * codes */
    size_t n_coded, n_transitions;
    struct kv_trellis_transition *transition; /* [n_transitions] */
    struct kv_trellis_whole *whole;           /* [n_coded] */
    /* The coefficients [n_coded] in the form that kernels take, and the runs of
     * equal transitions [n_runs]. */
    struct kv_gpu_coefficient *listed;
    struct kv_gpu_transitions *runs;
    unsigned n_runs, n_bits;
    size_t bytes; /* of a token */
    /* Sums of variances in the metric: the error that the codes leave, over all
     * coefficients, and the variance of all coded coefficients. */
    double error, coded;
};

/* The coding of the codec's side; n must outlive it. */
void kv_klt_coding_init(struct kv_klt_coding *g, const struct kv_codec *c,
                        const struct kv_calib_set *set,
                        const struct kv_klt_numbers *n);
void kv_klt_coding_clear(struct kv_klt_coding *g);

/* How states of the table at numbers.table[at] map to its entries. */
const struct kv_trellis_map *kv_klt_map(size_t at);

#endif
