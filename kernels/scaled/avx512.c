#include "kernels/simd/avx512.h"

#include "kernels/scaled/loops.h"
