#include "kernels/simd/avx512.h"

#include "kernels/weights/loops.h"
