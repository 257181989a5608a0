/* Arguments of a launch of decode attention (decode.cuh); pointers are device
 * pointers. */
#ifndef KV_CUDA_DECODE_H
#define KV_CUDA_DECODE_H

#include <stddef.h>
#include <stdint.h>

/* Tokens of a tile of codes (decode.cuh has the exceptions). */
enum { KV_GPU_TILE = 128 };

/* A sequence's tokens: sinks, codes, tail.  Sinks and tail are halves. */
enum { KV_RUN_SINKS, KV_RUN_CODES, KV_RUN_REST, KV_GPU_RUNS };

/* One run: tiles of KV_GPU_TILE tokens, [n_kv_heads][tiles][tile bytes]. */
struct kv_gpu_run {
    const uint8_t *k, *v;
    size_t k_head, v_head; /* bytes of one head's tiles, or of all heads' if
                            * these are together (families.h) */
    unsigned first, n;     /* position of the first token; tokens */
};

struct kv_gpu_sequence {
    struct kv_gpu_run run[KV_GPU_RUNS];
    unsigned index, n; /* index in the batch; number of tokens, at least nq */
    unsigned first_split, n_splits;
    unsigned n_coded; /* the first n_coded splits hold codes */
};

/* The work of the blocks with one blockIdx.x, for each KV head and group of
 * rows.  It includes all data about the sequence that the blocks need, so that
 * they wait once, not three times, for a cold cache. */
struct kv_gpu_work {
    struct kv_gpu_run run;
    unsigned coded; /* the run holds codes */
    unsigned first_tile, n_tiles;
    unsigned sequence, n; /* index and n of the sequence */
    unsigned first_split, n_splits, n_coded;
    unsigned split; /* first_split + its index among the sequence's splits */
};

/* A transform of rows into or out of the codes' space, either by a matrix, or x
 * becomes
 *
 *   ((x before) H) after,
 *
 * where H is the normalised Hadamard transform of blocks (kernels/hadamard.h).
 * Without a transform the codes' space is the model's. */
enum { KV_SPACE_NONE, KV_SPACE_MATRIX, KV_SPACE_HADAMARD };

struct kv_gpu_space {
    unsigned kind;
    unsigned hadamard;           /* size of a block */
    float scale;                 /* 1 / sqrt(hadamard) */
    const float *matrix;         /* [n_kv_heads][head_dim][head_dim] */
    const float *before, *after; /* [n_kv_heads][head_dim]; NULL: ones */
};

struct kv_decode {
    const struct kv_gpu_sequence *sequences;
    const struct kv_gpu_work *work; /* work for decoding; prefill uses
                                     * sequences */
    unsigned group, nq; /* query heads of a KV head; newest tokens with
                         * queries */
    float scale;        /* scale of scores, times log2(e) */
    const float *q;     /* [sequences][nq][n_heads][head_dim] */
    float *out;         /* as q */
    struct kv_gpu_space enter, leave;
    /* The mean added to every decoded value in the model's space,
     * [n_kv_heads][head_dim]; NULL: zero. */
    const float *mean;
    float *parts;       /* the part of each split (decode.cuh, kv_part) */
    unsigned *counters; /* [sequences][n_kv_heads][groups of rows], 0 */
};

#endif
