#include "kernels/cuda/families.h"

const struct kv_gpu_family *const kv_gpu_families[] = {
    &kv_gpu_float,  &kv_gpu_integers_int8, &kv_gpu_integers,
    &kv_gpu_hack,   &kv_gpu_codebook,      &kv_gpu_scaled_codes,
    &kv_gpu_levels, &kv_gpu_transform,     &kv_gpu_generic_tiles,
    NULL,
};
