/* Blocks of 256 values whose codes stand for several values each, and of 64
 * with scales of 8 bits (kernels/weights/weights.h describes them).
 *
 * An entry of a grid holds the codes of 8 values, 2 bits each, or of 4 values,
 * 3 bits each, the first one lowest.  Seven bits determine eight signs, since
 * the number of set bits is even. */
#ifndef KV_WEIGHTS_GRIDS_H
#define KV_WEIGHTS_GRIDS_H

#include <stdint.h>

extern const uint16_t kv_grid_iq2_xxs[256], kv_grid_iq2_xs[512],
    kv_grid_iq2_s[1024], kv_grid_iq1[2048], kv_grid_iq3_xxs[256],
    kv_grid_iq3_s[512];

/* Decode a block. */
void kv_block_tq1_0(const uint8_t *b, float x[256]);
void kv_block_tq2_0(const uint8_t *b, float x[256]);
void kv_block_iq1_s(const uint8_t *b, float x[256]);
void kv_block_iq1_m(const uint8_t *b, float x[256]);
void kv_block_iq2_xxs(const uint8_t *b, float x[256]);
void kv_block_iq2_xs(const uint8_t *b, float x[256]);
void kv_block_iq2_s(const uint8_t *b, float x[256]);
void kv_block_iq3_xxs(const uint8_t *b, float x[256]);
void kv_block_iq3_s(const uint8_t *b, float x[256]);
void kv_block_nvfp4(const uint8_t *b, float x[64]);

#endif
