/* Perplexity of a model whose cache is quantized, against the same model with
 * an f32 cache.
 *
 * The base runs first and leaves its hidden states in an unlinked temporary
 * file; every spec is then compared with it, token by token.  Memory holds one
 * group of windows: on the CPU, hidden states of other groups lie in another
 * such file while the group passes a layer, so that a layer is read once.  With
 * layered codecs a group passes all layers, which are read for each group.  A
 * long window of a spec with a policy goes piece by piece through all layers,
 * in the memory of a piece. */
#ifndef KV_PPL_H
#define KV_PPL_H

#include "eval/kl_curve.h"
#include "eval/klbase.h"
#include "eval/prefill.h"
#include "eval/protocol.h"
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
    bool no_base; /* the base does not run: nothing is compared with it */
    bool kl;      /* divergence from the base too; not with no_base */
    struct kv_klbase *kl_file; /* the base's probabilities from a file instead
                                * of the base run; or NULL */
    struct kv_progress *progress; /* a step for each window and layer of a run,
                                   * or NULL; cleared after each run */
};

struct kv_ppl;

/* Fails when the protocol leaves nothing to score. */
int kv_ppl_new(struct kv_ppl **p, const struct kv_ppl_plan *plan,
               struct kv_err *e);
void kv_ppl_free(struct kv_ppl *p);

/* Runs one spec (fitted; as kv_protocol_spec leaves it).  The first run must
 * be the base line, f32 on a CPU, but with no_base.  to_file, when not NULL, is
 * given the logits of every scored token. */
int kv_ppl_run(struct kv_ppl *p, const struct kv_spec *spec,
               const struct kv_calib *calib, struct kv_klbase *to_file,
               struct kv_score_summary *score, struct kv_bits *bits,
               struct kv_err *e);

/* The cost of the last run's prompts (eval/loop.h). */
struct kv_prefill kv_ppl_prefill(const struct kv_ppl *p);

/* The last run's divergence by position; without windows where it was not
 * measured. */
struct kv_kl_curve kv_ppl_curve(const struct kv_ppl *p);

#endif
