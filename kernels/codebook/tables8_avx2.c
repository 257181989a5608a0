#define NAME(f) f##_avx2
#include "kernels/codebook/tables8_loops.h"

void kv_codebook_planes8_avx2(const struct kv_store *s, size_t head,
                              const float *q, size_t rows, void *query)
{
    prepare8(s, head, q, rows, true, query);
}
