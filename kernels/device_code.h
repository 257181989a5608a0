/* A scheme's encode() and decode() (lib/codec.h) on a CUDA device, bit for bit:
 * encode() makes the same bytes from tokens in halves, decode() the same floats
 * from bytes. */
#ifndef KV_DEVICE_CODE_H
#define KV_DEVICE_CODE_H

#include "kernels/cuda/runtime.h"
#include "kernels/trellis/trellis.h"
#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The method that turns a group of values into codes and a head, the group's
 * parameters (lib/schemes/integers.h); the schemes' own files define it. */
enum kv_gpu_quantizer {
    KV_GPU_NO_QUANTIZER,
    KV_GPU_KIVI,
    KV_GPU_ZEROPOINT,
    KV_GPU_ABSMAX,
    KV_GPU_HACK
};

/* Integers in groups (lib/schemes/integers.h, hack.h).  A block holds its units
 * in order.  A unit holds codes, group by group, padded to a byte, then the
 * groups' heads; the last group of a token's unit may be shorter. */
struct kv_gpu_groups {
    enum kv_gpu_quantizer quantizer;
    unsigned bits;
    bool by_channel; /* a group is one channel of a block's tokens; else `len`
                      * consecutive values of one token */
    size_t len;
    size_t unit; /* number of a token's values in one unit */
    size_t n_groups, code_bytes, unit_bytes; /* bytes of a unit */
    /* Only for hack: bytes of a sum of codes, 0 for none; bits of the other
     * operand's codes; and the layer and side for random numbers, used if
     * rounding is stochastic (kernels/hack/hack.h). */
    size_t sum_bytes;
    unsigned q_bits;
    size_t layer;
    bool stochastic, values;
};

/* Indices into codebooks, packed token by token (lib/schemes/codebook.h). */
struct kv_gpu_centroids {
    unsigned bits;
    size_t d, k, n_sub;           /* d <= 16; sub-vectors of a head */
    size_t head_books, sub_books; /* 1: shared by all heads, by all
                                   * sub-vectors */
    const float *centers;         /* [head_books][sub_books][k][d] */
    const float *smooth; /* [n_heads][head_dim], to divide by; or NULL */
    bool hadamard, hadamard_first; /* whether there is the transform of
                                    * kernels/hadamard.h, and whether it comes
                                    * before smooth */
};

/* A coefficient of kernels/transform/transform.h. */
struct kv_gpu_coefficient {
    unsigned end;   /* position of its bits in the bitstream */
    unsigned table; /* offset of its states in tables */
    unsigned index; /* column of the transform, row of the inverse */
    unsigned place; /* index among the bitstream's coefficients */
    float scale;
};

/* Consecutive equal transitions of kernels/trellis/trellis.h. */
struct kv_gpu_transitions {
    unsigned n, bits, values;
    unsigned table; /* offset of its table in tables */
};

/* The transitions that can be encoded: bits, values. */
#define KV_GPU_TRANSITIONS(X) \
    X(1, 4)                   \
    X(1, 2)                   \
    X(2, 4)                   \
    X(3, 4)                   \
    X(1, 1)                   \
    X(2, 2)                   \
    X(3, 2) X(2, 1) X(4, 2) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(7, 1) X(8, 1)

/* All values of a token, a row of KV_GPU_MAX_ROW at most, coded as coefficients
 * in one bitstream (lib/schemes/klt.h). */
enum { KV_GPU_MAX_ROW = 1024 };
struct kv_gpu_bitstreams {
    const struct kv_gpu_coefficient *coef;        /* [n_coefs] */
    const struct kv_gpu_transitions *transitions; /* [n_runs] */
    const struct kv_trellis_whole
        *whole; /* [n_coefs], in the bitstream's order */
    const float *tables;
    const float *mean;              /* [row] */
    const float *forward, *inverse; /* [row][row] */
    size_t n_tables;                /* floats */
    unsigned n_used;                /* most rows of the inverse that are used */
    unsigned n_coefs, n_runs, n_transitions, n_bits; /* bytes of a bitstream */
};

enum kv_gpu_coding { KV_GPU_GROUPS, KV_GPU_CODEBOOK, KV_GPU_BITSTREAMS };

/* The code of one side of a layer: input of encode() and decode(). */
struct kv_gpu_code {
    size_t n_heads, head_dim;
    size_t block, block_bytes; /* tokens and bytes of a block */
    enum kv_gpu_coding coding;
    union {
        struct kv_gpu_groups groups;
        struct kv_gpu_centroids codebook;
        struct kv_gpu_bitstreams bitstreams;
    };
};

/* Blocks to encode. */
struct kv_gpu_blocks {
    const uint16_t *x; /* device memory: halves [n * block][n_heads][head_dim],
                        * 4-byte aligned */
    uint8_t *bytes;    /* device memory: [n][block_bytes], written in full */
    size_t n;
    size_t first;  /* the first block's first token, for random numbers */
    uint64_t seed; /* seed of random numbers */
    size_t each;   /* blocks of a sequence; the next sequence begins with token
                    * `first` again; 0: all blocks are of one sequence */
    void *workspace; /* device memory: kv_gpu_encode_workspace() bytes */
    void *stream;    /* stream of kernels/device.h; NULL: the first */
};

struct kv_gpu_coder;

#ifdef __cplusplus
extern "C" {
#endif

/* Copies the code and all data that it points to.  Fails if the device has no
 * kernel for the code or too little memory; the error says which. */
int kv_gpu_coder_new(struct kv_gpu_coder **c, const struct kv_gpu_code *code,
                     const struct kv_device *device, struct kv_err *e);
void kv_gpu_coder_free(struct kv_gpu_coder *c); /* NULL is fine */

/* Bytes of workspace for encoding n blocks. */
size_t kv_gpu_encode_workspace(const struct kv_gpu_coder *c, size_t n);

/* Launches; does not wait. */
int kv_gpu_encode(const struct kv_gpu_coder *c, const struct kv_gpu_blocks *b,
                  struct kv_err *e);

/* Decodes, in the first stream, bytes [n][block_bytes] to x [n *
 * block][n_heads][head_dim], both device memory; x begins whole tokens after a
 * 16-byte boundary.  Launches. */
int kv_gpu_decode(const struct kv_gpu_coder *c, const uint8_t *bytes, size_t n,
                  float *x, struct kv_err *e);

/* Only for coder.c; the number of blocks is above 0.  The bytes of shared
 * memory that a block of threads takes. */
size_t kv_gpu_groups_shared(const struct kv_gpu_code *code);
int kv_gpu_encode_groups(const struct kv_gpu_code *code,
                         const struct kv_gpu_blocks *b, struct kv_err *e);

/* Device memory for tokens in work: their transformed values, NULL if the code
 * has no transform, and their codes, NULL if codes are bytes. */
struct kv_gpu_workspace {
    float *x;       /* [tokens][n_heads][head_dim] */
    uint16_t *code; /* [tokens][n_heads][n_sub] */
};
/* code's centers and smooth are device pointers; multiprocessors: how many the
 * device has. */
int kv_gpu_encode_codebook(const struct kv_gpu_code *code,
                           const struct kv_gpu_blocks *b,
                           const struct kv_gpu_workspace *workspace,
                           size_t multiprocessors, struct kv_err *e);

/* Number of bitstream searches (a warp each) for which a multiprocessor has
 * registers.  Bytes that a search notes per transition, one per lane. */
enum { KV_GPU_SEARCHES = 16, KV_GPU_NOTE = 32 };
/* y: workspace on the device for coefficients, [n][n_coefs]; notes, one per
 * search at a time: [searches][n_transitions][KV_GPU_NOTE]. */
int kv_gpu_encode_bitstreams(const struct kv_gpu_code *code,
                             const struct kv_gpu_blocks *b, float *y,
                             uint8_t *notes, size_t searches, struct kv_err *e);

int kv_gpu_decode_groups(const struct kv_gpu_code *code, const uint8_t *bytes,
                         size_t n, float *x, struct kv_err *e);
int kv_gpu_decode_codebook(const struct kv_gpu_code *code, const uint8_t *bytes,
                           size_t n, float *x, struct kv_err *e);
int kv_gpu_decode_bitstreams(const struct kv_gpu_code *code,
                             const uint8_t *bytes, size_t n, float *x,
                             struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
