/* A safetensors file, memory-mapped.
 *
 *   | n: u64, little endian | header: n bytes of JSON | data |
 *
 * The header gives every tensor's name, type, shape and place in data:
 *   {"a.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}
 *
 * The reader trusts nothing: tensors must lie inside the file, have the length
 * that their shape gives, not overlap, and together fill the data. */
#ifndef KV_MODEL_SAFETENSORS_H
#define KV_MODEL_SAFETENSORS_H

#include "lib/base/file.h"
#include "lib/model/weight.h"

struct kv_safetensors {
    char *path;
    struct kv_map map;
    size_t header_bytes; /* bytes of JSON: data starts at 8 + header_bytes */
    struct kv_weight *weight;
    size_t n_weights;
};

/* Fails with the file, the tensor and the fault. */
int kv_safetensors_open(struct kv_safetensors *f, const char *path,
                        struct kv_err *e);
void kv_safetensors_clear(struct kv_safetensors *f);

#endif
