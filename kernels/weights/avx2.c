#include "kernels/simd/avx2.h"

#include "kernels/weights/loops.h"
