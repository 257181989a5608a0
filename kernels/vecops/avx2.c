#include <immintrin.h>

#define NAME(f) f##_avx2
#define LANES 8
#define v_fma _mm256_fmadd_ps
#include "kernels/vecops/loops.h"
