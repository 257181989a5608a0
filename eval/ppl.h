/* Perplexity of a model whose cache is quantized, against the same model with
 * an f32 cache.
 *
 * A run leaves the hidden states of its scored positions in an unlinked
 * temporary file; the base line, the first run, stays there.  Runs are scored
 * several at a time against the base, so that the base's logits are computed
 * once for all of them; with a large vocabulary these logits take as long as a
 * run.
 *
 * Memory holds one group of windows.  On the CPU, hidden states of other groups
 * lie in another temporary file while the group passes a layer, so that each
 * layer's weights are read once.  With layered codecs each group passes all
 * layers, so weights are read for each group; with codes of all layers together
 * a group passes all layers twice.  A long window of a spec with a policy goes
 * piece by piece through all layers, in the memory of a piece. */
#ifndef KV_PPL_H
#define KV_PPL_H

#include "eval/kl_curve.h"
#include "eval/klbase.h"
#include "eval/prefill.h"
#include "eval/protocol.h"
#include "eval/ranks.h"
#include "eval/score.h"
#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/model/model.h"
#include "lib/seq/bits.h"

struct kv_ppl_plan {
    struct kv_model *model;
    const int32_t *tokens; /* [n_windows][n], kept by pointer */
    size_t n_windows, n;
    struct kv_protocol protocol;
    size_t memory; /* bytes for activations */
    uint64_t seed;
    bool no_base; /* no base line runs, and nothing is compared */
    bool kl;      /* also measures divergence from the base; not with no_base */
    bool losses;  /* rows have the loss of each token */
    struct kv_klbase *kl_file; /* the base's probabilities from a file instead
                                * of the base run; or NULL */
    struct kv_ranks *ranks;    /* NULL, or ranks that share the windows (at
                                * least one each) or the layers; not with klbase
                                * files */
    struct kv_progress *progress; /* a step for each window and layer of a run,
                                   * or NULL; cleared after each run */
};

struct kv_ppl;

/* Fails when the protocol leaves nothing to score. */
int kv_ppl_new(struct kv_ppl **p, const struct kv_ppl_plan *plan,
               struct kv_err *e);
void kv_ppl_free(struct kv_ppl *p);

/* The results of one run: a row of kvppl's table. */
struct kv_ppl_row {
    struct kv_score_summary score;
    struct kv_kl_curve curve; /* divergence by position; without windows if it
                               * was not measured */
    struct kv_bits bits;
    struct kv_prefill prefill; /* the cost of prompts (eval/loop.h) */
    double seconds;            /* seconds of the run, and of its share of
                                * scoring */
    struct kv_loss *loss; /* [n_windows][scored], the caller's to free; NULL
                           * unless the plan wants losses */
    double *kl;           /* [n_windows], each window's mean divergence, the
                           * caller's to free; NULL if it was not measured */
};

/* At most KV_PPL_TOGETHER runs are scored together.  After KV_PPL_WAIT_SECONDS
 * scoring waits for no further run, since runs not yet scored are lost if the
 * program is ended. */
enum { KV_PPL_TOGETHER = 8, KV_PPL_WAIT_SECONDS = 300 };

/* Runs one spec (fitted, and changed by kv_protocol_spec); the run then waits
 * for kv_ppl_score().  Unless no_base, the first run must be the base line, f32
 * on a CPU, and must be scored alone. */
int kv_ppl_pass(struct kv_ppl *p, const struct kv_spec *spec,
                const struct kv_calib *calib, struct kv_err *e);

/* Runs the last spec again with perturbed keys and values (kv_loop_jitter());
 * repeat counts from 1.  This run waits too.  Only on the CPU. */
int kv_ppl_pass_again(struct kv_ppl *p, const struct kv_spec *spec,
                      const struct kv_calib *calib, size_t repeat,
                      struct kv_err *e);

/* Whether the waiting runs must be scored before another run: there are eight,
 * or they took 300 s (not with several ranks), or memory has no room for
 * another run's states, or there are no base logits to share. */
bool kv_ppl_full(const struct kv_ppl *p);

/* Scores all waiting runs (there may be none) and returns their rows in order;
 * with several ranks, on the first one.  A row's numbers do not depend on the
 * other rows.  to_file: NULL, or receives the logits of every scored token of
 * the one waiting run. */
int kv_ppl_score(struct kv_ppl *p, struct kv_klbase *to_file,
                 struct kv_ppl_row *row, struct kv_err *e);

/* Runs one spec and scores it. */
int kv_ppl_run(struct kv_ppl *p, const struct kv_spec *spec,
               const struct kv_calib *calib, struct kv_klbase *to_file,
               struct kv_ppl_row *row, struct kv_err *e);

#endif
