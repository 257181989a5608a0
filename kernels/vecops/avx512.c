#include <immintrin.h>

#define NAME(f) f##_avx512
#define LANES 16
#define v_fma _mm512_fmadd_ps
#include "kernels/vecops/loops.h"
