/* A folder's description of its packed matrices (lib/model/packed_tensors.h).
 *
 * It comes from the first of these files present; the others must agree with
 * it:
 *
 *   config.json            quantization_config; null: as if it were absent
 *   hf_quant_config.json   quantization: ModelOpt's
 *   quantize_config.json   all of it: GPTQ's, before config.json had it
 *   quant_config.json      all of it: AWQ's, likewise */
#ifndef KV_MODEL_PACKED_HEADER_H
#define KV_MODEL_PACKED_HEADER_H

#include "kernels/weights/packed.h"
#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct kv_packed_header {
    char *path; /* the file that describes the packing; NULL: none does */
    enum kv_packing packing;
    bool compressed;                  /* compressed-tensors, with that format's
                                       * tensor names */
    bool int8;                        /* for scaled: codes are int8 */
    bool bitsandbytes;                /* bitsandbytes, with that format's tensor
                                       * names */
    bool gemv;                        /* for words: AutoAWQ's gemv layout and
                                       * tensor names */
    bool by_row, by_tensor;           /* for scaled: one scale for each row, one
                                       * for the tensor */
    unsigned bits;                    /* for gptq, awq and words */
    size_t group;                     /* inputs that share a scale; 0: all */
    bool zero_less;                   /* as in struct kv_packed */
    bool symmetric;                   /* every zero is 2^(bits - 1) */
    bool ordered, in_order;           /* desc_act is true; desc_act is false */
    bool static_groups;               /* g_idx may be absent even if desc_act is
                                       * true */
    size_t block_rows, block_columns; /* for fp8; 0: follows from the scales'
                                       * shape */
    enum kv_stored code_type;         /* for fp8; KV_STORED_OTHER: not given */
};

/* dir: the model's folder.  Fails on a file that is not JSON, on a method or
 * format that is not implemented, on a field that is missing or has an invalid
 * value, and on two files that contradict each other.  Release h with
 * kv_packed_header_clear(), after failure too. */
int kv_packed_header_read(struct kv_packed_header *h, const char *dir,
                          struct kv_err *e);
void kv_packed_header_clear(struct kv_packed_header *h);

#endif
