/* Timed attention over caches: the measurement of kvattn. */
#ifndef KV_ATTN_BENCH_H
#define KV_ATTN_BENCH_H

#include "eval/append_gpu.h"
#include "eval/timing.h"
#include "kernels/device.h"
#include "kernels/tiles/tiles.h"
#include "lib/base/err.h"
#include "lib/codec.h"
#include "lib/seq/bits.h"
#include "lib/seq/tokens.h"
#include "lib/spec.h"

#include <stdint.h>

struct kv_calib;
struct kv_dump;

/* A batch of sequences of one layer; the struct owns the arrays.  shape: the
 * model's.  k, k_pre (NULL: none), v: [n_batch][n][n_kv_heads][head_dim].  q:
 * the newest nq tokens' queries; exact: attention in double over k and v; both
 * [n_batch][nq][n_heads][head_dim].  all_q: every token's queries,
 * [n_batch][n][n_heads][head_dim], NULL unless asked for. */
struct kv_attn_inputs {
    struct kv_shape shape;
    size_t layer, n_batch, n, nq;
    bool want_all_q; /* for schemes with a probe(), and policies */
    bool has_k_pre;
    float *q, *all_q, *k, *k_pre, *v, *exact;
};

/* Fills in the sizes; the caller has set layer, nq and want_all_q.  The dump's
 * first n_batch windows (0: all) are the sequences.  Fails when the dump has
 * fewer windows, and when windows have fewer than nq tokens. */
int kv_attn_inputs_of_dump(struct kv_attn_inputs *in, struct kv_dump *dump,
                           struct kv_err *e);
/* Reads the arrays; the sizes are set.  Fails when the dump lacks queries or
 * the layer. */
int kv_attn_inputs_read(struct kv_attn_inputs *in, struct kv_dump *dump,
                        struct kv_err *e);
/* Standard normal tensors; all sizes are set, nq <= n. */
void kv_attn_inputs_random(struct kv_attn_inputs *in, uint64_t seed);
void kv_attn_inputs_clear(struct kv_attn_inputs *in);

/* Tokens [first, first + n) of sequence b; q is NULL without all_q. */
struct kv_tokens kv_attn_inputs_tokens(const struct kv_attn_inputs *in,
                                       size_t b, size_t first, size_t n);

/* Fills in exact. */
void kv_attn_inputs_exact(struct kv_attn_inputs *in);
/* ||x - of|| / ||of||; both have the shape of exact. */
double kv_attn_inputs_error(const struct kv_attn_inputs *in, const float *x,
                            const float *of);

enum {
    KV_ATTN_APPENDED = 128, /* number of tokens whose append is timed */
    KV_ATTN_PIECE = 4096    /* number of earlier tokens appended at a time */
};

struct kv_attn_result {
    struct kv_bits bits;      /* both sides; without shared_bytes and nominal */
    double rel_err;           /* ||out - exact|| / ||exact|| */
    double path_rel_err;      /* rel_err against exact attention over the same
                               * codes; NaN if tiles do not take the codes */
    struct kv_timing timing;  /* one step of the whole batch */
    double append;            /* CPU seconds to append a token of the whole
                               * batch to the caches, with quantization where a
                               * block is full; the mean over the newest tokens,
                               * at most KV_ATTN_APPENDED; NaN on a GPU */
    double speedup;           /* median of the base line's time over the step's,
                               * paired by run */
    size_t bytes_moved;       /* caches, queries and outputs, each once */
    size_t device_bytes;      /* bytes that the step reads, of tiles or of the
                               * caches themselves */
    struct kv_attend_ops ops; /* operations of one step, only for schemes with
                               * an attend(); zeros with repeats */
};

/* The requested path.  If the codes do not support it, the next one runs: int8,
 * then exact, then generic (or the scheme's own attention on codes).  auto:
 * int8 if its path_rel_err is below the error of exact attention over the
 * codes, else exact (on a GPU always exact).  A GPU also has two baselines:
 * unfused, f16 by two products and a softmax, and dequant, which first decodes
 * the codes to halves. */
enum kv_attn_path {
    KV_ATTN_AUTO,
    KV_ATTN_INT8,
    KV_ATTN_EXACT,
    KV_ATTN_GENERIC,
    KV_ATTN_UNFUSED,
    KV_ATTN_DEQUANT
};

struct kv_attn_bench {
    const struct kv_calib *calib; /* NULL: none */
    struct kv_bench *bench;
    const struct kv_device *gpu; /* where attention runs; NULL: the CPU */
    size_t copies;  /* on a GPU, the number of copies of each sequence, each in
                     * its own memory; makes a large batch from little host
                     * memory */
    size_t repeats; /* on a GPU, how often each cache repeats its sequence's
                     * tokens: caches have repeats * in->n tokens, and attention
                     * the same outputs.  Above 1 needs one query, only whole
                     * tiles of codes, and keys after RoPE */
    size_t threads; /* threads work over caches, KV heads and chunks; "codes"
                     * and "generic" only over caches */
    bool warm;      /* on the CPU: see kv_bench_time() */
    size_t warmup, reps;
    struct kv_progress *progress; /* a step for each run on the CPU, or NULL */
    uint64_t seed;
};

/* Puts the inputs into caches of one spec, ready for a step; keeps b, in and
 * spec by pointer.  Fails without a needed calibration, k_pre or all_q.  On a
 * GPU it may also return 1, with a sentence in e and no step: no kernel for
 * this spec, or no memory; other specs may work. */
struct kv_attn_step;
int kv_attn_step_new(struct kv_attn_step **s, const struct kv_attn_bench *b,
                     const struct kv_attn_inputs *in,
                     const struct kv_spec *spec, enum kv_attn_path path,
                     struct kv_err *e);
void kv_attn_step_free(struct kv_attn_step *s); /* NULL is fine */

/* The path in use: "exact" or "int8", on tiles of the codes
 * (kernels/tiles/tiles.h); "codes", the scheme's own attention; "generic",
 * decode() and then attention, or the GPU's kernel for any sizes; "plain",
 * decode() and then attention because tiles do not take the view; "unfused",
 * "dequant". */
const char *kv_attn_step_path(const struct kv_attn_step *s);

/* Times the step in turns with base, the base line's step (NULL or s: s is the
 * base line itself).  Fails when the output of attention is not finite.
 * Returns 1 if a GPU failed, for memory or otherwise; other steps may still
 * run. */
int kv_attn_step_run(struct kv_attn_step *s, struct kv_attn_step *base,
                     struct kv_attn_result *out, struct kv_err *e);

/* Times for encoding the newest tokens on a GPU, after the step has run.  NaN
 * on the CPU, and where encoding fails or differs from the CPU's result. */
int kv_attn_step_append(const struct kv_attn_step *s,
                        struct kv_append_times *times, struct kv_err *e);

#endif
