#include "kernels/simd/avx512.h"

#include "kernels/vecops/loops.h"
