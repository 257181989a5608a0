/* Codes of HACK as they lie on the device: what hack_pack.c writes and
 * hack.cuh reads.  b bits (2 or 4), parts of p values (32, 64, 128;
 * keys at most the head); T = 64 tokens a step, 128 where p is.
 *
 * A step is | words of codes | ranges |.
 *
 * A register of fragment a (gpu.cuh) is 4 codes, one in each byte.  b bits of
 * 8 / b registers share a word: register i is (word >> b i) & mask, mask 3 or
 * 15 in each byte; a fragment of 4 registers is b / 2 words.  A lane's words
 * stand in groups of 4,
 *
 *   [group][lane][4 words]
 *
 * in the order fragment, word: keys [T / 16 (tokens are rows)][head_dim / 32],
 * values [T / 32][head_dim / 16 (channels are rows)].  Four columns of values,
 * 4c to 4c + 3 (16 more in a[2], a[3]), are tokens 2c, 2c + 8, 2c + 1, 2c + 9
 * of 16: the order in which transposed weights come.
 *
 * Ranges are planes of f16 scale, f16 minimum, f16 sum of codes (which
 * it holds exactly: below 2048): keys
 * [part][3][T], values [T / p][3][head_dim].  Of 16, number 8 and 0 stand
 * together, then 9 and 1: a word is what rows r and r + 8 want. */
#ifndef KV_HACK_CUDA_CODES_H
#define KV_HACK_CUDA_CODES_H

#include <stddef.h>
#include <stdint.h>

struct kv_gpu_hack {
    float top;    /* 2^q_bits - 1 */
    uint64_t key; /* seed, stream and layer, mixed */
};

#endif
