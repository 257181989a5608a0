#include "kernels/simd/avx512.h"

#include "kernels/tiles/loops.h"
